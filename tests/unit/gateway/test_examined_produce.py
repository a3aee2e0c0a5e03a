"""Batches are looked into before they are appended: alone, in order, and beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import set_within
from tests.unit.gateway.fakes import TOPIC, record, record_batch, tracked_row
from tests.unit.gateway.tracked_bench import TrackedBench, outcomes, produce
from tests.unit.kafka.test_produced import NOW, built, raw
from tideline.domain.topic_configs import TopicLimits
from tideline.gateway.produce import examination
from tideline.gateway.produce.examination import AT_ONCE_RECORDS, Examiner
from tideline.gateway.unpacking import Unpacking
from tideline.kafka.produced import ValidBatch

POISON = raw(b"x" * 22, 900_000)
LARGE = record_batch(AT_ONCE_RECORDS + 1)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    bench = TrackedBench(tmp_path)
    bench.show(*(tracked_row(n, boundary=100, boundary_epoch=1) for n in range(8)))
    await bench.lease()
    yield bench
    await bench.close()


async def test_a_poison_batch_is_refused_and_its_partition_alone(bench: TrackedBench) -> None:
    answer = await bench.ask(
        produce((TOPIC, 0, record_batch(2)), (TOPIC, 1, POISON), (TOPIC, 2, LARGE))
    )
    assert outcomes(answer) == {
        (TOPIC, 0): ("none", 100),
        (TOPIC, 1): ("invalid_record", -1),
        (TOPIC, 2): ("none", 100),
    }
    assert outcomes(await bench.ask(produce((TOPIC, 1, record_batch(1))))) == {
        (TOPIC, 1): ("none", 100)
    }


async def test_wrong_records_are_named_where_the_version_has_room_for_them(
    bench: TrackedBench,
) -> None:
    broken = raw(record(0, 0, b"a") + record(0, 7, b"b"), 2)
    ((row,),) = (
        t.partition_responses for t in (await bench.ask(produce((TOPIC, 0, broken)))).responses
    )
    ((index, message),) = ((e.batch_index, e.batch_index_error_message) for e in row.record_errors)
    assert index == 1
    assert "offset delta 7" in message
    assert row.error_message == message
    older = await bench.ask(produce((TOPIC, 0, broken), version=7))
    assert outcomes(older)[TOPIC, 0][0] == "invalid_record"


async def test_a_timestamp_far_ahead_is_refused_and_does_not_outlive_retention(
    bench: TrackedBench,
) -> None:
    far = built([(253_370_764_800_000, None, b"v", [])])
    assert outcomes(await bench.ask(produce((TOPIC, 0, far)))) == {
        (TOPIC, 0): ("invalid_timestamp", -1)
    }
    lying = raw(record(0, 0, b"v"), max_timestamp=2**62)
    assert outcomes(await bench.ask(produce((TOPIC, 0, lying))))[TOPIC, 0] == ("none", 100)
    assert bench.plane.suffix().batches[-1].max_timestamp == NOW


class Held(Examiner):
    """Batches that need the thread wait there until they are let go on."""

    def __init__(self) -> None:
        super().__init__(Unpacking())
        self.go_on = threading.Event()
        self.threads: list[str] = []

    def _judged(self, *arguments: Any) -> Any:
        self.threads.append(threading.current_thread().name)
        if threading.current_thread() is not threading.main_thread():
            set_within("the test to let it go on", self.go_on)
        return super()._judged(*arguments)


@pytest.fixture
async def held(bench: TrackedBench, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Held]:
    held = Held()
    object.__setattr__(bench.parts, "examiner", held)
    bench.use(bench.parts)
    yield held
    held.go_on.set()
    held._unpacking.close()


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_large_batch_leaves_the_loop_free_and_keeps_its_place(
    bench: TrackedBench, held: Held
) -> None:
    """The next produce of its connection does not overtake it."""
    first = asyncio.create_task(bench.ask(produce((TOPIC, 0, LARGE))))
    await turns()
    second = asyncio.create_task(bench.ask(produce((TOPIC, 0, record_batch(1)))))
    await turns()
    assert not first.done()
    assert not second.done()
    assert bench.plane.suffix().batches == []
    held.go_on.set()
    assert outcomes(await first)[TOPIC, 0] == ("none", 100)
    assert outcomes(await second)[TOPIC, 0] == ("none", 100 + AT_ONCE_RECORDS + 1)
    assert held.threads[0].startswith("unpacking")


async def test_connections_do_not_wait_for_each_other(bench: TrackedBench, held: Held) -> None:
    slow = asyncio.create_task(bench.ask(produce((TOPIC, 0, LARGE))))
    await turns()
    other = type(bench.client)()
    answer = await bench.ask(produce((TOPIC, 1, record_batch(1))), other)
    assert outcomes(answer)[TOPIC, 1] == ("none", 100)
    assert not slow.done()
    held.go_on.set()
    await slow


async def test_what_unpacks_to_more_than_a_little_is_unpacked_beside_the_loop(
    bench: TrackedBench, held: Held
) -> None:
    held.go_on.set()
    packed = built([(NOW, None, bytes(300_000), [])], 4)
    assert len(packed) < 1_000
    assert outcomes(await bench.ask(produce((TOPIC, 0, packed))))[TOPIC, 0] == ("none", 100)
    assert held.threads[-1].startswith("unpacking")


async def test_many_small_batches_of_one_request_are_not_read_at_one_go(
    bench: TrackedBench, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.go_on.set()
    monkeypatch.setattr(examination, "AT_ONCE_RECORDS", 5)
    await bench.ask(produce(*((TOPIC, n, record_batch(2)) for n in range(3))))
    assert [t.startswith("unpacking") for t in held.threads] == [False, False, True]


async def test_small_batches_that_unpack_to_much_together_are_not_unpacked_at_one_go(
    bench: TrackedBench, held: Held
) -> None:
    """A request of 64 KiB has place for hundreds of them."""
    held.go_on.set()
    packed = built([(NOW, None, bytes(60_000), [])], 4)
    batches = [(TOPIC, n, packed) for n in range(8)]
    assert len(packed) * len(batches) < 2_000
    for _ in range(2):  # also when all that can be asked is known
        held.threads.clear()
        await bench.ask(produce(*batches))
        beside = [t.startswith("unpacking") for t in held.threads]
        assert beside[-4:] == [True] * 4
        assert beside.count(False) <= 10, "four of a request, and one that is too many, each way"


async def test_a_record_with_thousands_of_headers_is_read_beside_the_loop(
    bench: TrackedBench, held: Held
) -> None:
    held.go_on.set()
    batch = built([(NOW, None, b"v", [("", None)] * 20_000)])
    assert len(batch) < 64 * 1024
    answer = await bench.ask(produce((TOPIC, 0, batch)))
    assert outcomes(answer)[TOPIC, 0] == ("none", 100)
    assert held.threads[-1].startswith("unpacking")


def test_a_right_batch_is_not_copied() -> None:
    batch = record_batch(3)
    examined = Examiner(Unpacking()).at_once(batch, TopicLimits("CreateTime", 1_000), 9)
    assert isinstance(examined, ValidBatch)
    assert examined.records is batch


async def test_a_partition_that_crosses_while_others_are_looked_into_is_looked_into_beside_the_loop(
    bench: TrackedBench, held: Held
) -> None:
    crossed = tracked_row(1, boundary=100, boundary_epoch=1)
    bench.show(tracked_row(0), crossed)
    asked = asyncio.create_task(bench.ask(produce((TOPIC, 0, LARGE), (TOPIC, 1, LARGE))))
    await turns()
    bench.show(tracked_row(0, boundary=100, boundary_epoch=1), crossed)
    held.go_on.set()
    await asked
    assert len(held.threads) == 2
    assert all(thread.startswith("unpacking") for thread in held.threads)
