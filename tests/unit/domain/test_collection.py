"""How much a run of the collection may delete unasked."""

from __future__ import annotations

import pytest

from tideline.domain.collection import Amount, Bounds, held_because

BOUNDS = Bounds(75, 10, Amount(100, 1_000))
WHOLE = Amount(1_000, 100_000)
NONE = Amount()


@pytest.mark.parametrize(
    ("due", "orphans", "listed"),
    [
        (NONE, NONE, WHOLE),
        (Amount(750, 75_000), NONE, WHOLE),
        (Amount(100, 1_000), Amount(100, 1_000), WHOLE),
        (Amount(100, 1_000), Amount(100, 1_000), None),
        (Amount(100, 1_000), NONE, Amount(100, 1_000)),
    ],
    ids=["nothing", "its share", "what is always free", "free unlisted", "free, and all there is"],
)
def test_a_run_within_its_bounds_goes_on(due: Amount, orphans: Amount, listed: Amount) -> None:
    assert held_because(due, orphans, listed, BOUNDS, None) is None


@pytest.mark.parametrize(
    ("due", "orphans", "listed", "why"),
    [
        (Amount(751, 0), NONE, WHOLE, "due: 751 objects of 1000 listed, more than 75 %"),
        (Amount(1, 75_001), NONE, WHOLE, "due: 75001 bytes of 100000 listed, more than 75 %"),
        (Amount(101, 0), Amount(101, 0), WHOLE, "orphans that are due: 101 objects of 1000"),
        (Amount(9, 10_001), Amount(9, 10_001), WHOLE, "orphans that are due: 10001 bytes"),
        (Amount(101, 0), NONE, None, "of an unknown whole"),
    ],
)
def test_a_run_beyond_a_bound_is_held_and_says_which(
    due: Amount, orphans: Amount, listed: Amount, why: str
) -> None:
    assert why in (held_because(due, orphans, listed, BOUNDS, None) or "")


def test_what_is_allowed_goes_and_not_one_object_or_byte_more() -> None:
    allowed = Amount(900, 90_000)
    assert held_because(Amount(900, 90_000), NONE, WHOLE, BOUNDS, allowed) is None
    assert held_because(Amount(901, 90_000), NONE, WHOLE, BOUNDS, allowed) is not None
    assert held_because(Amount(900, 90_001), NONE, WHOLE, BOUNDS, allowed) is not None
    assert held_because(Amount(10, 10), NONE, WHOLE, BOUNDS, Amount(1, 1)) is None
