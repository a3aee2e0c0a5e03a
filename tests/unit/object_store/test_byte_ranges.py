"""The fewest GETs for many ranges."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tideline.object_store.byte_ranges import (
    COALESCE_GAP,
    MAX_GET,
    ByteRange,
    coalesce,
    slice_of,
)


def at(start: int, size: int = 100, key: str = "one", tiered: bool = False) -> ByteRange:
    return ByteRange(key, start, start + size, tiered)


wanted_ranges = st.lists(
    st.builds(
        at,
        st.integers(0, 40_000_000),
        st.integers(61, 12_000_000),
        st.sampled_from(["one", "two", "three"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


@given(wanted_ranges)
def test_every_wanted_range_lies_in_one_get(wanted: list[ByteRange]) -> None:
    gets = coalesce(wanted)
    for part in wanted:
        assert any(
            (get.key, get.tiered) == (part.key, part.tiered)
            and get.start <= part.start
            and part.end <= get.end
            for get in gets
        )


@given(wanted_ranges)
def test_a_get_is_bounded_unless_one_range_is_larger(wanted: list[ByteRange]) -> None:
    assert all(get.size <= MAX_GET or get in wanted for get in coalesce(wanted))


@given(wanted_ranges)
def test_neighbours_are_apart_or_would_be_too_large_together(wanted: list[ByteRange]) -> None:
    gets = sorted(coalesce(wanted), key=lambda get: (get.tiered, get.key, get.start))
    for left, right in itertools.pairwise(gets):
        assert (
            (left.key, left.tiered) != (right.key, right.tiered)
            or right.start - left.end > COALESCE_GAP
            or max(left.end, right.end) - left.start > MAX_GET
        )


def test_close_ranges_are_read_by_one_get_and_far_ones_by_two() -> None:
    assert len(coalesce([at(0), at(100 + COALESCE_GAP)])) == 1
    assert len(coalesce([at(0), at(101 + COALESCE_GAP)])) == 2


def test_objects_of_one_key_in_two_buckets_are_two() -> None:
    assert len(coalesce([at(0), at(100, tiered=True)])) == 2


def test_a_range_is_cut_out_of_the_get_that_holds_it() -> None:
    body = bytes(range(200))
    read = {at(1000, 200): body, at(1000, 200, key="two"): b""}
    assert bytes(slice_of(read, at(1010, 5))) == body[10:15]
