"""``python -m tests.simulation.power``: how many schedules it takes to see each planted bug.

Of every bug schedules are played from its first seed on until one shows a promise broken by which
the bug must show. The first seed of each comes first, and twice as many in each round, so that
what is seen soon is told soon.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from json import dumps
from pathlib import Path

from tests.history.violations import Kind, Violation
from tests.simulation.jobs import in_order
from tests.simulation.planted import BUGS, FOUND_FILE, UNSEEN, Found, recorded
from tests.simulation.plants.bug import Bug
from tests.simulation.run import simulate

SEEDS, GROSS_WITHIN, WITHIN = 400, 5, 200
AT_ONCE = 20
"""Seeds of one bug that one process plays at most before another bug has its turn."""
PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"
BEGINS, ENDS = "<!-- planted: by make simulate-power -->\n", "<!-- planted: end -->\n"


def shown_by(bug: Bug, violations: Iterable[Violation]) -> Violation | None:
    """The broken promise by which the bug counts as seen. None in a run in which something raised
    what nobody planned, unless that is how the bug must show: who patches carelessly sees that."""
    violations = list(violations)
    unplanned = any(one.kind is Kind.UNPLANNED for one in violations)
    if unplanned and Kind.UNPLANNED not in bug.kinds:
        return None
    return next((one for one in violations if one.kind in bug.kinds), None)


def seen(bug: Bug, seed: int) -> Violation | None:
    """The broken promise that the schedule of ``seed`` shows of the bug."""
    return shown_by(bug, simulate(seed, planted=bug.planted(), family=bug.family).violations)


def look(name: str, seeds: Sequence[int]) -> Found:
    """The first of ``seeds`` that shows the bug, of so many ``looked`` at."""
    bug = BUGS[name]
    for number, seed in enumerate(seeds, 1):
        if (violation := seen(bug, seed)) is not None:
            said = violation.text.partition("\n")[0]  # a traceback has paths of this machine
            return Found(number, seed, violation.kind.value, said)
    return Found(len(seeds))


def _turn(names: Sequence[str], seeds: Sequence[range], place: int) -> Found:
    return look(names[place], seeds[place])


def power(names: Sequence[str], seeds: int, jobs: int) -> Iterator[tuple[str, Found]]:
    """What is found of each bug within so many ``seeds``, as soon as it is."""
    left, done = list(names), 0
    while left and done < seeds:
        some = min(max(1, done), AT_ONCE, seeds - done)
        turns = [range(BUGS[name].first + done, BUGS[name].first + done + some) for name in left]
        looks = in_order(partial(_turn, left, turns), range(len(left)), jobs)
        unseen = []
        for name, one in zip(left, looks, strict=True):
            if one.seed < 0:
                unseen.append(name)
            else:
                yield name, replace(one, looked=done + one.looked)
        left, done = unseen, done + some
    for name in left:
        yield name, Found(done)


def table(found: Mapping[str, Found]) -> str:
    """As the page has it: what was seen, looked for in vain, and not recorded yet."""
    lines = ["| bug | what is broken | schedules | shows as |", "| --- | --- | --- | --- |"]
    unseen = []
    for name, bug in BUGS.items():
        if (one := found.get(name)) is None:
            continue
        if one.seed < 0:
            unseen.append(f"| {name} | {bug.says} | {one.looked} | {UNSEEN.get(name, '')} |")
        else:
            lines.append(f"| {name} | {bug.says} | {one.looked} | {one.kind} |")
    if unseen:
        lines += ["", "Not seen:", "", "| bug | what is broken | schedules | why |"]
        lines += ["| --- | --- | --- | --- |", *unseen]
    if left := [f"| {name} | {bug.says} |" for name, bug in BUGS.items() if name not in found]:
        lines += ["", "No schedule is recorded yet of:", "", "| bug | what is broken |"]
        lines += ["| --- | --- |", *left]
    return "\n".join(lines) + "\n"


def late(found: Mapping[str, Found]) -> list[str]:
    """Bugs that took more schedules than they may."""
    return [
        name
        for name, one in found.items()
        if one.seed >= 0 and one.looked > (GROSS_WITHIN if BUGS[name].is_gross else WITHIN)
    ]


def write(found: Mapping[str, Found]) -> None:
    """Keep what was found, and put it on the page."""
    rows = [
        f"[{dumps(name)}]\n"
        + "".join(
            f"{field} = {dumps(getattr(one, field), ensure_ascii=False)}\n"
            for field in Found.__slots__
        )
        for name in BUGS
        if (one := found.get(name)) is not None
    ]
    FOUND_FILE.write_text("\n".join(rows))
    before, rest = PAGE.read_text().split(BEGINS)
    _, behind = rest.split(ENDS)
    PAGE.write_text(f"{before}{BEGINS}{table(found)}{ENDS}{behind}")


def main(given: Sequence[str] | None = None) -> int:
    """1 if a bug that is recorded as seen was not, or one took too many schedules."""
    parser = argparse.ArgumentParser(prog="make simulate-power", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="how many schedules at once")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of each bug at most")
    parser.add_argument("--bug", action="append", choices=sorted(BUGS), help="this one alone")
    parser.add_argument("--missing", action="store_true", help="those that no seed is recorded of")
    parser.add_argument("--write", action="store_true", help="record it, and put it on the page")
    asked = parser.parse_args(given)
    began, before, found = time.monotonic(), recorded(), {}
    known = [name for name, one in before.items() if asked.missing and one.seed >= 0]
    names = [name for name in asked.bug or BUGS if name not in known]
    for name, one in power(names, asked.seeds, asked.jobs):
        found[name] = one
        if asked.write:
            write(before | found)
        where = f"seed {one.seed}: {one.kind}: {one.text}" if one.seed >= 0 else "not seen"
        print(f"{name}: {one.looked} schedules, {where}"[:300], flush=True)
    print(table(before | found))
    gone = [n for n, one in found.items() if one.seed < 0 and n not in UNSEEN]
    for name in gone:
        print(f"NOT SEEN in {found[name].looked} schedules: {name}")
    for name in late(found):
        print(f"LATE, in {found[name].looked} schedules: {name}")
    print(
        f"{sum(one.looked for one in found.values())} schedules, {time.monotonic() - began:.0f} s"
    )
    return 1 if gone or late(found) else 0


if __name__ == "__main__":
    sys.exit(main())
