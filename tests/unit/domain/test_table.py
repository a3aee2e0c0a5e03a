"""Which segments a prefix is read from, and which offsets are asked for."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tideline.domain.coverage import OffsetRange, assess
from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import EpochStart, RemoteSegment, SegmentState
from tideline.domain.table import (
    Bounds,
    TableRefused,
    parse_offsets,
    prefix_cover,
    resolve,
    uncovered,
)
from tideline.errors import UsageError

LOG = TopicIdPartition(UUID(int=1), 0)
FINISHED = SegmentState.COPY_SEGMENT_FINISHED
LINEAGE = (EpochStart(0, 0), EpochStart(2, 40), EpochStart(3, 70))


@st.composite
def segments(draw: st.DrawFn) -> list[RemoteSegment]:
    found = []
    for number in range(draw(st.integers(0, 12))):
        start = draw(st.integers(0, 90))
        end = draw(st.integers(start, 99))
        epochs = [EpochStart(draw(st.integers(0, 3)), start)]
        if end > start and draw(st.booleans()):
            epochs.append(EpochStart(epochs[0].epoch + 1, draw(st.integers(start + 1, end))))
        found.append(
            RemoteSegment(
                LOG, "t", UUID(int=number + 1), start, end, 1, tuple(epochs),
                draw(st.sampled_from([*list(SegmentState)[:3], *[FINISHED] * 3])),
            )
        )  # fmt: skip
    return found


@settings(max_examples=300)
@given(segments(), st.integers(0, 99), st.integers(0, 99))
def test_a_prefix_is_covered_as_coverage_judges_it_and_each_offset_once(
    given_segments: list[RemoteSegment], start: int, end: int
) -> None:
    wanted = OffsetRange(start, max(start, end))
    cover, gaps = prefix_cover(wanted, given_segments, LINEAGE)
    assert tuple(gaps) == assess(wanted.start, wanted.end, given_segments, None, LINEAGE).gaps
    pieces = sorted([piece.range for piece in cover] + list(gaps))
    assert [o for r in pieces for o in range(r.start, r.end)] == list(
        range(wanted.start, wanted.end)
    )
    again, _ = prefix_cover(wanted, list(reversed(given_segments)), LINEAGE)
    assert again == cover, "the order in which segments are told does not matter"


def test_offsets_are_named_as_in_sparks_source_for_kafka() -> None:
    assert parse_offsets("startingOffsets", "earliest", "t", [0, 1]) == {0: -2, 1: -2}
    text = '{"t": {"0": 23, "1": -1}}'
    assert parse_offsets("startingOffsets", text, "t", [0, 1]) == {0: 23, 1: -1}
    for wrong in ("first", '{"u": {"0": 1}}', '{"t": {"0": 1}}', '{"t": {"0": -3, "1": 0}}', "[]"):
        with pytest.raises(UsageError, match="startingOffsets"):
            parse_offsets("startingOffsets", wrong, "t", [0, 1])


def test_an_offset_outside_of_the_log_is_refused_with_what_there_is() -> None:
    whole = {0: OffsetRange(10, 20)}
    assert resolve({0: -2}, whole, "t", "o") == {0: 10}
    assert resolve({0: -1}, whole, "t", "o") == {0: 20}
    for outside in (9, 21):
        with pytest.raises(TableRefused, match="offsets 10 to 19"):
            resolve({0: outside}, whole, "t", "o")


def test_gaps_between_what_is_held_are_found() -> None:
    held = [OffsetRange(0, 5), OffsetRange(3, 6), OffsetRange(8, 9)]
    assert uncovered(OffsetRange(2, 12), held) == [OffsetRange(6, 8), OffsetRange(9, 12)]


def test_bounds_only_narrow() -> None:
    found = Bounds().only([1, 2]).only([2, 3])
    assert found.partitions == {2}
    assert Bounds(first=5, end=3).clip(OffsetRange(0, 9)) is None
