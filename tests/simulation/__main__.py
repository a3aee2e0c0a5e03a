"""``python -m tests.simulation``: runs seeds in turn, and shrinks and tells what it finds."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from tests.simulation.jobs import in_order
from tests.simulation.planted import BUGS
from tests.simulation.recreation import RECREATION
from tests.simulation.run import MIGRATION, Result, simulate
from tests.simulation.shrink import shrink
from tests.simulation.story import story


@dataclass(frozen=True)
class Ran:
    """What is told of a run to the process that asked for it."""

    seed: int
    is_broken: bool
    text: str
    cpu_s: float


def main(given: Sequence[str] | None = None) -> int:
    """1 if a promise was broken. Raises :class:`~tests.simulation.jobs.Died`."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--runs", type=int, default=50, help="how many seeds, one after another")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes take them in turn")
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant this bug")
    parser.add_argument(
        "--recreation", action="store_true", help="delete the topic and create it again"
    )
    parser.add_argument("--events", action="store_true", help="print what happened in each run")
    asked = parser.parse_args(given)
    bug = BUGS.get(asked.bug)
    family = MIGRATION if bug is None else bug.family
    if asked.recreation:
        family = RECREATION
    plant = bug.planted if bug is not None else None

    def run(seed: int) -> Result:
        return simulate(seed, planted=plant() if plant is not None else None, family=family)

    def ran(seed: int) -> Ran:
        began = time.process_time()
        result = run(seed)
        took = time.process_time() - began
        return Ran(seed, bool(result.violations), result.text() if asked.events else "", took)

    began, cpu_s = time.monotonic(), 0.0
    seeds = range(asked.seed, asked.seed + asked.runs)
    broken = None
    alone = (ran(seed) for seed in seeds)
    with closing(in_order(ran, seeds, asked.jobs) if asked.jobs > 1 else alone) as runs:
        for one in runs:
            cpu_s += one.cpu_s
            if one.text:
                print(one.text)
            if one.is_broken:
                broken = one.seed
                break
    if broken is not None:
        result = run(broken)
        print(f"seed {broken} breaks a promise; shrinking its {len(result.faults)} faults")
        print(story(shrink(result, plant)))
        return 1
    rate = 60 * asked.runs / (time.monotonic() - began)
    print(
        f"seeds {seeds.start} to {seeds.stop - 1}: nothing is broken ({rate:.0f} schedules a "
        f"minute, {60 * asked.runs / cpu_s:.0f} per core by its CPU time)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
