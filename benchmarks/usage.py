"""What each part of a run uses: CPU seconds by group of processes, and how large they get.

The driver is this process, its JVM a child of it, and the executors' Python below that. Parts of a
stack are found by their process ids once, at the start.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil

from tideline.stack.processes import cpu_seconds, family

DRIVER, JVM, WORKERS = "driver", "JVM", "executors' Python"
LOOKED_EVERY_S = 0.5
"""Anything larger that is shorter is not seen."""


@dataclass(slots=True)
class Usage:
    """Of one stretch of work. CPU in core seconds; memory: the most that was resident, in bytes."""

    seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    """Of a group with several processes: the largest one of them."""

    def __str__(self) -> str:
        parts = ", ".join(
            f"{name} {used:.1f} s {self.memory.get(name, 0) / 1e6:.0f} MB"
            for name, used in self.cpu.items()
        )
        return f"{self.seconds:.1f} s, {self.all_cpu:.1f} s of CPU ({parts})"

    @property
    def all_cpu(self) -> float:
        return sum(self.cpu.values())


@dataclass(frozen=True, slots=True)
class Groups:
    """``parts``: by name the processes (with all that they start) of one group."""

    parts: Mapping[str, tuple[int, ...]]

    def members(self) -> dict[str, list[psutil.Process]]:
        found: dict[str, list[psutil.Process]] = {
            name: [one for pid in pids for one in family(pid)] for name, pids in self.parts.items()
        }
        found |= {DRIVER: [psutil.Process()], JVM: [], WORKERS: []}
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                if child.name() == "java":
                    found[JVM].append(child)
                    found[WORKERS] += child.children(recursive=True)
        return found

    def cpu(self) -> dict[str, float]:
        found = {name: sum(map(cpu_seconds, some)) for name, some in self.members().items()}
        # Of the driver and its JVM only they themselves: what they have started is a group.
        found[DRIVER] = sum(os.times()[:2])
        return found


@contextmanager
def watched(groups: Groups) -> Iterator[Usage]:
    """The usage is known when the context ends."""
    usage, over = Usage(), threading.Event()
    before, began = groups.cpu(), time.monotonic()
    most: dict[str, int] = defaultdict(int)
    looking = threading.Thread(target=_look, args=(groups, most, over.wait))
    looking.start()
    try:
        yield usage
    finally:
        usage.seconds = time.monotonic() - began
        over.set()
        looking.join()
        after = groups.cpu()
        usage.cpu = {name: after[name] - before.get(name, 0.0) for name in after}
        usage.memory = dict(most)


def _look(groups: Groups, most: dict[str, int], over: Callable[[float], bool]) -> None:
    while True:
        for name, some in groups.members().items():
            for process in some:
                with suppress(psutil.NoSuchProcess):
                    most[name] = max(most[name], process.memory_info().rss)
        if over(LOOKED_EVERY_S):
            return
