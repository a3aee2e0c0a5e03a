"""The gateway's WAL writer over a store and a control plane in memory."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from uuid import UUID

import pytest

from tests.support.waiting import within
from tests.unit.gateway.fakes import (
    LOG,
    TOPIC_ID,
    FakeClock,
    FakeObjectStore,
    GatewayPlane,
    record_batch,
    tracked_row,
    tracked_topic,
    until,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.pipelining import ProducerBatch, RefusedSequences
from tideline.domain.wal_footer import Footer, decode_tail
from tideline.domain.wal_streams import Streams
from tideline.gateway.fetch.from_suffix import HighWatermarks
from tideline.gateway.fetch.object_reader import ObjectCache
from tideline.gateway.produce import teller
from tideline.gateway.produce.appends import Append, AppendFailed
from tideline.gateway.produce.commit_stream import CommitStream
from tideline.gateway.produce.object_keys import ObjectKeys
from tideline.gateway.produce.wal import WalWriter
from tideline.gateway.tracking.lease import Lease
from tideline.gateway.tracking.view import TrackingView

OTHER = TopicIdPartition(TOPIC_ID, 1)
HISTORY = UUID(int=77)


@lru_cache(maxsize=1_000)
def _footer(body: bytes) -> Footer:
    return decode_tail(body, len(body))


def tells_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause is long enough for an object that only tells, however slow this machine is."""
    monkeypatch.setattr(teller, "TELL_AFTER_S", 60.0)
    monkeypatch.setattr(teller, "TELL_WITHIN_S", 60.0)


def a_lease(plane: GatewayPlane, gateway_id: int = 1) -> Lease:
    return Lease(
        plane, gateway_id=gateway_id, broker_id=1, address="here:1", version="0", duration_ms=3000
    )


class NotedRefusals(RefusedSequences[tuple[TopicIdPartition, object]]):
    """Keeps every refusal, as (key, sequence)."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.noted: list[tuple[tuple[TopicIdPartition, object], int]] = []

    def refuse(self, key: tuple[TopicIdPartition, object], batch: ProducerBatch) -> None:
        self.noted.append((key, batch.base_sequence))
        super().refuse(key, batch)


class Bench:
    """A writer over fakes."""

    def __init__(
        self, beside: Bench | None = None, *, gateway_id: int = 1, **changes: float
    ) -> None:
        """``beside``: another gateway of the same store and plane."""
        self.store = beside.store if beside else FakeObjectStore()
        self.plane = beside.plane if beside else GatewayPlane()
        self.lease = a_lease(self.plane, gateway_id)
        self.plane.activate(self.lease.incarnation, self.lease.gateway_id)
        if beside is None:
            self.plane.put(
                tracked_topic(
                    tracked_row(boundary=100, boundary_epoch=1),
                    tracked_row(OTHER.partition, boundary=0, boundary_epoch=1),
                )
            )
        self.keys = ObjectKeys(self.plane, self.lease, clock=FakeClock())
        self.refused = NotedRefusals(FakeClock())
        values = {"max_bytes": 1000, "max_delay_s": 0.0, "buffer_max_bytes": 4000} | changes
        self.writer = WalWriter(
            self.store,
            self.plane,
            self.keys,
            self.lease,
            ObjectCache(1 << 20),
            HighWatermarks(self.plane, TrackingView(self.lease.valid), poll_s=60),
            self.refused,
            CommitStream(
                self.lease, lambda: HISTORY, wall_clock=lambda: self.plane.append_time / 1000
            ),
            max_bytes=int(values["max_bytes"]),
            max_delay_s=values["max_delay_s"],
            buffer_max_bytes=int(values["buffer_max_bytes"]),
            parallel_uploads=4,
            upload_patience_s=values.get("patience_s", 5.0),
        )

    def append(
        self,
        sequence: int = -1,
        *,
        log: TopicIdPartition = LOG,
        producer: int = 7,
        records: int = 1,
        source: object = "client",
        payload: int = 50,
    ) -> asyncio.Future[object]:
        producer_id = producer if sequence >= 0 else -1
        batch = record_batch(
            records, producer_id=producer_id, epoch=0, sequence=sequence, payload=b"x" * payload
        )
        return self.writer.append(
            Append(
                log=log,
                source=source,
                batch=batch,
                producer=ProducerBatch(producer_id, 0, sequence),
                last_sequence=sequence + records - 1,
                record_count=records,
                max_timestamp=1000,
                timestamp_type="CreateTime",
                outcome=asyncio.get_running_loop().create_future(),
            )
        )  # type: ignore[return-value]

    def footers(self) -> dict[str, Footer]:
        """Of all objects in the bucket, in the order in which they came there."""
        return {key: _footer(body) for key, body in self.store.objects.items()}

    def streams(self) -> Streams:
        """What the footers of the bucket tell."""
        streams = Streams()
        for key, footer in self.footers().items():
            streams.add(key, len(self.store.objects[key]), footer)
        return streams


def goes_on(bench: Bench) -> None:
    """The lease was fenced, and the process lives on as another incarnation."""
    bench.plane.fence(bench.lease.incarnation)
    bench.lease.end_incarnation("fenced in this test")
    bench.plane.activate(bench.lease.incarnation, bench.lease.gateway_id)
    bench.lease.gained()


async def two_of_which_the_first_fails(
    bench: Bench,
) -> tuple[asyncio.Future[object], asyncio.Future[object], asyncio.Future[object]]:
    """An upload that is given up, a batch behind it, and one of another producer in its object."""
    bench.store.down = True
    bench.store.holds[0] = asyncio.Event()
    doomed = bench.append(0, payload=950)
    await until(lambda: bench.store.puts)
    behind = bench.append(1, payload=600)
    other = bench.append(0, producer=8, payload=300)
    bench.store.down = False
    await until(lambda: len(bench.store.objects) == 1)
    bench.store.down = True
    bench.store.holds[0].set()
    with pytest.raises(AppendFailed):
        await within("what is given up", doomed)
    bench.store.down = False
    return behind, other
