"""A background task ends when it is told to, whatever its libraries do with a cancellation."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import within
from tideline import background
from tideline.background import BackgroundTaskEnded, cancel_and_wait, keep, spawn, watching
from tideline.errors import ExitCode, RefusedError

ROOT = Path(__file__).parents[2]


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
    await within("the end of the task", cancel_and_wait(task))
    assert task.done()
    assert swallowed == 3


async def test_a_wait_that_is_over_at_the_moment_of_the_cancellation_does_not_go_on() -> None:
    """What psycopg does; before Python 3.12 the first cancellation is lost here."""
    heard = asyncio.Event()

    async def listen() -> None:
        while True:
            await asyncio.wait_for(heard.wait(), 3600)  # noqa: TID251 - it loses cancellations
            heard.clear()

    task = asyncio.create_task(listen())
    for _ in range(3):
        await asyncio.sleep(0)
    heard.set()
    await asyncio.sleep(0)
    await within("the end of the task", cancel_and_wait(task))
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


async def broken() -> None:
    raise ValueError("a row that this version does not know")


async def test_the_end_of_what_must_run_on_ends_the_process_with_the_reason() -> None:
    with watching() as watch:
        keep(broken(), "lease")
        with pytest.raises(BackgroundTaskEnded, match=r"lease ended by ValueError: a row that"):
            await within("the end of what is watched", watch.until(asyncio.Event()))


async def test_the_process_ends_with_the_exit_code_of_what_ended_it() -> None:
    async def refused() -> None:
        raise RefusedError("Postgres is not the one that was seen")

    for work, code in ((refused, ExitCode.REFUSED), (broken, ExitCode.FAILED)):
        with watching() as watch:
            keep(work(), "leases")
            with pytest.raises(BackgroundTaskEnded) as ended:
                await within("the end of what is watched", watch.until(asyncio.Event()))
        assert ended.value.exit_code is code


async def test_what_must_run_on_may_not_end_well_either() -> None:
    with watching() as watch:
        keep(asyncio.sleep(0), "poll")
        with pytest.raises(BackgroundTaskEnded, match="poll ended without an error"):
            await within("the end of what is watched", watch.until(asyncio.Event()))


async def test_vital_work_may_end_by_itself_but_not_by_an_error() -> None:
    stop = asyncio.Event()
    with watching() as watch:
        await spawn(asyncio.sleep(0), "commit", vital=True)
        upload = spawn(broken(), "an upload, whose error its commit hears")
        await asyncio.gather(upload, return_exceptions=True)
        cancelled = keep(asyncio.sleep(3600), "poll")
        await cancel_and_wait(cancelled)
        stop.set()
        await watch.until(stop)
        spawn(broken(), "commit", vital=True)
        with pytest.raises(BackgroundTaskEnded, match="commit"):
            await within("the end of what is watched", watch.until(asyncio.Event()))


async def test_what_is_started_by_what_is_watched_is_watched_too() -> None:
    async def starts_another() -> None:
        keep(broken(), "inner")
        await asyncio.sleep(3600)

    with watching() as watch:
        outer = keep(starts_another(), "outer")
        with pytest.raises(BackgroundTaskEnded, match="inner"):
            await within("the end of what is watched", watch.until(asyncio.Event()))
        await cancel_and_wait(outer)


def test_tasks_are_started_by_the_background_module_only() -> None:
    """``workflows`` has Temporal's own event loop, and tasks of it."""
    assert not list(starts_of_tasks())


ALONE = ROOT / "tideline/airflow/temporal"
"""Imports nothing of Tideline; its one group of tasks ends with those who wait for it."""


def starts_of_tasks() -> Iterator[str]:
    for package in ("tideline", "activities", "spark", "dags"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if path == Path(background.__file__) or ALONE in path.parents:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and node.attr in ("create_task", "TaskGroup"):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: use tideline.background"
