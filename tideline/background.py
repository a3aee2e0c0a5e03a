"""Background tasks: all begin here, and none ends unnoticed.

A task that nobody waits for and that ends by an error takes what it did with it, while the process
looks alive: a lease that is not renewed, rows that are not read. What runs as long as the process
does is therefore started by :func:`keep`, and its end ends the process, with the reason.
Everything else is started by :func:`spawn`. The unit tests
allow ``create_task`` in this module only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import structlog

from tideline.errors import TidelineError
from tideline.subject import without

AGAIN_AFTER_S = 1.0
T = TypeVar("T")
log = structlog.get_logger()
_running: set[asyncio.Task[Any]] = set()
"""The event loop keeps weak references only: a task that nobody holds could be collected."""


class BackgroundTaskEnded(TidelineError):
    """Something that has to run for as long as the process does has ended: the process has to end,
    so that its supervisor starts it anew. With the exit code of what it ended by."""


class Watch:
    """Hears when something has ended that must not."""

    def __init__(self) -> None:
        self._why: BackgroundTaskEnded | None = None
        self._ended = asyncio.Event()

    def note(self, why: str, error: BaseException | None = None) -> None:
        """Something ended by ``error``, and this is the reason; the first one counts."""
        if self._why is None:
            self._why = BackgroundTaskEnded(
                f"{why}. Nothing does its work now: the process ends, and has to be started again"
            )
            if isinstance(error, TidelineError):
                self._why.exit_code = error.exit_code
        self._ended.set()

    async def until(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set. Raises :class:`BackgroundTaskEnded` if something ends before."""
        await done_before(spawn(self._ended.wait(), "watch"), stop)
        if self._why is not None:
            raise self._why


_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watching() -> Iterator[Watch]:
    """A watch over every task that is started inside, directly or by what was started inside."""
    watch = Watch()
    token = _watch.set(watch)
    try:
        yield watch
    finally:
        _watch.reset(token)


def spawn(work: Coroutine[Any, Any, T], name: str, *, vital: bool = False) -> asyncio.Task[T]:
    """Start ``work``, which ends by itself. What it raises is told to who waits for it, and logged
    by asyncio if nobody does; of ``vital`` work anything that it raises ends the process."""
    task = asyncio.get_running_loop().create_task(work, name=name, context=without())
    _running.add(task)
    task.add_done_callback(_vital_done if vital else _running.discard)
    return task


def keep(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Start ``work``, which runs until it is cancelled: if it ends otherwise, the process does."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_kept_done)
    return task


def _vital_done(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and task.exception() is not None:
        _tell(task)


def _kept_done(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled():
        _tell(task)


def _tell(task: asyncio.Task[Any]) -> None:
    error = task.exception()
    what = "without an error" if error is None else f"by {type(error).__name__}: {error}"
    log.critical("a background task ended", task=task.get_name(), how=what, exc_info=error)
    # A task's callbacks run in the context that added them, which is the one that started it.
    if (watch := _watch.get()) is not None:
        watch.note(f"background task {task.get_name()} ended {what}", error)


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel ``tasks`` until they have ended. What they raise stays with them.

    Once is not enough: before Python 3.12 :func:`asyncio.wait_for`, and psycopg with it, swallows a
    cancellation that arrives together with what it waits for (cpython gh-86296), and a task that
    loops goes on for ever.
    """
    for task in tasks:
        task.cancel()
    while running := [task for task in tasks if not task.done()]:
        await asyncio.wait(running, timeout=AGAIN_AFTER_S)
        for task in running:
            task.cancel()
    for task in tasks:
        if not task.cancelled():
            task.exception()


async def done_before(task: asyncio.Task[Any], stop: asyncio.Event) -> bool:
    """Whether ``task`` has ended before ``stop`` was set; otherwise it is cancelled, and has ended
    when this returns. What it raises stays with it."""
    stopped = spawn(stop.wait(), "stop")
    await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        return True
    await cancel_and_wait(task)
    return False
