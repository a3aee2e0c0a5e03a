"""Bugs that are planted are found, by what they do to clients."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from tests.history.violations import Kind, Violation
from tests.simulation.planted import BUGS, THEMES, UNSEEN, recorded
from tests.simulation.plants.bug import DoesNotFit, edited, instead
from tests.simulation.power import BEGINS, ENDS, PAGE, late, seen, shown_by, table

FOUND = {name: found for name, found in recorded().items() if found.seed >= 0}
STUCK_IS_WHAT_IT_MEANS = {"registration"}


def soonest(bugs: list[str]) -> list[str]:
    """Of those that are seen the three that the fewest schedules show."""
    return sorted((name for name in bugs if name in FOUND), key=lambda n: FOUND[n].looked)[:3]


SHARE = [name for bugs in THEMES.values() for name in soonest([bug.name for bug in bugs])]
"""Three of each theme; tests/nightly/simulation plays the others."""


@pytest.mark.parametrize("name", SHARE)
def test_a_recorded_seed_finds_the_planted_bug(name: str) -> None:
    assert seen(BUGS[name], FOUND[name].seed), "look for it anew: make simulate-power"


@pytest.mark.parametrize("name", BUGS)
def test_a_plant_fits_the_code(name: str) -> None:
    for change in BUGS[name].changes:
        change.made()


def test_of_every_bug_that_was_looked_for_in_vain_it_is_told_why() -> None:
    assert recorded().keys() <= BUGS.keys()
    assert recorded().keys() - FOUND.keys() == UNSEEN.keys()


def test_bugs_are_seen_in_as_few_schedules_as_they_are_gross() -> None:
    assert late(FOUND) == []


def test_the_page_tells_what_was_found() -> None:
    (told,) = re.findall(f"{BEGINS}(.*){ENDS}", PAGE.read_text(), re.DOTALL)
    assert told == table(recorded())


def test_a_bug_shows_as_stuck_only_where_that_is_what_it_means() -> None:
    stuck = {name for name, bug in BUGS.items() if Kind.STUCK in bug.kinds}
    assert stuck == STUCK_IS_WHAT_IT_MEANS


def test_a_run_in_which_something_raised_what_nobody_planned_shows_no_bug() -> None:
    lost, unplanned = (Violation(kind, None, "") for kind in (Kind.LOST, Kind.UNPLANNED))
    bug = BUGS["gate"]
    assert shown_by(bug, [lost]) is lost
    assert shown_by(bug, [Violation(Kind.STUCK, None, "")]) is None
    assert shown_by(bug, [unplanned, lost]) is None


def add(number: int, *, to: int = 0) -> int:
    return number + to


OWNER = SimpleNamespace(add=add)


def test_what_is_called_in_another_way_does_not_fit() -> None:
    assert instead(OWNER, "add", lambda number, *, to=0: 0).made()(1, to=2) == 0
    for other in (lambda number: 0, lambda number, to=0, *, of: 0, lambda *, number, to=0: 0):
        with pytest.raises(DoesNotFit):
            instead(OWNER, "add", other).made()
    with pytest.raises(DoesNotFit):
        instead(OWNER, "subtract", add).made()


def test_a_text_that_is_not_there_once_does_not_fit() -> None:
    assert edited(OWNER, "add", ("number + to", "number - to")).made()(1, to=2) == -1
    for gone in ("number * to", "number"):
        with pytest.raises(DoesNotFit):
            edited(OWNER, "add", (gone, "0")).made()
