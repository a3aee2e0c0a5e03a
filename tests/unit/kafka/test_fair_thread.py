"""Whoever has work for the thread has it by turns: counted, not timed."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.waiting import within
from tideline.background import cancel_and_wait, spawn
from tideline.kafka.fair_thread import FairThread


class ByHand(Executor):
    """Runs the next piece of work when the test says so."""

    def __init__(self) -> None:
        self._pieces: list[Callable[[], Any]] = []

    def submit(self, work: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        self._pieces.append(partial(work, *arguments, **named))
        return Future()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pieces.clear()

    def run(self, pieces: int = 1) -> None:
        for _ in range(pieces):
            self._pieces.pop(0)()

    @property
    def left(self) -> int:
        return len(self._pieces)


async def given_to(thread: FairThread, asked: str, done: list[str]) -> list[asyncio.Task[Any]]:
    """Work of clients, each a letter, in this order."""
    tasks = [spawn(thread.run(client, partial(done.append, client)), client) for client in asked]
    await asyncio.sleep(0)
    return tasks


async def test_an_ordinary_client_waits_for_one_piece_of_each_other_however_many_they_have() -> (
    None
):
    by_hand, done = ByHand(), []
    tasks = await given_to(FairThread("test", by_hand), "a" * 50 + "b" * 50 + "z", done)
    by_hand.run(by_hand.left)
    assert done.index("z") == 2
    assert done == [*"abz", *"ab" * 49]
    await asyncio.gather(*tasks)


@given(st.text("abcd", min_size=1, max_size=30), st.text("abcd", max_size=30), st.integers(0, 30))
def test_between_two_pieces_of_one_client_everybody_who_waits_has_one(
    before: str, later: str, at: int
) -> None:
    async def play() -> None:
        by_hand, done = ByHand(), []
        thread = FairThread("test", by_hand)
        tasks = await given_to(thread, before, done)
        waiting = list(before)
        served: list[tuple[str, set[str]]] = []

        def one() -> None:
            by_hand.run()
            served.append((done[-1], set(waiting)))
            waiting.remove(done[-1])

        for _ in range(min(at, len(before))):
            one()
        tasks += await given_to(thread, later, done)
        waiting += later
        while by_hand.left:
            one()
        for first, (client, others) in enumerate(served):
            again = next((n for n in range(first + 1, len(served)) if served[n][0] == client), None)
            if again is not None:
                between = {who for who, _ in served[first + 1 : again]}
                assert others - {client} <= between | {client}
        await asyncio.gather(*tasks)

    asyncio.run(play())


async def test_what_nobody_waits_for_any_more_is_forgotten_with_what_it_holds() -> None:
    class Held:
        pass

    by_hand, done, held = ByHand(), [], Held()
    there, thread = weakref.ref(held), FairThread("test", by_hand)
    (first,) = await given_to(thread, "a", done)
    task = spawn(thread.run("b", partial(id, held)), "b")
    (last,) = await given_to(thread, "b", done)
    del held
    await cancel_and_wait(task)
    del task
    gc.collect()
    assert there() is None
    by_hand.run(by_hand.left)
    assert done == ["a", "b"]
    await asyncio.gather(first, last)


async def test_what_work_raises_is_told_and_others_go_on() -> None:
    thread = FairThread("test")

    def fails() -> None:
        raise KeyError("told")

    with pytest.raises(KeyError, match="told"):
        await within("the failure", thread.run("a", fails))
    name = await within("the work", thread.run("a", lambda: threading.current_thread().name))
    assert name.startswith("test")
    thread.close()


async def test_at_the_end_what_waits_is_cancelled() -> None:
    by_hand, done = ByHand(), []
    thread = FairThread("test", by_hand)
    tasks = await given_to(thread, "aab", done)
    thread.close()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in found] == [asyncio.CancelledError] * 3
    assert done == []
