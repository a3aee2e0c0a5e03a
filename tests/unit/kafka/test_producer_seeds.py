"""The way back is read before the pause, in steps of bytes; inside it only what is new."""

from __future__ import annotations

import struct
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_tail import LastSequence, ProducerSeed, ProducerTail
from tideline.kafka.errors import KafkaError
from tideline.kafka.log_reader import FETCH_BYTES, STEP_BYTES, FetchedPiece, TailScanner
from tideline.kafka.observer import OffsetAnswer, PartitionLayout

LOG = TopicIdPartition(UUID(int=1), 0)
LAYOUT = PartitionLayout(0, 1, 5, (1,), (1,))
RECORDS = 10
LONG_AFTER = 10**12
"""ms: no client sends a batch of the log again."""


def record_batch(offset: int, producer: int, sequence: int, size: int = 0) -> bytes:
    body = struct.pack(
        ">ibIhiqqqhii", 5, 2, 0, 0, RECORDS - 1, 0, offset, producer, 0, sequence, RECORDS
    )
    body += bytes(max(0, size - len(body) - 12))
    return struct.pack(">qi", offset, len(body)) + body


class FakeLog:
    """Batches of ten records; producer 2 wrote only the very first five. As a broker does, a fetch
    gives whole batches up to its bytes, and one at least."""

    def __init__(self, batches: int, size: int = 0) -> None:
        self.batches, self.size = batches, size
        self.log_start = 0
        self.reads: list[int] = []
        self.read_bytes = 0
        self.compacted = range(0)
        """Numbers of batches that are there no more."""
        self.refusals: dict[int, Exception] = {}
        """By the number of the read that is refused."""

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = FETCH_BYTES,
        **_: Any,
    ) -> FetchedPiece:
        self.reads.append(offset)
        if (refusal := self.refusals.get(len(self.reads))) is not None:
            raise refusal
        if offset < self.log_start:
            raise KafkaError(ErrorCode.offset_out_of_range, "fetch")
        data = b""
        for n in range(offset // RECORDS, self.batches):
            if n in self.compacted:
                continue
            writer, sequence = (2, n) if n < 5 else (1, n - 5)
            one = record_batch(n * RECORDS, writer, sequence * RECORDS, self.size_of(n))
            if data and len(data) + len(one) > max_bytes:
                break
            data += one
        self.read_bytes += len(data)
        return FetchedPiece(data, self.end, self.log_start)

    def size_of(self, number: int) -> int:
        return self.size

    @property
    def end(self) -> int:
        return self.batches * RECORDS

    def active(self) -> list[LastSequence]:
        return [
            LastSequence(1, 0, (self.batches - 5) * RECORDS - 1, self.end - RECORDS),
            LastSequence(2, 0, 5 * RECORDS - 1, 4 * RECORDS),
        ]

    async def offset(self, topic: str, partition: int, spec: int, **_: Any) -> OffsetAnswer:
        """The timestamp of a batch is its offset."""
        first = max(self.log_start, -(-spec // RECORDS) * RECORDS)
        return OffsetAnswer(first if first < self.end else -1, -1, -1)


def scanner_of(log: FakeLog, *, now_ms: int = LONG_AFTER, **bounds: int) -> TailScanner:
    return TailScanner(cast(Any, log), cast(Any, log), now_ms=lambda: now_ms, **bounds)


async def look_back(
    log: FakeLog, scanner: TailScanner, local_start: int = 0, layout: PartitionLayout = LAYOUT
) -> ProducerTail:
    return await scanner.look_back(
        "orders",
        LOG,
        layout,
        log.active(),
        log_start=log.log_start,
        local_start=local_start,
        end=log.end,
    )


def seeds_of(tail: ProducerTail, log: FakeLog, producer: int) -> list[ProducerSeed]:
    return [s for s in tail.seeds(log.active(), log.end) if s.producer_id == producer]


async def test_the_scan_goes_back_until_every_producer_has_its_five_batches() -> None:
    log = FakeLog(1_000)
    tail = await look_back(log, scanner_of(log))
    assert [s.base_sequence for s in seeds_of(tail, log, 2)] == [0, 10, 20, 30, 40]
    assert seeds_of(tail, log, 1)[-1].last_offset == 9_999


async def test_the_scan_passes_over_offsets_that_compaction_has_taken() -> None:
    """Of a topic that had ``cleanup.policy=compact`` once: a step may find no batch at all."""
    log = FakeLog(1_000)
    log.compacted = range(5, 994)
    tail = await look_back(log, scanner_of(log))
    assert [s.base_sequence for s in seeds_of(tail, log, 2)] == [0, 10, 20, 30, 40]
    assert [s.last_offset for s in seeds_of(tail, log, 1)] == [9959, 9969, 9979, 9989, 9999]


async def test_it_never_goes_below_what_the_broker_has_locally() -> None:
    log = FakeLog(1_000)
    tail = await look_back(log, scanner_of(log), local_start=5_000)
    assert min(log.reads) >= 5_000
    (unlocated,) = seeds_of(tail, log, 2)
    assert unlocated.is_unlocated
    assert unlocated.last_sequence == 49


@pytest.mark.parametrize(
    "size", [100, 100_000, 1_000_000, 5_000_000], ids="{} bytes a batch".format
)
async def test_a_step_is_bounded_by_bytes_whatever_its_batches_weigh(size: int) -> None:
    log = FakeLog(300, size)
    bound = 16 * 1024 * 1024
    await look_back(log, scanner_of(log, max_back_bytes=bound))
    # What lies behind a step comes with it.
    assert log.read_bytes <= 2 * (bound + 2 * STEP_BYTES + size)


async def test_a_step_is_bounded_where_older_batches_weigh_ten_thousand_times_as_much() -> None:
    class Growing(FakeLog):
        def size_of(self, number: int) -> int:
            return 1_000_000 if number < 800 else 100

    log = Growing(1_000)
    bound = 16 * 1024 * 1024
    await look_back(log, scanner_of(log, max_back_bytes=bound))
    assert log.read_bytes <= 2 * (bound + 2 * STEP_BYTES)


async def test_in_the_pause_only_what_was_appended_since_is_read() -> None:
    log = FakeLog(600)
    scanner = scanner_of(log)
    await look_back(log, scanner, local_start=3_000)
    assert not seeds_of(await look_back(log, scanner, local_start=3_000), log, 2)[0].base_offset > 0
    log.reads.clear()
    assert await scanner.catch_up("orders", LOG, LAYOUT, log.end) is not None
    assert log.reads == []
    log.batches += 3
    tail = await scanner.catch_up("orders", LOG, LAYOUT, log.end)
    assert log.reads == [6_000]
    assert tail is not None
    assert seeds_of(tail, log, 1)[-1].last_offset == 6_029


async def test_of_another_leader_epoch_nothing_is_known_in_the_pause() -> None:
    log = FakeLog(10)
    scanner = scanner_of(log)
    await look_back(log, scanner)
    moved = PartitionLayout(0, 2, 6, (1, 2), (1, 2))
    assert await scanner.catch_up("orders", LOG, moved, log.end) is None
    log.reads.clear()
    await look_back(log, scanner, layout=moved)
    assert log.reads


async def test_an_attempt_that_a_broker_ended_goes_on_where_it_was() -> None:
    log = FakeLog(300, 1_000_000)
    scanner = scanner_of(log)
    log.refusals[10] = KafkaError(ErrorCode.throttling_quota_exceeded, "fetch")
    with pytest.raises(KafkaError):
        await look_back(log, scanner)
    log.refusals.clear()
    log.reads.clear()
    await look_back(log, scanner)
    assert max(log.reads) < log.end - 10 * RECORDS


async def test_what_retention_takes_during_the_scan_is_not_known() -> None:
    log = FakeLog(1_000)
    scanner = scanner_of(log)
    await look_back(log, scanner, local_start=9_000)
    log.batches += 500
    log.log_start = 12_000
    tail = await look_back(log, scanner, local_start=9_000)
    assert tail.scanned_from >= 12_000
    assert seeds_of(tail, log, 2)[0].is_unlocated
    assert [s.base_offset for s in seeds_of(tail, log, 1)] == [14_950 + 10 * n for n in range(5)]


async def test_a_hole_in_an_answer_is_an_error_and_never_a_missing_batch() -> None:
    """The newest batch would otherwise be missed, and its retry be stored a second time."""

    class Cut(FakeLog):
        async def fetch(self, topic: str, partition: int, offset: int, **_: Any) -> FetchedPiece:
            piece = await super().fetch(topic, partition, offset)
            return FetchedPiece(b"", piece.high_watermark, 0) if len(self.reads) == 2 else piece

    log = Cut(1_000)
    with pytest.raises(KafkaError, match="no whole batch"):
        await look_back(log, scanner_of(log))
