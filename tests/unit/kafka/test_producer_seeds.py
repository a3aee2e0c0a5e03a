"""The tail is scanned once before the pause, and inside it only what is new."""

from __future__ import annotations

import struct
from typing import Any, cast
from uuid import UUID

from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_tail import LastSequence, ProducerTail
from tideline.kafka.log_reader import STEP_OFFSETS, FetchedPiece, TailScanner
from tideline.kafka.observer import PartitionLayout

LOG = TopicIdPartition(UUID(int=1), 0)
LAYOUT = PartitionLayout(0, 1, 5, (1,), (1,))
RECORDS = 10


def record_batch(offset: int, producer: int, sequence: int) -> bytes:
    body = struct.pack(
        ">ibIhiqqqhii", 5, 2, 0, 0, RECORDS - 1, 0, offset, producer, 0, sequence, RECORDS
    )
    return struct.pack(">qi", offset, len(body)) + body


class FakeLog:
    """Batches of ten records; producer 2 wrote only the very first five."""

    def __init__(self, batches: int) -> None:
        self.reads: list[int] = []
        self.batches = batches

    async def fetch(self, topic: str, partition: int, offset: int, **_: Any) -> FetchedPiece:
        self.reads.append(offset)
        first = offset // RECORDS
        data = b"".join(
            record_batch(n * RECORDS, 2 if n < 5 else 1, (n if n < 5 else n - 5) * RECORDS)
            for n in range(first, min(first + 50, self.batches))
        )
        return FetchedPiece(data, self.batches * RECORDS, 0)

    def active(self) -> list[LastSequence]:
        return [
            LastSequence(1, 0, (self.batches - 5) * RECORDS - 1, 0),
            LastSequence(2, 0, 5 * RECORDS - 1, 0),
        ]


async def scan(log: FakeLog, scanner: TailScanner, **changes: Any) -> ProducerTail:
    spots: dict[str, int] = {"local_start": 0, "end": log.batches * RECORDS, **changes}
    return await scanner.scan("orders", LOG, LAYOUT, log.active(), **spots)


async def test_the_scan_goes_back_until_every_producer_has_its_five_batches() -> None:
    log = FakeLog(1_000)
    seeds = (await scan(log, TailScanner(cast(Any, log)))).seeds(log.active(), 10_000)
    assert [s.base_sequence for s in seeds if s.producer_id == 2] == [0, 10, 20, 30, 40]
    assert [s.last_offset for s in seeds if s.producer_id == 1][-1] == 9_999


async def test_it_never_goes_below_what_the_broker_has_locally() -> None:
    log = FakeLog(1_000)
    tail = await scan(log, TailScanner(cast(Any, log)), local_start=5_000)
    assert min(log.reads) >= 5_000
    (idle,) = [s for s in tail.seeds(log.active(), 10_000) if s.producer_id == 2]
    assert (idle.base_sequence, idle.last_sequence) == (49, 49)


async def test_its_bytes_are_bounded() -> None:
    log = FakeLog(1_000)
    tail = await scan(log, TailScanner(cast(Any, log), max_back_bytes=1))
    assert tail.scanned_from == 10_000 - STEP_OFFSETS


async def test_what_was_scanned_before_is_not_read_again() -> None:
    log = FakeLog(600)
    scanner = TailScanner(cast(Any, log))
    await scan(log, scanner)
    log.reads.clear()
    log.batches += 3
    tail = await scan(log, scanner)
    assert log.reads == [6_000]
    assert tail.seeds(log.active(), 6_030)[4].last_offset == 6_029


async def test_another_leader_epoch_is_scanned_anew() -> None:
    log = FakeLog(10)
    scanner = TailScanner(cast(Any, log))
    await scan(log, scanner)
    log.reads.clear()
    moved = PartitionLayout(0, 2, 6, (1, 2), (1, 2))
    await scanner.scan("orders", LOG, moved, log.active(), local_start=0, end=100)
    assert log.reads
