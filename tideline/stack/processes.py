"""What a part tells the supervisor about its process, and how a stack's processes are found: by the
marker in their environment, never by name."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

MARKER = "TIDELINE_STACK"
"""Environment variable of each process of a stack: the home's id."""

PROGRAM_MARKER = "TIDELINE_STACK_PROGRAM"
"""Environment variable: which part of the stack a process is."""


@dataclass(frozen=True)
class Program:
    name: str
    command: tuple[str, ...]
    log: Path
    """Where stdout and stderr go; rolled by the supervisor."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    stop_signal: str = "TERM"
    stop_wait_s: int = 4
    """Then SIGKILL."""
    log_max_bytes: int = 10_000_000
    log_backups: int = 2
    main_log: Path | None = None
    """The file worth reading when the process writes its own log elsewhere."""

    @property
    def readable_log(self) -> Path:
        return self.main_log or self.log


GRACE_S = 3.0
"""How long leftovers may take to end before SIGKILL."""

_STOP_SIGNALS = {
    "supervisord": signal.SIGKILL,
    "postgres": signal.SIGINT,
    "s3": signal.SIGKILL,
}
"""As the programs' own; supervisord is killed so that it restarts nothing."""


@dataclass(frozen=True)
class MarkedProcess:
    """A process that carries the marker, or descends from one that does."""

    process: psutil.Process
    program: str


def marked(identity: str) -> list[MarkedProcess]:
    """All living processes of the stack ``identity``.

    Postgres overwrites the environment of its backends, so descendants count too.
    """
    found: dict[int, MarkedProcess] = {}
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with suppress(psutil.Error, OSError):
            environment = process.environ()
            if environment.get(MARKER) == identity and _alive(process):
                program = environment.get(PROGRAM_MARKER, "")
                found[process.pid] = MarkedProcess(process, program)
    for parent in list(found.values()):
        with suppress(psutil.Error):
            for child in parent.process.children(recursive=True):
                found.setdefault(child.pid, MarkedProcess(child, parent.program))
    return list(found.values())


def end(leftovers: Iterable[MarkedProcess]) -> list[str]:
    """Stop ``leftovers``, by force after a grace; the names of their programs."""
    chosen = sorted(leftovers, key=lambda each: each.program != "supervisord")
    for each in chosen:
        with suppress(psutil.Error):
            each.process.send_signal(_STOP_SIGNALS.get(each.program, signal.SIGTERM))
            each.process.send_signal(signal.SIGCONT)
    _, alive = psutil.wait_procs([each.process for each in chosen], timeout=GRACE_S)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=GRACE_S)
    return sorted({each.program for each in chosen})


def family(pid: int) -> list[psutil.Process]:
    """A process and its descendants, itself first; empty when it is gone."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(process: psutil.Process) -> float:
    """CPU that it and those of its children that have ended have used, user and system; 0 when it
    is gone."""
    with suppress(psutil.NoSuchProcess):
        return float(sum(process.cpu_times()[:4]))
    return 0.0


def busy_seconds(pid: int) -> float:
    """CPU that a process, its descendants and those of them that have ended have used, and what
    their threads have waited for a core: on a machine that is busy, what starts does little else.
    """
    return sum(cpu_seconds(process) + _seconds_runnable(process.pid) for process in family(pid))


def _seconds_runnable(pid: int) -> float:
    """What the threads that live have waited for a core; 0 where the kernel does not count it."""
    waited_ns = 0
    for schedstat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError, IndexError, ValueError):  # the thread has ended
            waited_ns += int(schedstat.read_text().split()[1])
    return waited_ns / 1e9


def signal_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
