"""Of a log gap: what remote segments hold, and what nobody holds."""

from __future__ import annotations

from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.coverage import OWN_KINDS, OffsetRange, SegmentObjects
from tideline.domain.ids import TopicIdPartition
from tideline.domain.log_gap import gap_detail, holders, in_words, is_copied, parts_of, ranges
from tideline.domain.remote_log import EpochStart, RemoteSegment, SegmentState

LOG = TopicIdPartition(UUID(int=1), 0)
GAP = OffsetRange(80, 100)
FINISHED = SegmentState.COPY_SEGMENT_FINISHED


def segment(
    number: int, start: int, end: int, state: SegmentState = FINISHED, size: int = 10
) -> RemoteSegment:
    """Offsets inclusive."""
    return RemoteSegment(
        LOG, "orders", UUID(int=number), start, end, size, (EpochStart(3, start),), state
    )


def test_a_gap_has_a_held_and_a_lost_part() -> None:
    parts = parts_of(GAP, [segment(1, 0, 84), segment(2, 85, 94)])
    assert ranges(parts, held=True) == (OffsetRange(80, 95),)
    assert ranges(parts, held=False) == (OffsetRange(95, 100),)
    assert [part.held_by for part in parts] == [(UUID(int=1),), (UUID(int=2),), ()]
    assert in_words(parts) == (
        "remote segments hold 80 to 94, which Kafka does not serve; nobody holds 95 to 99"
    )


def test_what_is_held_behind_a_hole_is_named_too() -> None:
    detail = gap_detail(GAP, parts_of(GAP, [segment(1, 90, 120)]))
    assert detail["offsets"] == {"remote_segments": 10, "nobody": 10}
    assert (detail["first"], detail["end"]) == (80, 100)


def test_a_part_is_kept_when_every_segment_that_has_it_is() -> None:
    both = [segment(1, 80, 99), segment(2, 80, 99)]
    assert not parts_of(GAP, both, frozenset({UUID(int=1)}))[0].kept
    parts = parts_of(GAP, both, frozenset({UUID(int=1), UUID(int=2)}))
    assert parts[0].kept
    assert "(copies are kept)" in in_words(parts)


@pytest.mark.parametrize("state", list(SegmentState))
def test_a_segment_counts_until_a_broker_deletes_it(state: SegmentState) -> None:
    """Whatever size its object has: what is compressed or encrypted can be unpacked."""
    objects = {UUID(int=1): SegmentObjects(7, OWN_KINDS)}
    found = holders([segment(1, 80, 99, state)], objects)
    assert bool(found) is (state in (SegmentState.COPY_SEGMENT_STARTED, FINISHED))


@pytest.mark.parametrize("objects", [{}, {UUID(int=1): SegmentObjects(None, OWN_KINDS)}])
def test_a_segment_without_its_log_object_holds_nothing(
    objects: dict[UUID, SegmentObjects],
) -> None:
    assert holders([segment(1, 80, 99)], objects) == []


def test_a_copy_has_every_object_and_the_whole_log() -> None:
    original = SegmentObjects(10, OWN_KINDS)
    assert is_copied(original, original)
    assert not is_copied(original, None)
    assert not is_copied(original, SegmentObjects(9, OWN_KINDS))
    assert not is_copied(original, SegmentObjects(10, OWN_KINDS - {"index"}))


@given(
    st.lists(
        st.tuples(st.integers(0, 120), st.integers(0, 30)).map(lambda p: (p[0], p[0] + p[1])),
        max_size=6,
    )
)
def test_parts_are_the_gap_and_each_offset_is_where_segments_have_it(
    spans: list[tuple[int, int]],
) -> None:
    held = [segment(number, first, last) for number, (first, last) in enumerate(spans)]
    parts = parts_of(GAP, held)
    assert [parts[0].range.start, parts[-1].range.end] == [GAP.start, GAP.end]
    for part, following in pairwise(parts):
        assert part.range.end == following.range.start
    for part in parts:
        for offset in range(part.range.start, part.range.end):
            has = {s.segment_id for s in held if s.start_offset <= offset <= s.end_offset}
            assert set(part.held_by) == has
