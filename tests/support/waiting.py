"""How long a test waits: decided here, by what the machine does, and nowhere else.

A test says what it waits for and how many seconds a machine that has a core for everybody may take
(:class:`tideline.demo.patience.Patience`): there the bound is exact, and what only a longer bound
of the product brings about has not come about. On a busy machine the same wait lasts longer, up to
``HANGS_S``. Whoever waits is told how long and for what, and ends at once where a thread or a
program of the test has died (:mod:`tests.deaths`).

Ruff refuses ``time.sleep``, ``asyncio.wait_for``, ``asyncio.timeout`` and ``asyncio.wait`` in tests
(TID251 in pyproject.toml): they know nothing of the machine.
"""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol, TypeVar

from tests import deaths
from tideline.demo.patience import Patience

T = TypeVar("T")

SOON_S = 9.0
"""For what is under way already. Less than the shortest of the product's own bounds, 10 s."""
WITHIN_S = 60.0
"""For what several programs do for each other."""
HANGS_S = 600.0
"""What has not come about after so many seconds of any machine never will."""
_LOOK_S = 0.25
"""How often a wait that is not polled looks at the machine."""


class Wait:
    """One wait, under way: whether it may go on, and how long it has lasted."""

    def __init__(self, what: str, seconds: float) -> None:
        self.what, self._most = what, max(seconds, HANGS_S)
        self._patience, self._began = Patience(seconds), time.monotonic()
        self._looked, self._last_look = self._began, False

    @property
    def waited(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    @property
    def over(self) -> bool:
        """Whether it has lasted for as long as it may. Asked at each look at what is awaited; the
        machine is looked at less often."""
        if (now := time.monotonic()) - self._looked < _LOOK_S / 5:
            return False
        self._looked = now
        return self._patience.over or self.waited > self._most

    @property
    def slowness(self) -> float:
        """Seconds of the clock for each that has counted: 1 where there is a core for everybody."""
        _ = self._patience.over  # counts until now
        counted = self._patience.seconds - self._patience._left
        return max(1.0, self.waited / counted) if counted > 0 else 1.0

    def check(self) -> None:
        """Between two looks at what is awaited: raises ``AssertionError`` when it is over, or when
        what the test began has died. A process that itself got no core may have looked long ago, so
        there is one more look when it is over."""
        deaths.check()
        if self.over:
            if self._last_look:
                raise AssertionError(f"waited {self.waited:.0f} s for {self.what}")
            self._last_look = True

    def pause(self) -> None:
        """Before the next look, which costs what is asked as well: the longer it has lasted the
        longer, up to a tenth of a second."""
        time.sleep(self.pause_s)

    @property
    def pause_s(self) -> float:
        return min(0.02 + self.waited / 100, 0.1)


def until(what: str, probe: Callable[[], T | None], seconds: float = WITHIN_S) -> T:
    """Ask ``probe`` until it answers something true: that."""
    wait = Wait(what, seconds)
    while not (found := probe()):
        wait.check()
        wait.pause()
    return found


async def eventually(
    what: str, probe: Callable[[], Awaitable[T | None] | T | None], seconds: float = SOON_S
) -> T:
    """As :func:`until`, while the event loop goes on; ``probe`` may be a coroutine's function."""
    wait = Wait(what, seconds)
    while True:
        asked = probe()
        found: Any = await asked if inspect.isawaitable(asked) else asked
        if found:
            return found  # type: ignore[no-any-return]
        wait.check()
        await asyncio.sleep(min(wait.pause_s, 0.001 + wait.waited / 100))


@asynccontextmanager
async def bounded(what: str, seconds: float = SOON_S) -> AsyncIterator[None]:
    """What is awaited inside is cancelled when it lasts for too long, and the test fails."""
    wait = Wait(what, seconds)
    loop = asyncio.get_running_loop()
    failure: AssertionError | None = None

    def look() -> None:
        nonlocal failure, timer
        try:
            wait.check()
        except AssertionError as error:
            failure = error
            scope.reschedule(loop.time())
        else:
            timer = loop.call_later(min(_LOOK_S, seconds), look)

    try:
        async with asyncio.timeout(None) as scope:
            timer = loop.call_later(min(_LOOK_S, seconds), look)
            try:
                yield
            finally:
                timer.cancel()
    except TimeoutError:
        if failure is not None:
            raise failure from None
        raise


async def within(what: str, awaited: Awaitable[T], seconds: float = SOON_S) -> T:
    """What ``awaited`` comes to."""
    async with bounded(what, seconds):
        return await awaited


def until_still(what: str, count: Callable[[], int], seconds: float) -> int:
    """Wait until ``count`` has not changed for so long; what it is."""
    seen, since = count(), time.monotonic()

    def still() -> bool:
        nonlocal seen, since
        at = time.monotonic()
        if (now := count()) != seen:
            seen, since = now, at
        return at - since >= seconds

    until(f"{what} to stand still for {seconds:g} s", still)
    return seen


def lasts(what: str, holds: Callable[[], object], seconds: float) -> None:
    """``holds`` is true now and at every look for so many seconds of the clock: what a test says of
    something that does not happen. It may not fail on a slow machine, only see less."""
    ends = time.monotonic() + seconds
    while True:
        assert holds(), f"{what}, {seconds - ends + time.monotonic():.1f} s after it was so"
        if time.monotonic() >= ends:
            return
        time.sleep(min(0.05, seconds))


async def lasts_async(what: str, holds: Callable[[], object], seconds: float) -> None:
    """As :func:`lasts`, while the event loop goes on."""
    ends = time.monotonic() + seconds
    over = False
    while True:
        assert holds(), f"{what}, {seconds - ends + time.monotonic():.1f} s after it was so"
        if over:
            return
        await asyncio.sleep(min(0.05, seconds))
        over = time.monotonic() >= ends


def set_within(what: str, event: threading.Event, seconds: float = SOON_S) -> None:
    """Wait for an event of threads."""
    wait = Wait(what, seconds)
    while not event.wait(_LOOK_S):
        wait.check()


def joined(thread: threading.Thread, seconds: float = SOON_S) -> None:
    """Wait for the end of a thread."""
    wait = Wait(f"the end of {thread.name}", seconds)
    while thread.is_alive():
        thread.join(_LOOK_S)
        if thread.is_alive():
            wait.check()


def exited(process: subprocess.Popen[Any], what: str = "", seconds: float = WITHIN_S) -> int:
    """Wait for the end of a program whose output goes to a file or is read by others: its exit
    code."""
    wait = Wait(f"the end of {what or process.args}", seconds)
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_S)
        wait.check()


def stopped(
    process: subprocess.Popen[Any],
    seconds: float = WITHIN_S,
    by: Callable[[], object] | None = None,
) -> int:
    """End a program by SIGTERM, or as ``by`` does it, and by SIGKILL if it does not end: its exit
    code."""
    (by or process.terminate)()
    wait = Wait(f"the end of {process.args}", seconds)
    while not wait.over:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_S)
    process.kill()
    return process.wait()


def output_of(process: subprocess.Popen[Any], seconds: float, given: Any = None) -> tuple[Any, Any]:
    """What a program that is ``given`` its input says until its end, on stdout and on stderr."""
    wait = Wait(f"the end of {process.args}", seconds)
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(given, timeout=_LOOK_S)
        given = None  # it has it
        wait.check()


def ran(
    command: Sequence[str], seconds: float = WITHIN_S, given: Any = None, **how: Any
) -> subprocess.CompletedProcess[Any]:
    """A program that has ended, as ``subprocess.run`` has it, and all that it said."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how,
    )  # fmt: skip
    try:
        said, errors = output_of(process, seconds, given)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, said, errors)


class Flushable(Protocol):
    """A producer of confluent-kafka."""

    def flush(self, timeout: float, /) -> int: ...


def flushed(producer: Flushable, seconds: float = WITHIN_S) -> None:
    """Wait until a producer has been told of all that it was given."""
    until("every record to be settled", lambda: producer.flush(_LOOK_S) == 0, seconds)


def for_seconds(why: str, seconds: float) -> None:
    """So long by the clock, on any machine: how long a fault lasts, not a wait for anything."""
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        try:
            deaths.check()
        except AssertionError as error:
            error.add_note(f"during {why}")
            raise
        time.sleep(min(_LOOK_S, left))
