"""Rows that share what is the same are as good as a copy of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tideline.gateway.tracking.rows import PAGE, Rows

numbers = st.integers(0, 3 * PAGE)
changes = st.lists(st.dictionaries(numbers, st.none() | st.integers(), max_size=5), max_size=8)


@given(st.dictionaries(numbers, st.integers()), changes)
def test_they_are_what_a_copy_with_the_same_changes_is(
    begun: dict[int, int], history: list[dict[int, int | None]]
) -> None:
    rows, copy = Rows(begun), dict(begun)
    for changed in history:
        before, kept = rows, dict(copy)
        rows = rows.put(changed)
        copy = {n: row for n, row in (copy | changed).items() if row is not None}
        assert rows == copy
        assert len(rows) == len(copy)
        assert before == kept, "whoever reads it meanwhile sees what was"
        assert set(rows.unlike(before)) == {
            n for n in copy.keys() | kept.keys() if copy.get(n) is not kept.get(n)
        }


def test_two_states_are_compared_at_the_cost_of_what_is_other() -> None:
    looked = 0

    class Row:
        def __eq__(self, other: object) -> bool:
            nonlocal looked
            looked += 1
            return self is other

        __hash__ = object.__hash__

    rows = Rows({number: Row() for number in range(100 * PAGE)})
    assert list(rows.put({5: Row()}).unlike(rows)) == [5]
    assert looked == 0
