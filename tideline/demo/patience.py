"""How long a wait lasts on a machine that others use, too."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

MOST = 16.0
"""A second that is shared by more programs than this counts as if it were shared by so many."""


def crowd() -> float:
    """Programs that want a core or wait for a disk now, per core that this process may use; 1.0
    where that is not told (``procs_running`` and ``procs_blocked`` of ``/proc/stat``, proc(5))."""
    try:
        told = dict(line.split(maxsplit=1) for line in Path("/proc/stat").read_text().splitlines())
        wanting = int(told["procs_running"]) + int(told["procs_blocked"])
    except (OSError, KeyError, ValueError):
        return 1.0
    return wanting / len(os.sched_getaffinity(0))


class Patience:
    """``seconds`` of a machine that has a core for whoever wants one.

    A second in which each core is wanted by four programs counts a quarter, so a wait ends soon
    where something stands still, and not where everything is slow.
    """

    def __init__(
        self,
        seconds: float,
        *,
        crowd: Callable[[], float] = crowd,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds, self._crowd, self._clock = seconds, crowd, clock
        self.renew()

    def renew(self) -> None:
        """Wait anew."""
        self._left, self._seen = self.seconds, self._clock()

    @property
    def over(self) -> bool:
        """Whether it is used up. Asked at each poll: the time since the last one is counted."""
        now = self._clock()
        self._left -= (now - self._seen) / min(max(self._crowd(), 1.0), MOST)
        self._seen = now
        return self._left <= 0
