"""Every interleaving of a small scope: as it was there are holes, as it is there are none."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.model.schedule import SENTENCES, readable
from tests.model.scopes import AS_IT_IS, AS_IT_WAS_SCOPE, HOLES, Hole
from tests.model.search import TRANSITIONS, Searched, search
from tests.model.state import ALL, KEPT_BY_PEOPLE, Scope
from tests.pages.references import CODE

PAGE = Path("docs/model.md").read_text()
STANDS_FOR = re.compile(r"^\| `(\w+)` \| [^|]+ \| (.+) \|$", re.MULTILINE)

KEPT = re.compile(r"^\| “([^”]+)” \| (?:people|nobody)", re.MULTILINE)


@cache
def searched(scope: Scope) -> Searched:
    """Several tests look at one search."""
    return search(scope)


def test_as_it_was_an_acknowledged_record_could_be_lost() -> None:
    result = searched(AS_IT_WAS_SCOPE)
    print(readable(result))
    assert not result.holds


@pytest.mark.parametrize("hole", HOLES, ids=lambda hole: hole.protection)
def test_a_hole_is_back_when_its_protection_is_taken_away(hole: Hole) -> None:
    without = searched(hole.open)
    print(f"{hole.name}:\n{readable(without)}")
    assert hole.says in str(without.problem)
    protected = searched(hole.protected)
    assert protected.holds, readable(protected)


@pytest.mark.parametrize("name", AS_IT_IS)
def test_as_it_is_nothing_is_lost_twice_different_or_sent_back(name: str) -> None:
    result = searched(AS_IT_IS[name])
    assert result.holds, readable(result)


def test_every_protection_is_shown_to_be_needed() -> None:
    needed = {hole.protection for hole in HOLES} | set().union(*(hole.lines for hole in HOLES))
    assert needed == ALL


def test_the_page_names_what_people_keep_and_what_is_not_built() -> None:
    assert set(KEPT.findall(PAGE)) == KEPT_BY_PEOPLE


def test_a_topic_that_nobody_tracks_takes_records_without_the_control_plane() -> None:
    """I1: no step of Postgres happens, and the record is acknowledged all the same."""
    alone = {"send", "append", "replicate", "tell"}
    others = frozenset(t.__name__ for t in TRANSITIONS) - alone
    result = search(Scope(ids=(0,), tracked=False, budget=(("send", 1),), left_out=others))
    assert result.holds
    assert result.fired == alone


def test_every_transition_stands_for_a_place_in_the_code_or_for_kafka() -> None:
    """That the places exist, tests/pages/test_docs_paths.py checks of every page."""
    places = dict(STANDS_FOR.findall(PAGE))
    assert set(places) == {transition.__name__ for transition in TRANSITIONS}
    for name, place in places.items():
        assert CODE.search(place) or place in ("Kafka", "the machine"), name


def test_every_transition_can_be_told_in_a_sentence() -> None:
    assert {transition.__name__ for transition in TRANSITIONS} == set(SENTENCES)


def test_every_transition_happens_in_some_scope() -> None:
    """One that never happens would show nothing."""
    scopes = [*AS_IT_IS.values(), *(hole.open for hole in HOLES)]
    happened = set().union(*(searched(scope).fired for scope in scopes))
    assert {transition.__name__ for transition in TRANSITIONS} - happened == set()
