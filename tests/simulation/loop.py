"""An event loop without real time, and the processes that live on it.

Time jumps to the next timer. Every callback belongs to the process in whose context it was made: of
a killed process nothing runs any more, not even a ``finally``; a frozen one goes on later, where it
was. What production code asks of :mod:`time`, :mod:`os` and :mod:`random` is answered by the loop
and the seed while :func:`deterministic` holds.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import itertools
import math
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any
from unittest.mock import patch

from tideline import background
from tideline.gateway.produce.commit_stream import CommitStream
from tideline.gateway.produce.object_keys import ObjectKeys
from tideline.gateway.produce.wal import WalWriter
from tideline.gateway.standing import Standing
from tideline.gateway.tracking.view import TrackingView

_process: ContextVar[Process | None] = ContextVar("process", default=None)
WALL_START_S = 1_700_000_000.0
FULLY_EVERY = 50
"""Collections after runs, of which one looks at all objects of the process: it takes as long as a
tenth of a run."""
_collections = itertools.count(1)


class NothingLeft(Exception):
    """No callback and no timer is left: what is awaited never comes."""


class Process:
    """A program on a machine of its own, unless ``host`` names another's."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.loop, self.name = loop, name
        self.alive, self.frozen = True, False
        self.held: list[Callback] = []
        self.clock_lag = 0.0
        """Seconds that its machine's clock did not count: it stood still while the machine did."""
        self.wall_ahead = 0.0
        """Seconds that its wall clock is ahead."""
        self.on_kill: list[Callable[[], None]] = []
        self.context = copy_context()
        self.context.run(_process.set, self)
        loop.processes.append(self)

    def spawn(self, work: Any, name: str = "") -> asyncio.Task[Any]:
        """Run ``work`` as this process."""
        context = copy_context()
        context.run(_process.set, self)
        return self.loop.create_task(work, name=name or self.name, context=context)

    def call(self, callback: Callable[..., Any], *args: Any) -> None:
        """Run a callback as this process, in the next pass of the loop."""
        self.loop.call_soon(callback, *args, context=self.context)

    def kill(self) -> None:
        """As SIGKILL: nothing of it runs any more; its sockets are closed by the kernel."""
        if self.alive:
            self.alive = False
            for callback in self.on_kill:
                callback()

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        if self.frozen:
            self.frozen = False
            held, self.held = self.held, []
            self.loop.resume(held)


def current() -> Process:
    """The process whose code runs."""
    found = _process.get()
    assert found is not None, "this code runs as no process of the simulation"
    return found


class Callback:
    """In the place of :class:`asyncio.Handle`, with what a run needs of one."""

    __slots__ = ("args", "callback", "context", "is_cancelled")

    def __init__(self, callback: Callable[..., Any], args: Any, context: Context | None) -> None:
        self.callback, self.args = callback, args
        self.context = copy_context() if context is None else context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled


class VirtualLoop(asyncio.BaseEventLoop):
    """Single-threaded; work for other threads is done at once, in the caller's place."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._soon: deque[Callback] = deque()
        self._later: list[tuple[float, int, Callback]] = []
        """A heap. Of what is due at one time the earlier order comes first."""
        self._order = itertools.count()
        self._abandoned: list[Callback] = []
        self.processes: list[Process] = []
        self._watched: tuple[Process, Callable[[], None]] | None = None

    def watch(self, process: Process, look: Callable[[], None]) -> None:
        """Call ``look`` after each pass in which ``process`` did something."""
        self._watched = (process, look)

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Callback:
        made = Callback(callback, args, context)
        self._soon.append(made)
        return made

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Callback:
        made = Callback(callback, args, context)
        heapq.heappush(self._later, (when, next(self._order), made))
        return made

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Callback:
        when = self._now + delay
        if delay > 0 and when == self._now:  # less than the sum tells: time passes all the same
            when = math.nextafter(when, math.inf)
        return self.call_at(when, callback, *args, context=context)

    def resume(self, held: list[Callback]) -> None:
        self._soon.extend(held)

    def _run_once(self) -> None:
        """Pass after pass, until the loop is stopped."""
        soon, later = self._soon, self._later
        while not self._stopping:
            while later and later[0][2].is_cancelled:
                heapq.heappop(later)
            if not soon:
                if not later:
                    raise NothingLeft
                self._now = max(self._now, later[0][0])
            now = self._now
            while later and later[0][0] <= now:
                due = heapq.heappop(later)[2]
                if not due.is_cancelled:
                    soon.append(due)
            watched, stirred = self._watched, False
            for _ in range(len(soon)):
                due = soon.popleft()
                if due.is_cancelled:
                    continue
                context = due.context
                process = context.get(_process)
                if watched is not None and process is watched[0]:
                    stirred = True
                if process is None or (process.alive and not process.frozen):
                    try:
                        context.run(due.callback, *due.args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        self._tell(due, error)
                elif process.alive:
                    process.held.append(due)
                else:
                    self._abandoned.append(due)
            if stirred and watched is not None:
                watched[1]()

    def _tell(self, failed: Callback, error: BaseException) -> None:
        text = f"Exception in callback {failed.callback}"
        self.call_exception_handler({"message": text, "exception": error})

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _process_events(self, event_list: Any) -> None:
        """There are none but timers and callbacks."""

    def _write_to_self(self) -> None:
        """Nobody sleeps that had to be woken."""

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Callback:
        return self.call_soon(callback, *args, context=context)

    def finish(self) -> None:
        """End all processes, and let go of what is left: nothing of it runs on this loop any more.
        A ``finally`` of a task that never ended runs here, where clocks and chance are the loop's
        still and what it wants to await never comes; otherwise it would run in whichever later run
        frees the task."""
        self.set_exception_handler(lambda loop, context: None)
        for process in self.processes:
            process.kill()
        asyncio.events._set_running_loop(self)
        try:
            while left := asyncio.all_tasks(self):  # more, if closing one begins others
                for task in left:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close(task.get_coro())
                    asyncio.tasks._unregister_task(task)
        finally:
            asyncio.events._set_running_loop(None)
        background._running.difference_update(
            [task for task in background._running if task.get_loop() is self]
        )
        self._soon.clear()
        self._later.clear()
        self._abandoned.clear()
        self.close()


def _close(work: Any) -> None:
    """From the innermost on, and again where a ``finally`` awaits: left to its owner's end, what is
    not closed yet would tell of it on the terminal."""
    while work.cr_frame is not None:
        inner = work
        while getattr(inner.cr_await, "cr_frame", None) is not None:
            inner = inner.cr_await
        with suppress(Exception, asyncio.CancelledError):
            inner.close()


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is looked for inside, which takes a fifth of a run, nor is a finalizer run at a
    moment that is none of the seed's. What was left inside goes at the end, at once; what was made
    before (libraries' caches that changed) every so many times."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
        gc.collect(0 if next(_collections) % FULLY_EVERY else 2)


def _lag() -> float:
    process = _process.get()
    return 0.0 if process is None else process.clock_lag


def _ahead() -> float:
    process = _process.get()
    return 0.0 if process is None else process.wall_ahead


KEEP_A_CLOCK = (CommitStream, ObjectKeys, WalWriter, TrackingView, Standing)
"""Whose clock is a default of a parameter, which was taken from its module when they were read."""


@contextmanager
def _as_defaults(clocks: Mapping[Any, Callable[[], float]]) -> Iterator[None]:
    """These instead of the machine's, where they are defaults."""
    with ExitStack() as stack:
        for owner in KEEP_A_CLOCK:
            made = owner.__init__
            named = {k: clocks.get(v, v) for k, v in (made.__kwdefaults__ or {}).items()}
            placed = tuple(clocks.get(v, v) for v in made.__defaults__ or ())
            stack.enter_context(patch.object(made, "__kwdefaults__", named))
            stack.enter_context(patch.object(made, "__defaults__", placed))
        yield


@contextmanager
def deterministic(loop: VirtualLoop, seed: int | str) -> Iterator[None]:
    """Clocks are the loop's, as the running process's machine has them; chance is the seed's."""
    chance = random.Random(f"chance {seed}")
    before = random.getstate()
    random.seed(f"global {seed}")

    def monotonic() -> float:
        return loop.time() - _lag()

    def wall() -> float:
        return WALL_START_S + loop.time() + _ahead()

    clocks = {time.monotonic: monotonic, time.time: wall}
    with (
        _as_defaults(clocks),
        patch.object(time, "monotonic", monotonic),
        patch.object(time, "time", wall),
        patch.object(time, "clock_gettime", lambda _: monotonic()),
        patch.object(os, "urandom", chance.randbytes),
        patch.object(os, "fsync", lambda _: None),
    ):
        try:
            yield
        finally:
            random.setstate(before)


__all__ = ["Context", "NothingLeft", "Process", "VirtualLoop", "current", "deterministic"]
