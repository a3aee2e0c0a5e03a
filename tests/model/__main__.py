"""`make model`: the scopes, their states, transitions and seconds, and the holes as schedules."""

from __future__ import annotations

import sys

from tests.model.prefix import PROTECTIONS as PREFIX_RULES
from tests.model.prefix import explore
from tests.model.schedule import readable
from tests.model.scopes import AS_IT_IS, AS_IT_WAS_SCOPE, HOLES
from tests.model.search import Searched, search


def row(name: str, result: Searched) -> None:
    verdict = "holds" if result.holds else f"violated in {len(result.schedule)} steps"
    counts = f"{result.states:>9,} {result.transitions:>11,} {result.seconds:>8.1f}"
    print(f"{name:62} {counts}  {verdict}", flush=True)


def main() -> int:
    print(f"{'scope':62} {'states':>9} {'transitions':>11} {'CPU s':>8}")
    was = search(AS_IT_WAS_SCOPE)
    row("as it was", was)
    found, all_hold = [("as it was", was)], not was.holds
    for name, scope in AS_IT_IS.items():
        result = search(scope)
        row(f"as it is: {name}", result)
        all_hold = all_hold and result.holds
        found += [] if result.holds else [(name, result)]
    for hole in HOLES:
        result = search(hole.open)
        row(f"without “{hole.protection}”", result)
        all_hold = all_hold and not result.holds
        found.append((hole.name, result))
    prefix = explore(PREFIX_RULES)
    counts = f"{prefix.states:>9,} {prefix.transitions:>11,} {'':8}"
    print(f"{'the prefix (I3)':62} {counts}  {prefix.wrong or 'holds'}")
    all_hold = all_hold and not prefix.wrong
    for name, result in found:
        print(f"\n{name}:\n{readable(result)}")
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main())
