"""Makes a failing schedule small enough to be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from tests.history.operations import Fetch, Produce
from tests.history.violations import Kind
from tests.simulation.run import MIGRATION, Result, simulate

Plant = Callable[[], AbstractContextManager[None]]
AT_THE_END = ("last-", "prober-")
"""How the names of the readers begin that every run ends with."""
AS_EXACT_S = 0.25
"""How near to the earliest second at which the load may end."""


class _Shrinking:
    def __init__(self, found: Result, plant: Plant | None) -> None:
        self._plant = plant
        self.best = found
        kinds = kinds_of(found)
        self._kinds = kinds - {Kind.STUCK} or kinds

    def holds(self, **changes: Any) -> bool:
        """Whether the best run so far, changed so, breaks such a promise still; it is the best one
        from then on."""
        best = self.best
        given = {
            "faults": best.faults,
            "family": best.family or MIGRATION,
            "without": best.without,
            "ends_at": best.ends_at,
            **changes,
        }
        planted = self._plant() if self._plant is not None else None
        result = simulate(best.seed, planted=planted, **given)
        if kinds_of(result) & self._kinds:
            self.best = result
            return True
        return False

    def leave_out(self) -> bool:
        """Faults and clients, each one that is not needed. Whether one was not."""
        before = self.best
        left = 0
        while left < len(self.best.faults):
            faults = self.best.faults
            if not self.holds(faults=(*faults[:left], *faults[left + 1 :])):
                left += 1
        for name in sorted({*_clients(self.best)} - self.best.without):
            self.holds(without=self.best.without | {name})
        return self.best is not before

    def end_early(self) -> None:
        low, high = 0.0, self.best.virtual_s
        while high - low > AS_EXACT_S:
            middle = (low + high) / 2
            if self.holds(ends_at=middle):
                high = middle
            else:
                low = middle

    def shorten(self) -> None:
        """Each fault to the shortest of its halves."""
        for number, fault in enumerate(self.best.faults):
            shorter = fault
            while shorter.lasts > 0.1:
                shorter = replace(shorter, lasts=round(shorter.lasts / 2, 3))
                faults = list(self.best.faults)
                faults[number] = shorter
                if not self.holds(faults=faults):
                    break


def shrink(found: Result, plant: Plant | None = None) -> Result:
    """The smallest run found that still breaks a promise of a kind that ``found`` broke: without
    the faults and the clients that are not needed, with a load that ends early, and shorter faults.
    A run that is stuck for having lost a record is not one that is stuck for something else: being
    stuck counts where ``found`` broke nothing else."""
    shrinking = _Shrinking(found, plant)
    shrinking.end_early()  # first, as it makes the others quick
    while shrinking.leave_out():
        """What was needed may not be any more: what is left happens at other times."""
    shrinking.shorten()
    return shrinking.best


def _clients(result: Result) -> Iterator[str]:
    """The names of those whose operations are in the history and who may be left out. One that
    begins anew calls itself ``name.life`` or ``name@topic``."""
    for one in result.operations:
        if isinstance(one, Produce):
            yield one.producer.partition(".")[0]
        elif isinstance(one, Fetch) and not one.reader.startswith(AT_THE_END):
            yield one.reader.partition("@")[0]


def kinds_of(result: Result) -> set[Kind]:
    return {violation.kind for violation in result.violations}
