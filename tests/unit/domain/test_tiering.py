"""What is tiered, when, how far, and where offsets live then."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.remote_log import EpochStart
from tideline.domain.tiering import (
    SHARE_BYTES,
    SHARES_PER_CORE,
    LogBounds,
    MergeReason,
    PendingMerge,
    Place,
    Placement,
    TieringConfig,
    contiguous_runs,
    effective_config,
    merge_reason,
    placements,
    segment_limit,
    suffix_lineage,
    task_shares,
    tiering_age,
)

DAY = 86_400_000
CONFIG = TieringConfig(
    local_retention_ms=DAY, segment_bytes=1_000, segment_ms=DAY, index_interval_bytes=4_096
)


@dataclass(frozen=True)
class Run:
    base_offset: int
    last_offset: int
    byte_size: int


def test_a_topic_without_configs_has_kafkas_defaults_and_is_tiered_after_an_hour() -> None:
    assert effective_config({}) == TieringConfig(DAY // 24, 1 << 30, 7 * DAY, 4_096)


@pytest.mark.parametrize(
    ("local", "retention", "default", "age"),
    [
        (-2, 7 * DAY, DAY, DAY),
        (-2, 5_000, DAY, 5_000),
        (-2, -1, DAY, DAY),
        (-2, 7 * DAY, -1, 7 * DAY),
        (-2, -1, -1, -1),
        (2 * DAY, 7 * DAY, DAY, 2 * DAY),
        (-1, 7 * DAY, DAY, -1),
        (0, 7 * DAY, DAY, 0),
    ],
)
def test_minus_two_means_the_default_age_within_the_retention_and_any_other_value_itself(
    local: int, retention: int, default: int, age: int
) -> None:
    assert tiering_age(local, retention, default) == age


def test_a_topic_without_a_bound_never_grows_old() -> None:
    described = {"local.retention.ms": "-2", "retention.ms": "-1"}
    assert effective_config(described, default_age_ms=-1).cutoff(8_000) is None
    assert effective_config(described).cutoff(DAY) == DAY - DAY // 24


@pytest.mark.parametrize(
    ("max_timestamp", "append_time", "overdue"),
    [(0, 0, 500), (0, DAY + 200, 300), (600, 600, 0), (600, 0, 500), (DAY * 9, 100, 400)],
)
def test_a_batch_is_overdue_since_it_was_old_enough_and_committed(
    max_timestamp: int, append_time: int, overdue: int
) -> None:
    now = DAY + 500
    assert CONFIG.overdue_ms(max_timestamp, append_time, now) == overdue
    never = replace(CONFIG, local_retention_ms=-1)
    assert never.overdue_ms(max_timestamp, append_time, now) == 0


def test_what_the_user_means_outweighs_what_tideline_holds() -> None:
    described = {"local.retention.ms": "-2", "retention.ms": "9000", "segment.bytes": "77"}
    config = effective_config(described, {"local.retention.ms": "100"})
    assert (config.local_retention_ms, config.segment_bytes) == (100, 77)


def test_a_key_that_the_user_left_unset_has_the_brokers_default() -> None:
    config = effective_config(
        {"local.retention.ms": "-2"}, {"local.retention.ms": None}, {"local.retention.ms": "60"}
    )
    assert config.local_retention_ms == 60


def test_a_value_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match=r"segment\.bytes is 'big'"):
        effective_config({"segment.bytes": "big"})


runs = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 400), st.sampled_from([0, 0, 0, 5])), max_size=30
).map(
    lambda drawn: [
        Run(base := sum(n + gap for n, _, gap in drawn[:i]) + gap, base + n - 1, size)
        for i, (n, size, gap) in enumerate(drawn)
    ]
)


@given(batches=runs)
def test_a_run_ends_only_where_offsets_are_missing(batches: list[Run]) -> None:
    cut = list(contiguous_runs(batches))
    assert [batch for run in cut for batch in run] == batches
    for run in cut:
        assert all(b.base_offset == a.last_offset + 1 for a, b in pairwise(run))
    assert all(b[0].base_offset > a[-1].last_offset + 1 for a, b in pairwise(cut))


def test_no_segment_is_larger_than_topic_operator_and_kafka_allow() -> None:
    assert segment_limit(CONFIG, 2_000) == 1_000
    assert segment_limit(CONFIG, 500) == 500
    assert segment_limit(replace(CONFIG, segment_bytes=2**40), 2**40) == 2**31 - 1


@pytest.mark.parametrize(
    ("pending", "expected"),
    [
        (PendingMerge(0, None), None),
        (PendingMerge(0, None, requested=True), None),
        (PendingMerge(499, 0), None),
        (PendingMerge(500, 0), MergeReason.SIZE),
        (PendingMerge(1, 0, requested=True), MergeReason.REQUESTED),
        (PendingMerge(1, -DAY), None),
        (PendingMerge(1, -DAY - 1), MergeReason.AGE),
    ],
)
def test_a_segment_is_made_for_size_age_or_on_request(
    pending: PendingMerge, expected: MergeReason | None
) -> None:
    assert merge_reason(pending, CONFIG, min_segment_bytes=500, limit=1_000, now_ms=0) is expected


def test_small_segments_do_not_wait_for_more_than_one_of_them() -> None:
    pending = PendingMerge(1_000, 0)
    found = merge_reason(pending, CONFIG, min_segment_bytes=1 << 20, limit=1_000, now_ms=0)
    assert found is MergeReason.SIZE


def test_before_the_boundary_the_whole_log_is_kafkas() -> None:
    log = LogBounds(5, -1, -1, -1, 50)
    assert placements(log) == (Placement(Place.KAFKA, 5, 50),)


def test_a_hybrid_log_has_three_regions() -> None:
    log = LogBounds(
        log_start=5, boundary=50, suffix_start=50, tiered_high_offset=79, high_watermark=100
    )
    assert placements(log) == (
        Placement(Place.PREFIX, 5, 50),
        Placement(Place.MERGED, 50, 80),
        Placement(Place.WAL, 80, 100),
    )


def test_retention_leaves_what_is_readable() -> None:
    log = LogBounds(50, 50, 85, 79, 100)
    assert placements(log) == (Placement(Place.WAL, 85, 100),)


@pytest.mark.parametrize(
    ("prefix", "boundary_epoch", "expected"),
    [
        ([], 0, [(0, 50)]),
        ([(0, 5)], 0, [(0, 5)]),
        ([(0, 5), (2, 40)], 2, [(0, 5), (2, 40)]),
        ([(0, 5), (2, 40), (3, 50)], 2, [(0, 5), (2, 40)]),
        ([(0, 5), (3, 50)], 3, [(0, 5), (3, 50)]),
        ([(0, 5), (3, 60)], 2, [(0, 5), (2, 50)]),
    ],
)
def test_the_epochs_of_a_log_go_on_past_b0_without_those_of_later_leaders(
    prefix: list[tuple[int, int]], boundary_epoch: int, expected: list[tuple[int, int]]
) -> None:
    told = suffix_lineage([EpochStart(*entry) for entry in prefix], 50, boundary_epoch)
    assert [(entry.epoch, entry.start_offset) for entry in told] == expected


def test_an_empty_suffix_leaves_the_prefix() -> None:
    assert placements(LogBounds(5, 50, 100, 99, 100)) == (Placement(Place.PREFIX, 5, 50),)


@given(offsets=st.lists(st.integers(0, 40), min_size=5, max_size=5), born_diskless=st.booleans())
def test_every_readable_offset_lives_in_exactly_one_place(
    offsets: list[int], born_diskless: bool
) -> None:
    start, boundary, merged, suffix, end = sorted(offsets)[0], *sorted(offsets)[1:4], max(offsets)
    if born_diskless:
        start = boundary = 0
    log = LogBounds(start, boundary, max(boundary, suffix), max(merged, boundary) - 1, end)
    regions = placements(log)
    for offset in range(end + 1):
        holding = [r.place for r in regions if r.start <= offset < r.end]
        readable = start <= offset < boundary or log.suffix_start <= offset < end
        assert len(holding) == (1 if readable else 0)
    assert sum(r.offsets for r in regions) == max(0, boundary - start) + end - log.suffix_start


@given(sizes=st.lists(st.integers(0, 3 * SHARE_BYTES), max_size=60), cores=st.integers(1, 9))
def test_each_thing_is_one_tasks_and_no_task_has_much_more_than_another(
    sizes: list[int], cores: int
) -> None:
    shares = task_shares(sizes, cores)
    assert sorted(at for share in shares for at in share) == list(range(len(sizes)))
    assert all(shares)
    held = [sum(sizes[at] for at in share) for share in shares]
    if shares:
        assert max(held) - min(held) <= max(sizes)
        assert len(shares) >= min(len(sizes), cores * SHARES_PER_CORE)


def test_a_large_partition_is_a_task_and_small_ones_share_some() -> None:
    assert task_shares([SHARE_BYTES] * 6, 2) == [[n] for n in range(6)]
    small = task_shares([1 << 20] * 500, 2)
    assert (len(small), {len(share) for share in small}) == (8, {62, 63})
    assert len(task_shares([1 << 20] * 500, 100)) == 400
    mixed = task_shares([1 << 20] * 50 + [1 << 30], 2)
    assert mixed[0] == [50], "the largest one begins first, alone"
    assert task_shares([], 2) == []
