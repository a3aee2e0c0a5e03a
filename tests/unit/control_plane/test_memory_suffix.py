"""A suffix whose old batches become segments: what may be merged, and where it then begins."""

from __future__ import annotations

from uuid import UUID

import pytest

from tideline.control_plane.errors import StaleClaim, TieredRangeGone
from tideline.control_plane.memory.suffix import MergeRun, Suffix
from tideline.control_plane.model import BatchToCommit, SegmentCoordinates
from tideline.domain.ids import TopicIdPartition

LOG = TopicIdPartition(UUID(int=1), 0)


def suffix(*sizes: int, boundary: int = 10, prefix_start: int = -1) -> Suffix:
    """Split batches of one record each."""
    tiered = Suffix(boundary, prefix_start=prefix_start)
    for size in sizes:
        batch = BatchToCommit(LOG, 0, size, 1, 0, "CreateTime")
        tiered.split.add(tiered.append(batch, "wal", now_ms=0).base_offset)
    return tiered


def planned(tiered: Suffix, token: int = 1, max_bytes: int = 1_000) -> MergeRun:
    plan = tiered.plan(token, max_bytes)
    assert plan is not None
    return plan


def finish(tiered: Suffix, run: MergeRun) -> None:
    size = sum(batch.byte_size for batch in run.batches)
    segment = SegmentCoordinates(
        UUID(int=run.token), "stem", run.base_offset, run.last_offset, size, 0, 8, 12
    )
    tiered.finish(run, segment)


def test_a_segment_takes_whole_batches_that_fit_and_one_at_least() -> None:
    tiered = suffix(100, 100, 300)
    assert (planned(tiered, 1, 250).base_offset, planned(tiered, 1, 250).last_offset) == (10, 11)
    assert planned(tiered, 2, 1).last_offset == 10
    assert planned(tiered, 3, 500).last_offset == 12


def test_nothing_is_merged_across_what_is_not_split() -> None:
    tiered = suffix(100, 100, 100)
    tiered.split.remove(11)
    assert [b.base_offset for b in tiered.mergeable()] == [10]
    tiered.split.remove(10)
    assert tiered.plan(1, 1_000) is None


def test_segments_follow_each_other_and_the_frontier_moves() -> None:
    tiered = suffix(100, 100, 100)
    assert tiered.frontier == 10
    finish(tiered, planned(tiered, 1, 200))
    assert tiered.frontier == 12
    assert planned(tiered, 2).base_offset == 12
    assert tiered.tiered_start == 10


def test_a_plan_is_refused_when_another_took_over_or_its_range_is_gone() -> None:
    tiered = suffix(100, 100)
    old = planned(tiered, 1, 100)
    new = planned(tiered, 2, 100)
    with pytest.raises(StaleClaim):
        finish(tiered, old)
    tiered.start = 11
    with pytest.raises(TieredRangeGone):
        finish(tiered, new)
    assert tiered.segments == []


def test_without_prefix_and_segment_nothing_is_tiered() -> None:
    tiered = suffix(100, 100, prefix_start=0)
    finish(tiered, planned(tiered))
    assert tiered.tiered_start == 0
    tiered.advance_prefix(4)
    assert tiered.tiered_start == 4
    tiered.advance_prefix(12)
    assert tiered.tiered_start == 10
    tiered.start = 11
    assert tiered.tiered_start == 11
    tiered.start = 12
    assert tiered.tiered_start == -1


def test_an_offset_that_is_merged_is_read_from_its_segment() -> None:
    tiered = suffix(100, 100, 100)
    finish(tiered, planned(tiered, 1, 200))
    for offset, segment in ((10, UUID(int=1)), (11, UUID(int=1)), (12, None)):
        found = tiered.segment_at(offset)
        assert (found and found.segment_id) == segment
