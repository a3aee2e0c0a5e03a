"""Fetch across merged segments: what a consumer is told while the suffix is tiered under it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.unit.gateway.fakes import LOG, TOPIC, Suffix, record_batch, tracked_row
from tests.unit.gateway.merged_log import merge
from tests.unit.gateway.tracked_bench import (
    Fetched,
    TrackedBench,
    fetch,
    fetched,
    forget_everything,
    leased,
    produce,
)
from tideline.domain.ids import TopicIdPartition

EPOCH = 7
SUFFIX = tracked_row(generation=2, boundary=100, boundary_epoch=EPOCH)
OTHER = tracked_row(1, boundary=50, boundary_epoch=EPOCH)
OTHER_LOG = TopicIdPartition(LOG.topic_id, 1)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    async with leased(tmp_path) as made:
        made.show(SUFFIX, OTHER)
        yield made


def suffix(bench: TrackedBench, log: TopicIdPartition = LOG) -> Suffix:
    return bench.plane.suffix(log)


def merge_first(bench: TrackedBench, count: int, log: TopicIdPartition = LOG) -> None:
    merge(bench.store, suffix(bench, log), count, leader_epoch=EPOCH)


async def appended(bench: TrackedBench, count: int, partition: int = 0) -> None:
    for _ in range(count):
        batch = record_batch(2, payload=b"x" * 50)
        await bench.ask(produce((TOPIC, partition, batch)))


async def ask(bench: TrackedBench, offset: int, **bounds: Any) -> Fetched:
    response = await bench.ask(fetch((TOPIC, 0, offset), **bounds))
    return fetched(response)[TOPIC, 0]


def reads(region: str) -> float:
    return REGISTRY.get_sample_value(f"inkless_hybrid_{region}_reads_total") or 0.0


async def test_a_consumer_goes_from_segment_to_segment_into_the_wal(bench: TrackedBench) -> None:
    await appended(bench, 6)
    merge_first(bench, 2)
    merge_first(bench, 2)
    for offset, offsets in ((100, [100, 102]), (104, [104, 106]), (108, [108, 110])):
        answer = await ask(bench, offset)
        assert (answer.error, answer.offsets) == ("none", offsets)
        assert (answer.high_watermark, answer.last_stable_offset) == (112, 112)
        assert answer.epochs == {EPOCH}
    assert (await ask(bench, 112)).offsets == []


async def test_an_answer_out_of_a_segment_waits_for_no_more_bytes(bench: TrackedBench) -> None:
    """A consumer with a large fetch.min.bytes would wait at each segment's end."""
    await appended(bench, 3)
    merge_first(bench, 3)
    assert (await ask(bench, 104, max_wait_ms=60_000, min_bytes=1 << 20)).offsets == [104]


async def test_each_region_counts_its_reads(bench: TrackedBench) -> None:
    await appended(bench, 3)
    merge_first(bench, 2)
    before = reads("tiered"), reads("diskless")
    await ask(bench, 100)
    assert (reads("tiered"), reads("diskless")) == (before[0] + 1, before[1])
    await ask(bench, 104)
    assert (reads("tiered"), reads("diskless")) == (before[0] + 1, before[1] + 1)


async def test_batches_that_were_merged_and_collected_between_finding_and_reading_are_found_anew(
    bench: TrackedBench,
) -> None:
    await appended(bench, 4)
    await appended(bench, 1, partition=1)
    forget_everything(bench)

    def merged_and_collected() -> None:
        merge_first(bench, 4)
        for key in {b.object_key for b in suffix(bench, OTHER_LOG).batches} ^ set(
            bench.store.objects
        ):
            del bench.store.objects[key]

    bench.plane.after_find = merged_and_collected
    response = fetched(await bench.ask(fetch((TOPIC, 0, 102), (TOPIC, 1, 50))))
    assert response[TOPIC, 0].error == "none"
    assert response[TOPIC, 0].offsets == [102, 104, 106]
    assert response[TOPIC, 1].offsets == [50]


async def test_what_retention_took_between_finding_and_reading_is_out_of_range(
    bench: TrackedBench,
) -> None:
    await appended(bench, 4)
    forget_everything(bench)

    def expired() -> None:
        suffix(bench).start = 108
        bench.store.objects.clear()

    bench.plane.after_find = expired
    assert (await ask(bench, 102)).error == "offset_out_of_range"


async def test_an_object_that_is_gone_for_no_reason_is_an_error_of_its_partition_alone(
    bench: TrackedBench,
) -> None:
    await appended(bench, 1)
    await appended(bench, 1, partition=1)
    forget_everything(bench)
    (lost,) = suffix(bench).batches
    del bench.store.objects[lost.object_key]
    response = fetched(await bench.ask(fetch((TOPIC, 0, 100), (TOPIC, 1, 50))))
    assert response[TOPIC, 0].error == "kafka_storage_error"
    assert response[TOPIC, 1].offsets == [50]


async def test_a_segment_that_cannot_be_read_is_an_error_that_consumers_retry(
    bench: TrackedBench,
) -> None:
    await appended(bench, 3)
    merge_first(bench, 2)
    forget_everything(bench)
    bench.store.down = True
    assert (await ask(bench, 100)).error == "kafka_storage_error"
    bench.store.down = False
    assert (await ask(bench, 100)).offsets == [100, 102]


async def test_reading_of_segments_can_be_switched_off(tmp_path: Path) -> None:
    bench = TrackedBench(tmp_path, hybrid_read_enabled="false")
    await bench.lease()
    bench.show(SUFFIX)
    await appended(bench, 3)
    merge_first(bench, 2)
    assert (await ask(bench, 100)).error == "kafka_storage_error"
    assert (await ask(bench, 104)).offsets == [104]
    await bench.close()


async def test_an_answer_is_bounded_over_all_partitions(bench: TrackedBench) -> None:
    await appended(bench, 4)
    await appended(bench, 4, partition=1)
    merge_first(bench, 4)
    merge_first(bench, 4, OTHER_LOG)
    size = suffix(bench).segments[0].size_bytes
    answers = fetched(await bench.ask(fetch((TOPIC, 0, 100), (TOPIC, 1, 50), max_bytes=size + 10)))
    assert answers[TOPIC, 0].offsets == [100, 102, 104, 106]
    assert answers[TOPIC, 1].offsets == []
    assert answers[TOPIC, 1].error == "none"
