"""Consumers of classic, pending, hybrid and diskless partitions, with and without a session, before
a broker, a Postgres and an object store of any speed: whatever comes late, each reads every record
once, in order, and gets to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from tests.unit.gateway.fakes import TOPIC, record_batch, tracked_row
from tests.unit.gateway.tracked_bench import (
    FakeConnection,
    TrackedBench,
    fetch,
    forget_everything,
    produce,
)
from tideline.control_plane.model import FindBatchesRequest, FoundBatches
from tideline.gateway.context import ApiKey
from tideline.gateway.fetch import tracked_fetch
from tideline.gateway.messages import messages
from tideline.kafka.batches import iter_batches, patch

CLASSIC = ("classic", 0)
PARTITIONS = 4
TRACKED = [(TOPIC, n) for n in range(PARTITIONS)]
ENDED = (ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch)
RETRIED = (ErrorCode.none, ErrorCode.kafka_storage_error, ErrorCode.not_leader_or_follower)
ZOMBIE = b"z"
Log = tuple[str, int]


def batch(base: int, payload: bytes) -> bytes:
    made = bytearray(record_batch(1, payload=payload))
    patch(made, base, 3)
    return bytes(made)


@dataclass
class World:
    bench: TrackedBench
    random: Random
    kafka: dict[Log, list[bytes]] = field(default_factory=dict)
    """Payloads by offset, zombies included."""
    boundary: dict[int, int] = field(default_factory=dict)
    """B0 of the tracked partitions that have one."""
    closed: set[int] = field(default_factory=set)
    """Those that quiesce: B0 will be set where Kafka's log ends."""
    suffix: dict[int, list[bytes]] = field(default_factory=dict)
    slow: float = 0.0
    """How often something is slower than anybody's patience."""

    def __post_init__(self) -> None:
        self._find, self._get = self.bench.plane.find_batches, self.bench.store.get
        self.bench.plane.find_batches = self.find  # type: ignore[method-assign]
        self.bench.store.get = self.get  # type: ignore[method-assign]
        self.kafka[CLASSIC] = []
        for n in range(PARTITIONS):
            self.kafka[TOPIC, n] = []
            self.suffix[n] = []

    async def lag(self) -> None:
        if self.random.random() < self.slow:
            await asyncio.sleep(self.random.choice([0.0, 0.003, 0.02]))

    async def find(self, requests: Sequence[FindBatchesRequest]) -> list[FoundBatches]:
        await self.lag()
        return await self._find(requests)

    async def get(self, key: str, start: int, size: int, *, tiered: bool = False) -> bytes:
        await self.lag()
        return await self._get(key, start, size, tiered=tiered)

    def connection(self) -> FakeConnection:
        one_by_one = asyncio.Lock()

        async def serve(request: Any) -> Any:
            async with one_by_one:
                await self.lag()
                answer = self._answer(request)
                if not any(row.records for topic in answer.responses for row in topic.partitions):
                    await asyncio.sleep(min(0.01, request.max_wait.total_seconds()))
                    answer = self._answer(request)
                return answer

        return FakeConnection(broker={ApiKey.FETCH: serve})

    def _answer(self, request: Any) -> Any:
        api = messages(ApiKey.FETCH, 12)
        left = int(request.max_bytes)
        topics = []
        for topic in request.topics:
            rows = []
            for row in topic.partitions:
                log = self.kafka[topic.topic, row.partition]
                records = b""
                for base in range(int(row.fetch_offset), len(log)):
                    more = batch(base, log[base])
                    if records and len(more) > left:
                        break
                    records += more
                    left -= len(more)
                past = row.fetch_offset > len(log)
                code = ErrorCode.offset_out_of_range if past else ErrorCode.none
                rows.append(
                    api.response_part(
                        "PartitionData",
                        partition_index=row.partition,
                        error_code=code,
                        high_watermark=-1 if past else len(log),
                        last_stable_offset=-1 if past else len(log),
                        log_start_offset=-1 if past else 0,
                        aborted_transactions=(),
                        records=records,
                    )
                )
            topics.append(
                api.response_part(
                    "FetchableTopicResponse", topic=topic.topic, partitions=tuple(rows)
                )
            )
        return api.response(
            throttle_time=timedelta(0),
            error_code=ErrorCode.none,
            session_id=0,
            responses=tuple(topics),
        )

    # What happens

    def show(self) -> None:
        self.bench.show(
            *(
                tracked_row(n, boundary=self.boundary[n], boundary_epoch=7)
                if n in self.boundary
                else tracked_row(
                    n, generation=2 if n in self.closed else 1, quiesced=n in self.closed
                )
                for n in range(PARTITIONS)
            )
        )

    def appended(self, log: Log) -> None:
        """A record that is acknowledged; past B0 in Kafka one that never is."""
        payload = (
            ZOMBIE if log[0] == TOPIC and log[1] in self.boundary else b"%d" % len(self.kafka[log])
        )
        self.kafka[log].append(payload)

    async def committed(self, partition: int) -> None:
        payload, log = b"s%d" % len(self.suffix[partition]), (TOPIC, partition)
        at = len(self.truth(log))
        self.suffix[partition].append(payload)  # consumers see it before its producer hears
        answer = await self.bench.ask(produce((*log, record_batch(1, payload=payload))))
        (row,) = answer.responses[0].partition_responses
        assert (row.error_code, row.base_offset) == (ErrorCode.none, at)

    def advances(self, partition: int) -> None:
        """The migration's next step: it is quiesced, then crosses."""
        if partition in self.closed:
            self.boundary[partition] = len(self.kafka[TOPIC, partition])
        self.closed.add(partition)
        self.show()

    def truth(self, log: Log) -> list[bytes]:
        """What a consumer of the whole log reads."""
        if log[0] != TOPIC or log[1] not in self.boundary:
            return self.kafka[log]
        return self.kafka[log][: self.boundary[log[1]]] + self.suffix[log[1]]


class Consumer:
    """After the Java client's ``FetchSessionHandler``."""

    def __init__(self, world: World, with_session: bool, connection: FakeConnection) -> None:
        self.world, self.with_session = world, with_session
        self.at: dict[Log, int] = dict.fromkeys([*TRACKED, CLASSIC], 0)
        self.asked: dict[Log, int] = {}
        """Offsets as the session has them."""
        self.session = self.epoch = 0
        self.connection = connection

    def request(self, **values: Any) -> Any:
        if not self.with_session:
            return fetch(*((*log, at) for log, at in self.at.items()), **values)
        if self.epoch == 0:
            self.asked = {}
        new = [(*log, at) for log, at in self.at.items() if self.asked.get(log) != at]
        self.asked = dict(self.at)
        return fetch(*new, session=(self.session, self.epoch), **values)

    def reconnects(self, connection: FakeConnection) -> None:
        """Its session may have gone on without it."""
        self.connection, self.epoch = connection, 0

    async def polls(self, **values: Any) -> None:
        crossed = dict(self.world.boundary)
        answer = await self.world.bench.ask(self.request(**values), client=self.connection)
        if answer.error_code in ENDED:
            assert self.with_session
            self.session = self.epoch = 0
            return
        assert answer.error_code is ErrorCode.none
        rows = {
            (topic.topic, int(row.partition_index)): row
            for topic in answer.responses
            for row in topic.partitions
        }
        if not self.with_session or self.epoch == 0:
            assert list(rows) == list(self.at), "a full answer has every partition"
        self.session = int(answer.session_id)
        self.epoch = self.epoch + 1 if self.session else 0
        for log, row in rows.items():
            self.takes(log, row, crossed)

    async def reads_to_the_end(self) -> None:
        for _ in range(60):
            if all(at == len(self.world.truth(log)) for log, at in self.at.items()):
                break
            for partition in self.world.closed - self.world.boundary.keys():
                self.world.advances(partition)  # nobody reads on before it is over
            await self.polls(max_wait_ms=5)
        for log, at in self.at.items():
            assert at == len(self.world.truth(log)), f"{log} stands at {at}"

    def takes(self, log: Log, row: Any, crossed: dict[int, int]) -> None:
        """``crossed``: B0 of those that had one when it was asked. An answer may be as old as its
        question: the end of a log that has grown, and crossed, since."""
        truth = self.world.truth(log)
        assert row.error_code in RETRIED, (log, self.at[log], row)
        end = int(row.high_watermark)
        assert end <= len(truth) or end < 0, (log, end, len(truth))
        records = bytes(row.records or b"")
        if row.error_code is ErrorCode.none and not records and log[0] == TOPIC:
            shown = crossed.get(log[1], 0)
            assert not (self.at[log] == end < shown), "an end of the log before B0"
        place = 0
        for header in iter_batches(records):
            assert header.base_offset == self.at[log], (log, header.base_offset, self.at[log])
            expected = record_batch(1, payload=truth[self.at[log]])
            assert records[place + 61 : place + len(expected)] == expected[61:], log
            place += len(expected)
            self.at[log] += 1


async def play(world: World, steps: int, with_session: bool, others: int = 0) -> None:
    """``others``: consumers without a session that send over the same connection meanwhile."""
    random, connection = world.random, world.connection()
    consumers = [Consumer(world, with_session, connection)]
    consumers += [Consumer(world, False, connection) for _ in range(others)]
    for n in range(PARTITIONS):
        for _ in range(random.randrange(4)):
            world.appended((TOPIC, n))
        if random.random() < 0.6:
            world.boundary[n] = len(world.kafka[TOPIC, n])
    world.show()
    polling: dict[Consumer, asyncio.Task[None]] = {}
    actions = ["poll"] * 6 + ["append", "commit", "commit", "cross", "speed", "down", "cold", "cut"]
    for _ in range(steps):
        pending = [n for n in range(PARTITIONS) if n not in world.boundary]
        match random.choice(actions):
            case "poll":
                consumer = random.choice(consumers)
                if consumer in polling:
                    await polling[consumer]
                polling[consumer] = asyncio.create_task(
                    consumer.polls(
                        max_wait_ms=random.choice([0, 3, 15]),
                        min_bytes=random.choice([1, 1, 150]),
                        max_bytes=random.choice([1 << 20, 200]),
                    )
                )
            case "append":
                world.appended(random.choice([CLASSIC, *TRACKED]))
            case "commit" if world.boundary and not world.bench.plane.down:
                await world.committed(random.choice(sorted(world.boundary)))
            case "cross" if pending and not world.bench.plane.down:
                world.advances(random.choice(pending))
            case "speed":
                world.slow = random.choice([0.0, 0.5, 1.0])
            case "down":
                world.bench.plane.down = random.random() < 0.3
            case "cold":
                forget_everything(world.bench)
            case "cut":
                for task in polling.values():
                    task.cancel()
                await asyncio.gather(*polling.values(), return_exceptions=True)
                polling, connection = {}, world.connection()
                for consumer in consumers:
                    consumer.reconnects(connection)
        await asyncio.sleep(random.choice([0.0, 0.0, 0.002]))
    for task in polling.values():
        await task
    world.slow, world.bench.plane.down = 0.0, False
    for consumer in consumers:
        await consumer.reads_to_the_end()
    handler: Any = world.bench.rules[ApiKey.FETCH].handler
    sessions = handler.handler.__self__.sessions
    assert sessions.partitions == sum(len(s.partitions) for s in sessions._sessions.values())


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 60),
    with_session=st.booleans(),
    others=st.integers(0, 2),
)
async def test_a_consumer_reads_everything_once_whatever_is_late(
    tmp_path: Path, seed: int, steps: int, with_session: bool, others: int
) -> None:
    with pytest.MonkeyPatch.context() as patch_:
        for name, seconds in (
            ("FIRST_ANSWER_S", 0.006), ("BESIDE_S", 0.002), ("KAFKA_ROUND_S", 0.005),
            ("LAST_ROUND_S", 0.001), ("BREATH_S", 0.001),
        ):  # fmt: skip
            patch_.setattr(tracked_fetch, name, seconds)
        bench = TrackedBench(tmp_path)
        try:
            await bench.lease()
            await play(World(bench, Random(seed)), steps, with_session, others)
        finally:
            bench.plane.down = False
            await bench.close()
