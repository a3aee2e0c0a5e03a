"""Starts parts side by side, each when what it needs is ready."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tideline.stack.errors import NotReadyError, StackError
from tideline.stack.parts.base import StackPart
from tideline.stack.processes import busy_seconds
from tideline.stack.supervision import Supervisor

PROBE_INTERVAL_S = 0.15
WORKING_SHARE = 0.05
"""Of one core, used or waited for. What starts does more, however many start beside it; what tries
again and again to reach something does less."""
WORK_MEASURED_EVERY_S = 0.5
AT_MOST = 10
"""Times a part's bound: the end of every wait, however busy the part is."""
SHOWN_LOG_LINES = 15
SHOWN_LOG_BYTES = 8_000


class Step(StrEnum):
    WAITING = "waiting"
    PREPARING = "preparing"
    STARTING = "starting"
    FINISHING = "finishing"
    READY = "ready"
    FAILED = "failed"
    ABANDONED = "abandoned"
    """Another part failed first."""


@dataclass(frozen=True)
class Progress:
    """One step of one part."""

    name: str
    step: Step
    where: str
    seconds: float
    """Since its preparation began."""
    note: str = ""

    def __str__(self) -> str:
        return f"{self.name:<10} {self.step:<7} {self.seconds:5.1f} s  {self.where}  {self.note}"


Report = Callable[[Progress], None]


class Startup:
    """One start of a set of parts."""

    def __init__(self, parts: Sequence[StackPart], supervisor: Supervisor, report: Report) -> None:
        self._parts = parts
        self._supervisor = supervisor
        self._report = report
        self._done = {part.name: threading.Event() for part in parts}
        self._failed = threading.Event()
        self._steps = 0

    def run(self) -> None:
        """Returns when all are ready; raises the first :class:`StackError`."""
        running = {name for name, info in self._supervisor.processes().items() if info.is_up}
        with ThreadPoolExecutor(len(self._parts), thread_name_prefix="start") as pool:
            futures = [pool.submit(self._bring_up, part, running) for part in self._parts]
            try:
                wait(futures)
            except BaseException:
                # Interrupted: leaving the pool waits for its threads, so let them give up.
                self._failed.set()
                raise
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            # A part that gave up because another failed has nothing to say of its own.
            raise next((error for error in errors if not isinstance(error, _Abandoned)), errors[0])

    def _bring_up(self, part: StackPart, running: set[str]) -> None:
        since = time.monotonic()

        def tell(step: Step, note: str = "") -> None:
            self._steps += 1
            self._report(Progress(part.name, step, part.where, time.monotonic() - since, note))

        tell(Step.WAITING)
        try:
            for name in part.needs:
                if name in self._done:
                    self._await_part(name)
            since = time.monotonic()
            ran_before = part.name in running
            if not ran_before:
                tell(Step.PREPARING, part.preparation)
                part.prepare()
                tell(Step.STARTING)
                self._supervisor.start(part.name)
            await_ready(
                part,
                self._supervisor,
                abandoned=self._failed.is_set,
                steps_of_others=lambda: self._steps,
            )
            tell(Step.FINISHING)
            part.finish()
        except _Abandoned:
            tell(Step.ABANDONED)
            raise
        except BaseException as error:
            self._failed.set()
            tell(Step.FAILED, str(error).splitlines()[0] if str(error) else type(error).__name__)
            raise
        self._done[part.name].set()
        tell(Step.READY, "ran before" if ran_before else "")

    def _await_part(self, name: str) -> None:
        while not self._done[name].wait(PROBE_INTERVAL_S):
            if self._failed.is_set():
                raise _Abandoned(f"gave up waiting for {name}")


class _Abandoned(StackError):
    """Another part failed first."""


class Patience:
    """Bounds a wait by what is waited for: the seconds count in which nothing moves.

    Something moves when the part works (:data:`WORKING_SHARE`) or when another part of the same
    start makes a step. Whatever moves, ``AT_MOST * still_s`` are the end.
    """

    def __init__(
        self,
        still_s: float,
        busy_seconds: Callable[[], float],
        steps_of_others: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._still_s = still_s
        self._busy_seconds, self._steps_of_others = busy_seconds, steps_of_others
        self._clock = clock
        self._began = self._moved = self._measured = clock()
        self._used, self._steps = busy_seconds(), steps_of_others()

    @property
    def waited_s(self) -> float:
        return self._clock() - self._began

    @property
    def stood_still(self) -> bool:
        """Whether it is over because nothing moved, and not because of the last bound."""
        return self._clock() - self._moved >= self._still_s

    def is_over(self) -> bool:
        now = self._clock()
        if (elapsed := now - self._measured) >= WORK_MEASURED_EVERY_S:
            used, steps = self._busy_seconds(), self._steps_of_others()
            if used - self._used >= WORKING_SHARE * elapsed or steps != self._steps:
                self._moved = now
            self._measured, self._used, self._steps = now, used, steps
        return now - self._moved >= self._still_s or self.waited_s >= AT_MOST * self._still_s


def await_ready(
    part: StackPart,
    supervisor: Supervisor,
    *,
    within_s: float | None = None,
    restarts_allowed: bool = False,
    abandoned: Callable[[], bool] = lambda: False,
    steps_of_others: Callable[[], int] = lambda: 0,
    busy_seconds: Callable[[int], float] = busy_seconds,
) -> None:
    """Wait until the part's probe passes.

    Raises :class:`StackError` with the end of the part's log when it stands still for its bound
    (:class:`Patience`) or, unless ``restarts_allowed``, as soon as the process ends.
    """
    pid: int | None = None
    first_pid: int | None = None
    reason = "it was not asked yet"
    bound = within_s or part.ready_within_s
    patience = Patience(bound, lambda: 0.0 if pid is None else busy_seconds(pid), steps_of_others)
    while not patience.is_over():
        if abandoned():
            raise _Abandoned(f"gave up waiting for {part.name}")
        info = supervisor.process(part.name)
        pid = info.pid
        first_pid = first_pid or pid
        ended = info.state in ("EXITED", "BACKOFF", "STOPPED") or info.pid != first_pid
        if info.state == "FATAL" or (ended and not restarts_allowed):
            raise StackError(f"{part.name} ended: {info.why}\n{end_of_log(part)}")
        try:
            part.probe()
        except NotReadyError as error:
            reason = str(error)
        else:
            return
        time.sleep(PROBE_INTERVAL_S)
    how = "and it makes no progress" if patience.stood_still else "though the start makes progress"
    raise StackError(
        f"{part.name} is not ready after {patience.waited_s:.0f} s, {how}: "
        f"{reason}\n{end_of_log(part)}"
    )


def end_of_log(part: StackPart) -> str:
    """The last lines of what the part wrote, for an error message."""
    program = part.program()
    lines: list[str] = []
    for path in dict.fromkeys((program.log, program.readable_log)):
        lines += tail(path, SHOWN_LOG_LINES)
    return "\n".join([f"The end of {program.readable_log}:", *lines])


def tail(path: Path, lines: int, limit_bytes: int = SHOWN_LOG_BYTES) -> list[str]:
    """The last ``lines`` of a file, of its last ``limit_bytes``; none when there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - limit_bytes))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []
