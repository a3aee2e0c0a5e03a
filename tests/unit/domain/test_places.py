"""So many topics migrate at once, in the order in which they asked."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.places import newly_admitted, waiting_reason

WAITING = [UUID(int=number) for number in range(4)]


def test_free_places_go_to_those_that_asked_first() -> None:
    assert newly_admitted(WAITING, taken=3, places=5) == WAITING[:2]


def test_a_setting_that_was_lowered_takes_no_place_away_and_gives_none() -> None:
    assert newly_admitted(WAITING, taken=5, places=2) == []


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9))
def test_no_more_have_a_place_than_there_are_and_none_is_left_free(
    waiting: int, taken: int, places: int
) -> None:
    queue = [UUID(int=number) for number in range(waiting)]
    admitted = newly_admitted(queue, taken, places)
    assert list(admitted) == queue[: len(admitted)]
    assert len(admitted) + taken <= max(places, taken)
    assert len(admitted) == waiting or len(admitted) + taken >= places


def test_the_reason_says_how_many_places_there_are_and_who_comes_first() -> None:
    reason = waiting_reason(5, 2)
    assert "waits for one of 5 places" in reason
    assert "2 before it" in reason
