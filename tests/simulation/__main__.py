"""``python -m tests.simulation``: runs one seed after another, and shrinks what it finds."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.simulation.planted import BUGS
from tests.simulation.recreation import RECREATION
from tests.simulation.run import MIGRATION, simulate
from tests.simulation.shrink import shrink


def main(given: Sequence[str] | None = None) -> int:
    """1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--runs", type=int, default=50, help="how many seeds, one after another")
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant this bug")
    parser.add_argument(
        "--recreation", action="store_true", help="delete the topic and create it again"
    )
    parser.add_argument("--events", action="store_true", help="print what happened in each run")
    asked = parser.parse_args(given)
    bug = BUGS.get(asked.bug)
    again = asked.recreation or (bug is not None and bug.recreation)
    family = RECREATION if again else MIGRATION
    plant = bug.planted if bug is not None else None
    began = time.monotonic()
    for seed in range(asked.seed, asked.seed + asked.runs):
        result = simulate(seed, planted=plant() if plant is not None else None, family=family)
        if asked.events:
            print(result.text())
        if result.violations:
            print(f"seed {seed} breaks a promise; shrinking its {len(result.faults)} faults")
            print(shrink(result, plant).text())
            return 1
    took = time.monotonic() - began
    rate = 60 * asked.runs / took
    last = asked.seed + asked.runs - 1
    print(f"seeds {asked.seed} to {last}: nothing is broken ({rate:.0f} schedules a minute)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
