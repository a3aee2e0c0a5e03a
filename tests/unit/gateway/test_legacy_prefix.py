"""A prefix that begins in the formats of before Kafka 0.11 is read to its end and beyond."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.gateway.fakes import TOPIC, record_batch, tracked_row
from tests.unit.gateway.tracked_bench import KafkaLog, TrackedBench, fetch, leased, produce, serving
from tests.unit.kafka.test_batches import batch
from tests.unit.kafka.test_legacy_batches import legacy
from tideline.gateway.context import ApiKey
from tideline.kafka.batches import iter_fetched

PENDING = tracked_row(generation=1)
SUFFIX = tracked_row(generation=2, boundary=100, boundary_epoch=7)
OLD = legacy(94, 2, magic=0) + legacy(96, 2, codec=1) + legacy(98)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    async with leased(tmp_path) as made:
        yield made


async def read(bench: TrackedBench, offset: int, partition: int = 0) -> tuple[str, list[int]]:
    """Error and last offsets of one partition of a fetch of two."""
    answer = await bench.ask(fetch((TOPIC, partition, offset), (TOPIC, 1 - partition, offset)))
    ((row,),) = (
        [r for r in topic.partitions if r.partition_index == partition]
        for topic in answer.responses
    )
    return row.error_code.name, [h.last_offset for h in iter_fetched(row.records or b"")]


def kafka(bench: TrackedBench, records: bytes, other: bytes = b"", end: int = 110) -> None:
    logs = {(TOPIC, 0): KafkaLog(records, end), (TOPIC, 1): KafkaLog(other, end)}
    bench.client.broker[ApiKey.FETCH] = serving(logs)


async def test_a_consumer_goes_from_the_old_formats_into_the_suffix(bench: TrackedBench) -> None:
    bench.show(SUFFIX, tracked_row(1, boundary=100, boundary_epoch=7))
    await bench.ask(produce((TOPIC, 0, record_batch(2))))
    kafka(bench, OLD + batch(99, 1) + batch(100, 3), batch(99, 1))
    assert await read(bench, 94) == ("none", [94, 95, 97, 98, 99])
    assert await read(bench, 100) == ("none", [101])


async def test_a_log_that_is_old_to_its_last_record_ends_at_the_boundary(
    bench: TrackedBench,
) -> None:
    bench.show(SUFFIX, tracked_row(1, boundary=100, boundary_epoch=7))
    kafka(bench, OLD + legacy(99) + legacy(100) + legacy(101, 2, codec=1), batch(99, 1))
    assert await read(bench, 94) == ("none", [94, 95, 97, 98, 99])


async def test_while_pending_the_ceiling_holds_for_old_formats_too(bench: TrackedBench) -> None:
    bench.show(PENDING, tracked_row(1, generation=1))
    kafka(bench, OLD, b"", end=99)
    assert await read(bench, 94) == ("none", [94, 95, 97, 98])
    bench.lapse()
    kafka(bench, OLD + legacy(99, 3), b"", end=102)
    assert await read(bench, 94) == ("none", [94, 95, 97, 98]), "what was seen, and no more"


async def test_bytes_that_are_no_batches_fail_their_partition_alone(bench: TrackedBench) -> None:
    bench.show(SUFFIX, tracked_row(1, boundary=100, boundary_epoch=7))
    damaged = bytearray(batch(98, 2))
    damaged[16] = 77
    kafka(bench, bytes(damaged), OLD + legacy(99))
    assert await read(bench, 94) == ("kafka_storage_error", [])
    assert await read(bench, 94, partition=1) == ("none", [94, 95, 97, 98, 99])
    assert not bench.client.closed
