"""One object that cannot be read, in a fetch of several partitions: the others are served."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from tests.unit.gateway.fakes import LOG, TOPIC, record_batch, tracked_row
from tests.unit.gateway.tracked_bench import (
    Fetched,
    TrackedBench,
    fetch,
    fetched,
    forget_everything,
    produce,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.wal_footer import decode_tail

OTHER = TopicIdPartition(LOG.topic_id, 1)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    bench = TrackedBench(tmp_path)
    bench.show(*(tracked_row(n, boundary=100, boundary_epoch=1) for n in range(2)))
    await bench.lease()
    yield bench
    await bench.close()


async def appended(bench: TrackedBench, *partitions: int) -> str:
    """One batch for each, in one object; its key."""
    batch = record_batch(1, payload=b"x" * 50)
    await bench.ask(produce(*((TOPIC, partition, batch) for partition in partitions)))
    return bench.store.puts[-1]


async def ask(bench: TrackedBench, first: int = 100, second: int = 100) -> tuple[Fetched, Fetched]:
    """Both partitions in one fetch, nothing of them in memory."""
    forget_everything(bench)
    answer = fetched(await bench.ask(fetch((TOPIC, 0, first), (TOPIC, 1, second))))
    return answer[TOPIC, 0], answer[TOPIC, 1]


def unreadable(why: str) -> float:
    return REGISTRY.get_sample_value("inkless_gateway_suffix_unreadable_total", {"why": why}) or 0.0


def lose(bench: TrackedBench, key: str) -> None:
    del bench.store.objects[key]


def cut(bench: TrackedBench, key: str) -> None:
    bench.store.objects[key] = bench.store.objects[key][:70]


def flip(bench: TrackedBench, key: str) -> None:
    body = bytearray(bench.store.objects[key])
    body[70] ^= 1
    bench.store.objects[key] = bytes(body)


def forbid(bench: TrackedBench, key: str) -> None:
    bench.store.refused.add(key)


def replace(bench: TrackedBench, key: str) -> None:
    """Another object under its key: batches of another length."""
    size = len(bench.store.objects[key])
    bench.store.objects[key] = record_batch(7, payload=b"y" * (size - 61))


DAMAGES: list[tuple[Callable[[TrackedBench, str], None], str]] = [
    (lose, "missing"),
    (cut, "damaged"),
    (flip, "damaged"),
    (forbid, "refused"),
    (replace, "damaged"),
]


@pytest.mark.parametrize(("damage", "why"), DAMAGES, ids=lambda d: getattr(d, "__name__", d))
async def test_a_partition_whose_object_is_unreadable_fails_alone(
    bench: TrackedBench, damage: Callable[[TrackedBench, str], None], why: str
) -> None:
    broken, counted = await appended(bench, 0), unreadable(why)
    await appended(bench, 1)
    damage(bench, broken)
    for _ in range(2):
        first, second = await ask(bench)
        assert (first.error, first.offsets) == ("kafka_storage_error", [])
        assert (second.error, second.offsets) == ("none", [100])
    assert unreadable(why) == counted + 2


@pytest.mark.parametrize(("damage", "why"), DAMAGES, ids=lambda d: getattr(d, "__name__", d))
async def test_what_lies_before_the_damage_is_read_and_what_lies_behind_it_is_not(
    bench: TrackedBench, damage: Callable[[TrackedBench, str], None], why: str
) -> None:
    await appended(bench, 0)
    broken = await appended(bench, 0)
    await appended(bench, 0)
    damage(bench, broken)
    assert (await ask(bench))[0].offsets == [100]
    assert (await ask(bench, 101))[0].error == "kafka_storage_error"
    assert (await ask(bench, 102))[0].offsets == [102]


async def test_of_a_truncated_object_that_two_partitions_share_the_whole_part_is_served(
    bench: TrackedBench,
) -> None:
    key = await appended(bench, 0, 1)
    body = bench.store.objects[key]
    last = decode_tail(body, len(body)).batches[-1]
    bench.store.objects[key] = body[: last.byte_offset + last.byte_size - 1]
    first, second = await ask(bench)
    assert (first.error, first.offsets) == ("none", [100])
    assert (second.error, second.offsets) == ("kafka_storage_error", [])


async def test_bytes_that_were_damaged_on_their_way_are_read_anew(bench: TrackedBench) -> None:
    key = await appended(bench, 0)
    whole = bench.store.objects[key]
    flip(bench, key)
    assert (await ask(bench))[0].error == "kafka_storage_error"
    bench.store.objects[key] = whole
    answer = fetched(await bench.ask(fetch((TOPIC, 0, 100))))
    assert answer[TOPIC, 0].offsets == [100]


async def test_damage_is_not_hidden_by_the_crc_that_log_append_time_needs(tmp_path: Path) -> None:
    bench = TrackedBench(tmp_path)
    rows = [tracked_row(n, boundary=100, boundary_epoch=1) for n in range(2)]
    bench.show(*rows, timestamp_type="LogAppendTime")
    await bench.lease()
    flip(bench, await appended(bench, 0))
    assert (await ask(bench))[0].error == "kafka_storage_error"
    await bench.close()


async def test_a_hole_is_an_error_of_its_partition_and_an_alarm(bench: TrackedBench) -> None:
    for _ in range(3):
        await appended(bench, 0, 1)
    counted = unreadable("hole")
    del bench.plane.suffix(LOG).batches[1]
    assert [answer.offsets for answer in await ask(bench)] == [[100], [100, 101, 102]]
    first, second = await ask(bench, 101, 101)
    assert (first.error, first.offsets) == ("kafka_storage_error", [])
    assert (second.error, second.offsets) == ("none", [101, 102])
    assert unreadable("hole") == counted + 1
