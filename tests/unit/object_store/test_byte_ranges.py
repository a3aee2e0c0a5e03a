"""The fewest GETs for many ranges."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.object_store.byte_ranges import (
    COALESCE_GAP,
    MAX_GET,
    ByteRange,
    ReadRanges,
    coalesce,
)


def at(start: int, size: int = 100, key: str = "one", tiered: bool = False) -> ByteRange:
    return ByteRange(key, start, start + size, tiered)


ZEROS = bytes(20_000_000)

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
    read = ReadRanges({at(1000, 200): body, at(1000, 200, key="two"): b""})
    assert bytes(read.slice(at(1010, 5))) == body[10:15]
    for absent in (at(999, 5), at(1198, 5), at(1010, 5, tiered=True), at(1010, 5, key="two")):
        with pytest.raises(KeyError):
            read.slice(absent)


@given(wanted_ranges)
def test_every_wanted_range_is_found_in_what_was_read(wanted: list[ByteRange]) -> None:
    read = ReadRanges({part: memoryview(ZEROS)[: part.size] for part in coalesce(wanted)})
    for part in wanted:
        assert len(read.slice(part)) == part.size


def test_a_range_inside_one_that_is_larger_than_a_get_costs_no_get_of_its_own() -> None:
    large, inside = at(0, MAX_GET + 1), at(0, 61)
    for wanted in ([large, inside], [inside, large], [large, at(5, 61)]):
        assert coalesce(wanted) == [large]


def test_matching_costs_in_proportion_to_the_batches_not_to_their_square() -> None:
    """4,000 batches that lie one per object took seconds of the event loop when each was compared
    with every range read, and a lease is 3 s."""

    def seconds(batches: int) -> float:
        wanted = [at(0, key=f"wal/{number}") for number in range(batches)]
        read = ReadRanges(dict.fromkeys(coalesce(wanted), b"x" * 100))
        began = time.thread_time()
        for part in wanted:
            read.slice(part)
        return time.thread_time() - began

    few, many = (min(seconds(count) for _ in range(3)) for count in (500, 4_000))
    assert many < 8 * 6 * few
