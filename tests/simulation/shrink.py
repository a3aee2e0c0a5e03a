"""Makes a failing schedule small enough to be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from tests.history.violations import Kind
from tests.simulation.faults import Fault
from tests.simulation.run import MIGRATION, Result, simulate

Plant = Callable[[], AbstractContextManager[None]]


def shrink(found: Result, plant: Plant | None = None) -> Result:
    """The smallest run found by leaving faults out, one by one, and then halving how long each
    lasts, that still breaks a promise of a kind that ``found`` broke."""
    kinds = {violation.kind for violation in found.violations}
    best = found

    def still(faults: Sequence[Fault]) -> bool:
        nonlocal best
        planted = plant() if plant is not None else None
        result = simulate(found.seed, faults, planted, found.family or MIGRATION)
        if kinds_of(result) & kinds:
            best = result
            return True
        return False

    left = 0
    while left < len(best.faults):
        if not still([*best.faults[:left], *best.faults[left + 1 :]]):
            left += 1
    for number, fault in enumerate(best.faults):
        shorter = fault
        while shorter.lasts > 0.1:
            shorter = replace(shorter, lasts=round(shorter.lasts / 2, 3))
            if not still([*best.faults[:number], shorter, *best.faults[number + 1 :]]):
                break
    return best


def kinds_of(result: Result) -> set[Kind]:
    return {violation.kind for violation in result.violations}
