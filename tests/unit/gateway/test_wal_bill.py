"""What the objects of a gateway cost: puts a second, and what a batch waits, on a clock of its own.

`python -m pytest -s tests/unit/gateway/test_wal_bill.py` prints the table of docs/performance.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.simulation.loop import VirtualLoop, deterministic
from tests.unit.gateway.wal_bench import Bench

RATES = ((0.5, 50), (1, 50), (10, 50), (62, 16_384), (100, 50), (1_000, 50))
"""Batches a second, and bytes of each."""
PUT_MS = (15, 60, 120)
COMMIT_S = 0.005
FOR_S = 20.0
MOST_A_SECOND = 4.2


@contextmanager
def virtual() -> Iterator[VirtualLoop]:
    """Time is what the loop says, for everybody who asks."""
    loop = VirtualLoop()
    with deterministic(loop, 1):
        try:
            yield loop
        finally:
            loop.finish()
            loop.close()


def shipped() -> Bench:
    """As a gateway is set by default."""
    return Bench(max_delay_s=0.25, max_bytes=8 << 20, buffer_max_bytes=128 << 20)


def slowed(bench: Bench, put_s: float, commit_s: float) -> None:
    """The store and Postgres answer after so long."""
    put, commit = bench.store.put, bench.plane.commit_file

    async def slow_put(key: str, body: bytes) -> None:
        await asyncio.sleep(put_s)
        await put(key, body)

    async def slow_commit(*given: Any, **named: Any) -> Any:
        await asyncio.sleep(commit_s)
        return await commit(*given, **named)

    bench.store.put = slow_put  # type: ignore[method-assign]
    bench.plane.commit_file = slow_commit  # type: ignore[method-assign]


async def bill(rate: float, size: int, put_s: float) -> tuple[float, float, float]:
    """Puts a second, and what a batch waits in ms: the median, and of a hundred the longest."""
    bench, loop, chance = shipped(), asyncio.get_running_loop(), random.Random(1)
    slowed(bench, put_s, COMMIT_S)
    waited: list[float] = []
    waiting: set[asyncio.Task[None]] = set()

    async def one() -> None:
        began = loop.time()
        await bench.append(payload=size)
        waited.append((loop.time() - began) * 1000)

    begin = loop.time()
    while loop.time() < begin + FOR_S:
        task = asyncio.ensure_future(one())
        waiting.add(task)
        task.add_done_callback(waiting.discard)
        await asyncio.sleep(chance.expovariate(rate))
    puts = len(bench.store.puts)
    await asyncio.gather(*waiting)
    await bench.writer.close(5.0)
    waited.sort()
    return puts / FOR_S, waited[len(waited) // 2], waited[len(waited) * 99 // 100]


@pytest.mark.parametrize("put_ms", PUT_MS)
@pytest.mark.parametrize(("rate", "size"), RATES)
def test_a_gateway_puts_four_objects_a_second_and_what_tells_of_them(
    rate: float, size: int, put_ms: int
) -> None:
    with virtual() as loop:
        puts, median, p99 = loop.run_until_complete(bill(rate, size, put_ms / 1000))
    print(f"| {rate:g} x {size} B | {put_ms} | {puts:.2f} | {median:.0f} | {p99:.0f} |")
    assert puts <= MOST_A_SECOND


def test_a_lone_batch_after_a_silence_goes_at_once_and_the_next_one_waits() -> None:
    async def play() -> list[float]:
        bench, loop = shipped(), asyncio.get_running_loop()
        put_at: list[float] = []
        put = bench.store.put

        async def noted(key: str, body: bytes) -> None:
            put_at.append(loop.time())
            await put(key, body)

        bench.store.put = noted  # type: ignore[method-assign]
        for at in (1.0, 1.1, 1.2, 1.6, 3.0):
            loop.call_at(at, bench.append)
        await asyncio.sleep(4.0)
        return put_at[:4]

    with virtual() as loop:
        at = loop.run_until_complete(play())
    assert at == pytest.approx([1.0, 1.25, 1.6, 2.35], abs=0.01), "the last one only tells"


def test_outcomes_get_an_object_of_their_own_once_in_ten_seconds() -> None:
    async def play() -> int:
        bench = shipped()
        for _ in range(15):
            await bench.append()
            await asyncio.sleep(2.0)
        return len(bench.store.puts) - 15

    with virtual() as loop:
        assert loop.run_until_complete(play()) in (3, 4)


def test_outcomes_are_told_at_once_when_postgres_does_not_answer_a_renewal() -> None:
    """Whoever outlives it has told, and loses nothing with it."""

    async def play() -> tuple[int, int]:
        bench = shipped()
        await bench.append()
        await asyncio.sleep(2.0)
        await bench.append()
        await asyncio.sleep(2.0)
        before = len(bench.store.puts)
        bench.lease.missed()
        await asyncio.sleep(0.1)
        return before, len(bench.store.puts)

    with virtual() as loop:
        assert loop.run_until_complete(play()) == (3, 4)
