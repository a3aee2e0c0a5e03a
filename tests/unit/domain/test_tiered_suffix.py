"""A suffix whose old batches become segments: what may be merged, and where it then begins."""

from __future__ import annotations

from tideline.domain.migration import MigrationState
from tideline.domain.suffix_log import Produced, SuffixLog
from tideline.domain.tiered_suffix import MergeRefusal, Plan, TieredSuffix


def suffix(*sizes: int, boundary: int = 10, prefix_start: int = -1) -> TieredSuffix:
    """Split batches of one record each."""
    log = SuffixLog(boundary)
    tiered = TieredSuffix(log, prefix_start)
    for size in sizes:
        tiered.mark_split(log.append(Produced(1, size, 0), append_time=0).base_offset)
    return tiered


def planned(tiered: TieredSuffix, token: int = 1, max_bytes: int = 1_000) -> Plan:
    plan = tiered.plan(token, max_bytes)
    assert plan is not None
    return plan


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
    assert tiered.finish(planned(tiered, 1, 200)) is None
    assert tiered.frontier == 12
    assert planned(tiered, 2).base_offset == 12
    assert (tiered.state, tiered.tiered_start) == (MigrationState.HYBRID, 10)


def test_a_plan_is_refused_when_another_took_over_or_its_range_is_gone() -> None:
    tiered = suffix(100, 100)
    old = planned(tiered, 1, 100)
    new = planned(tiered, 2, 100)
    assert tiered.finish(old) is MergeRefusal.STALE_CLAIM
    tiered.log.delete_records(11)
    assert tiered.finish(new) is MergeRefusal.RANGE_GONE
    tiered.deleted = True
    assert tiered.finish(new) is MergeRefusal.TOPIC_DELETED
    assert tiered.plan(3, 100) is None
    assert tiered.segments == []


def test_without_prefix_and_segment_a_log_is_diskless_only() -> None:
    tiered = suffix(100, 100, prefix_start=0)
    tiered.finish(planned(tiered))
    assert tiered.tiered_start == 0
    tiered.advance_prefix(4)
    assert tiered.tiered_start == 4
    tiered.advance_prefix(12)
    assert (tiered.state, tiered.tiered_start) == (MigrationState.HYBRID, 10)
    tiered.log.delete_records(11)
    assert tiered.tiered_start == 11
    tiered.log.delete_records(12)
    assert (tiered.state, tiered.tiered_start) == (MigrationState.DISKLESS_ONLY, -1)
