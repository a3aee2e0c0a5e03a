"""A background task ends when it is told to, whatever its libraries do with a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from tideline import background
from tideline.background import cancel_and_wait


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "AGAIN_AFTER_S", 0.01)


async def test_a_task_that_swallows_cancellations_ends() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while swallowed < 3:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                swallowed += 1

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await asyncio.wait_for(cancel_and_wait(task), 5)
    assert task.done()
    assert swallowed == 3


async def test_a_wait_that_is_over_at_the_moment_of_the_cancellation_does_not_go_on() -> None:
    """What psycopg does; before Python 3.12 the first cancellation is lost here."""
    heard = asyncio.Event()

    async def listen() -> None:
        while True:
            await asyncio.wait_for(heard.wait(), 3600)
            heard.clear()

    task = asyncio.create_task(listen())
    for _ in range(3):
        await asyncio.sleep(0)
    heard.set()
    await asyncio.sleep(0)
    await asyncio.wait_for(cancel_and_wait(task), 5)
    assert task.cancelled()


async def test_what_a_task_raised_stays_with_it_and_nothing_is_awaited_without_tasks() -> None:
    async def broken() -> None:
        raise ValueError

    task = asyncio.create_task(broken())
    await asyncio.sleep(0)
    await cancel_and_wait(task)
    await cancel_and_wait()
    with pytest.raises(ValueError):  # noqa: PT011
        task.result()
