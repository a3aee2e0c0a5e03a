"""Retention over prefix and suffix as one log (seed 000; seed 004's question)."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.retention_rule import (
    Region,
    Removal,
    RetainedLog,
    Unit,
    plan,
    prefix_units,
    within_lineage,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import EpochStart, RemoteSegment, SegmentState
from tideline.domain.retention import Policy, policy_of

NOW = 1_000_000
LOG = TopicIdPartition(UUID(int=1), 0)


def units(*spans: tuple[Region, int, int, int], size: int = 10) -> list[Unit]:
    """(region, start, end inclusive, max timestamp)."""
    return [Unit(region, start, end, size, at) for region, start, end, at in spans]


HYBRID = RetainedLog(prefix_start=0, boundary=100, suffix_start=100, high_watermark=140)
WHOLE_LOG = units(
    (Region.PREFIX, 0, 49, 100),
    (Region.PREFIX, 50, 99, 200),
    (Region.MERGED, 100, 119, 300),
    (Region.WAL, 120, 129, 400),
    (Region.WAL, 130, 139, 500),
)


def keep_ms(timestamp: int) -> Policy:
    """A policy under which units up to ``timestamp`` are too old at ``NOW``."""
    return Policy(retention_ms=NOW - timestamp)


def test_without_limits_nothing_goes() -> None:
    removal = plan(HYBRID, WHOLE_LOG, Policy(), NOW)
    assert removal == Removal(0, None, None, 0, 0, 0)


@pytest.mark.parametrize(
    ("newest_gone", "start", "prefix_before", "suffix_before"),
    [
        (99, 0, None, None),
        (100, 50, 50, None),
        (200, 100, 100, None),
        (300, 120, 100, 120),
        (400, 130, 100, 130),
        (500, 140, 100, 140),
    ],
)
def test_time_removes_unit_after_unit_across_the_boundary(
    newest_gone: int, start: int, prefix_before: int | None, suffix_before: int | None
) -> None:
    removal = plan(HYBRID, WHOLE_LOG, keep_ms(newest_gone), NOW)
    assert removal.before_offset == start
    assert (removal.prefix_before, removal.suffix_before) == (prefix_before, suffix_before)


@pytest.mark.parametrize(
    ("retention_bytes", "start"), [(50, 0), (41, 0), (40, 50), (30, 100), (29, 100), (0, 140)]
)
def test_size_counts_both_regions_and_takes_only_whole_units_of_the_excess(
    retention_bytes: int, start: int
) -> None:
    removal = plan(HYBRID, WHOLE_LOG, Policy(retention_bytes=retention_bytes), NOW)
    assert removal.before_offset == start
    assert removal.removed_bytes <= max(50 - retention_bytes, 0)


def test_what_is_too_old_counts_against_the_excess() -> None:
    """The first unit goes by age and pays for ten of the twenty bytes that are too many."""
    removal = plan(HYBRID, WHOLE_LOG, Policy(NOW - 100, 30), NOW)
    assert (removal.by_time, removal.by_size, removal.before_offset) == (1, 1, 100)


def test_a_young_unit_protects_what_is_older_behind_it() -> None:
    log = units((Region.PREFIX, 0, 99, 900), (Region.WAL, 100, 139, 100))
    assert plan(HYBRID, log, keep_ms(500), NOW).before_offset == 0


def test_an_empty_suffix_keeps_the_prefix() -> None:
    """Lesson 2 of the reference product: an empty suffix must not pull the start to B0."""
    bounds = RetainedLog(prefix_start=0, boundary=100, suffix_start=100, high_watermark=100)
    removal = plan(bounds, WHOLE_LOG[:2], keep_ms(100), NOW)
    assert (removal.before_offset, removal.suffix_before) == (50, None)


def test_a_suffix_that_was_emptied_stays_as_it_is() -> None:
    bounds = RetainedLog(prefix_start=100, boundary=100, suffix_start=140, high_watermark=140)
    removal = plan(bounds, [], Policy(0, 0), NOW)
    assert removal == Removal(140, None, None, 0, 0, 0)


def test_kafka_is_never_asked_for_an_offset_past_the_boundary() -> None:
    """A tail past B0 that a zombie wrote was tiered; it ends at B0 as a unit."""
    segment = remote(50, 130, (3, 0))
    found = prefix_units(HYBRID, [remote(0, 49, (3, 0)), segment], [EpochStart(3, 0)])
    assert [(u.start_offset, u.end_offset) for u in found] == [(0, 49), (50, 99)]
    assert plan(HYBRID, found, Policy(0), NOW).prefix_before == 100


def test_the_suffix_waits_for_offsets_of_the_prefix_that_are_not_tiered_yet() -> None:
    log = [WHOLE_LOG[0], *WHOLE_LOG[2:]]
    removal = plan(HYBRID, log, keep_ms(1000), NOW)
    assert (removal.prefix_before, removal.suffix_before) == (50, None)
    assert removal.held_back is not None
    assert "[50, 100)" in removal.held_back


def test_a_gap_before_the_boundary_is_no_complaint_while_nothing_is_due() -> None:
    assert plan(HYBRID, WHOLE_LOG[2:], keep_ms(1), NOW).held_back is None


def test_units_below_the_start_are_gone_already_and_do_not_count() -> None:
    bounds = RetainedLog(prefix_start=50, boundary=100, suffix_start=100, high_watermark=140)
    assert plan(bounds, WHOLE_LOG, Policy(retention_bytes=40), NOW).before_offset == 50


def test_a_partition_without_a_boundary_is_all_prefix() -> None:
    bounds = RetainedLog(prefix_start=0, boundary=-1, suffix_start=-1, high_watermark=-1)
    removal = plan(bounds, WHOLE_LOG[:2], Policy(retention_bytes=10), NOW)
    assert (removal.prefix_before, removal.suffix_before) == (50, None)


def test_a_topic_born_diskless_has_no_prefix() -> None:
    bounds = RetainedLog(prefix_start=0, boundary=0, suffix_start=0, high_watermark=20)
    log = units((Region.MERGED, 0, 9, 100), (Region.WAL, 10, 19, 900))
    removal = plan(bounds, log, keep_ms(100), NOW)
    assert (removal.prefix_before, removal.suffix_before) == (None, 10)


def test_nothing_is_too_old_while_the_clock_is_below_the_retention() -> None:
    assert plan(HYBRID, units((Region.PREFIX, 0, 99, -1)), Policy(NOW + 1), NOW).by_time == 0


# --- properties


@st.composite
def logs(draw: st.DrawFn) -> tuple[RetainedLog, list[Unit]]:
    boundary = draw(st.sampled_from([-1, 0, 30]))
    offset, found = 0, []
    regions = {-1: [Region.PREFIX], 0: [Region.MERGED, Region.WAL]}.get(boundary, list(Region))
    for region in regions:
        for _ in range(draw(st.integers(0, 4))):
            if region is Region.PREFIX and 0 <= boundary <= offset:
                break
            length = draw(st.integers(1, 10))
            end = offset + length - 1
            if region is Region.PREFIX and boundary >= 0:
                end = min(end, boundary - 1)
            size, at = draw(st.integers(0, 30)), draw(st.integers(-1, 100))
            found.append(Unit(region, offset, end, size, at))
            offset = end + 1
        if region is Region.PREFIX and boundary >= 0:
            offset = boundary
    end = offset if boundary >= 0 else -1
    start = draw(st.integers(0, max(offset, 0)))
    prefix_start = start if boundary < 0 else min(start, boundary)
    suffix_start = -1 if boundary < 0 else max(start, boundary)
    return RetainedLog(prefix_start, boundary, suffix_start, end), found


policies = st.builds(Policy, st.integers(-1, 110), st.integers(-1, 120))


@given(logs(), policies, st.integers(0, 110))
def test_retention_is_a_leading_run_that_never_touches_the_boundary(
    log: tuple[RetainedLog, list[Unit]], policy: Policy, now: int
) -> None:
    bounds, all_units = log
    removal = plan(bounds, all_units, policy, now)
    live = [u for u in all_units if u.end_offset >= bounds.log_start]
    gone = [u for u in live if u.end_offset < removal.before_offset]
    assert gone == live[: removal.by_time + removal.by_size]
    assert removal.before_offset >= bounds.log_start
    assert removal.removed_bytes == sum(u.size_bytes for u in gone)
    if removal.prefix_before is not None:
        assert bounds.boundary < 0 or removal.prefix_before <= bounds.boundary
    if removal.suffix_before is not None:
        assert bounds.boundary < removal.suffix_before <= bounds.high_watermark
        assert max(bounds.prefix_start, removal.prefix_before or 0) >= bounds.boundary
    assert_limits_hold(policy, now, gone, live)


def assert_limits_hold(
    policy: Policy, now: int, gone: Sequence[Unit], live: Sequence[Unit]
) -> None:
    """What went was too old or too much, and went last of all that had to."""
    left = sum(u.size_bytes for u in live)
    for unit in gone:
        too_old = (
            0 <= policy.retention_ms <= now and unit.max_timestamp <= now - policy.retention_ms
        )
        too_much = policy.retention_bytes >= 0 and left - unit.size_bytes >= policy.retention_bytes
        assert too_old or too_much
        left -= unit.size_bytes


@given(logs(), policies, st.integers(0, 110))
def test_applying_it_again_removes_nothing_more(
    log: tuple[RetainedLog, list[Unit]], policy: Policy, now: int
) -> None:
    bounds, all_units = log
    first = plan(bounds, all_units, policy, now)
    after = RetainedLog(
        max(bounds.prefix_start, first.prefix_before or 0),
        bounds.boundary,
        max(bounds.suffix_start, first.suffix_before or -1),
        bounds.high_watermark,
    )
    again = plan(after, all_units, policy, now)
    assert (again.prefix_before, again.suffix_before) == (None, None)


# --- the log's own lineage


def remote(
    start: int,
    end: int,
    *epochs: tuple[int, int],
    state: SegmentState = SegmentState.COPY_SEGMENT_FINISHED,
) -> RemoteSegment:
    return RemoteSegment(
        LOG,
        "t",
        UUID(int=start * 1000 + end),
        start,
        end,
        10,
        tuple(EpochStart(*e) for e in epochs),
        state,
        max_timestamp=5,
    )


LINEAGE = [EpochStart(2, 10), EpochStart(5, 40), EpochStart(6, 60)]


@pytest.mark.parametrize(
    ("segment", "within"),
    [
        (remote(10, 39, (2, 10)), True),
        (remote(0, 39, (1, 0), (2, 10)), True),
        (remote(10, 45, (2, 10), (5, 40)), True),
        (remote(10, 45, (2, 10)), False),
        (remote(10, 45, (2, 10), (4, 40)), False),
        (remote(10, 45, (2, 10), (5, 38)), False),
        (remote(60, 70, (6, 60)), True),
        (remote(60, 70, (9, 60)), False),
    ],
)
def test_only_segments_of_the_logs_own_epochs_count(segment: RemoteSegment, within: bool) -> None:
    assert within_lineage(segment, LINEAGE) is within


def test_segments_that_are_not_readable_are_no_units() -> None:
    bounds = RetainedLog(10, -1, -1, -1)
    segments = [
        remote(10, 39, (2, 10), state=SegmentState.COPY_SEGMENT_STARTED),
        remote(0, 9, (1, 0)),
        remote(40, 59, (5, 40)),
    ]
    assert [u.start_offset for u in prefix_units(bounds, segments, LINEAGE)] == [40]


# --- the user's own limits


def test_the_users_size_limit_counts_while_kafka_has_none() -> None:
    configs = {"retention.ms": "5000", "retention.bytes": "-1", "cleanup.policy": "delete"}
    assert policy_of(configs, {"retention.bytes": "700"}) == Policy(5000, 700)
    assert policy_of(configs, {}) == Policy(5000, -1)


def test_a_size_limit_that_the_user_never_set_is_the_brokers() -> None:
    assert policy_of({"retention.ms": "-1"}, {"retention.bytes": None}, 900) == Policy(-1, 900)


def test_a_topic_that_is_not_deleted_from_keeps_everything() -> None:
    configs = {"retention.ms": "1", "retention.bytes": "1", "cleanup.policy": "compact"}
    assert policy_of(configs, {}).unlimited


def test_a_limit_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match=r"retention\.ms='soon'"):
        policy_of({"retention.ms": "soon"}, {})
