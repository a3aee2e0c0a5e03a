"""How long a test waits."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests import deaths
from tests.support import waiting
from tests.support.waiting import Wait, bounded, eventually, lasts, lasts_async, until, within
from tideline.demo import patience

NO_TIME = 0.05


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else wants a core."""
    monkeypatch.setattr(waiting, "Patience", lambda s: patience.Patience(s, crowd=lambda: 0.5))


def looks(results: list[object]) -> object:
    return lambda: results.pop(0) if len(results) > 1 else results[0]


def test_what_comes_is_what_was_asked_for() -> None:
    assert until("it", looks([None, 0, "it"])) == "it"  # type: ignore[arg-type]


async def test_a_probe_may_be_a_coroutines_function() -> None:
    found: list[object] = [None, "it"]

    async def probe() -> object:
        return found.pop(0)

    assert await eventually("it", probe) == "it"


@pytest.mark.usefixtures("alone")
def test_a_wait_that_is_over_says_for_what_it_was_and_how_long() -> None:
    with pytest.raises(AssertionError, match=r"waited \d+ s for the lease"):
        until("the lease", lambda: None, NO_TIME)


@pytest.mark.usefixtures("alone")
async def test_what_is_awaited_is_cancelled_when_its_time_is_over() -> None:
    never = asyncio.get_running_loop().create_future()
    with pytest.raises(AssertionError, match=r"waited \d+ s for the answer"):
        await within("the answer", never, NO_TIME)
    assert never.cancelled()


def test_a_crowd_makes_a_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(
        waiting, "Patience",
        lambda s: patience.Patience(s, crowd=lambda: 10.0, clock=lambda: clock[0]),
    )  # fmt: skip
    wait = Wait("it", 6.0)
    clock[0] = 59.0
    assert not wait.over
    assert wait.slowness == 10.0
    clock[0] = 61.0
    assert wait.over


@pytest.mark.usefixtures("alone")
def test_what_came_while_the_test_itself_got_no_core_has_come() -> None:
    came = False

    def probe() -> bool:
        nonlocal came
        before, came = came, True
        threading.Event().wait(NO_TIME * 2)  # the process stands still
        return before

    assert until("it", probe, NO_TIME)


@pytest.mark.usefixtures("alone")
async def test_what_came_while_the_loop_stood_still_has_come() -> None:
    async def hops() -> str:
        for _ in range(5):
            await asyncio.sleep(0)
        return "it"

    async def stands_still() -> None:
        threading.Event().wait(NO_TIME * 4)

    still = asyncio.create_task(stands_still())
    assert await within("it", hops(), NO_TIME) == "it"
    await still


async def test_an_error_of_what_is_awaited_is_its_own() -> None:
    async def refused() -> None:
        raise TimeoutError("by the server")

    with pytest.raises(TimeoutError, match="by the server"):
        await within("an answer", refused())


async def test_a_cancellation_from_outside_stays_one() -> None:
    async def waits() -> None:
        async with bounded("what never comes"):
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_thread_that_has_died_ends_a_wait() -> None:
    deaths.note("the consumer", "a refusal")
    try:
        with pytest.raises(AssertionError, match="the consumer ended by an error: a refusal"):
            until("what it would have read", lambda: None)
    finally:
        deaths.forget()


def test_what_does_not_last_is_named_and_what_does_is_looked_at_to_the_end() -> None:
    seen: list[bool] = []
    lasts("nothing is sent", lambda: seen.append(True) or True, NO_TIME)
    assert len(seen) >= 2
    with pytest.raises(AssertionError, match="nothing is sent"):
        lasts("nothing is sent", looks([True, False]), NO_TIME)  # type: ignore[arg-type]


async def test_what_lasts_is_looked_at_again_once_others_had_a_turn() -> None:
    done: list[int] = []
    asyncio.get_running_loop().call_soon(done.append, 1)
    with pytest.raises(AssertionError, match="nothing is done"):
        await lasts_async("nothing is done", lambda: not done, 0.0)
