"""Which partitions retention looks at, what it orders, and what its result says."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from pyspark.sql import Row

from spark.common.kafka_logs import ObservedLog
from spark.retention.job import Survey, has_limit, has_prefix, orders_of, outcome
from spark.retention.tasks import Removed
from tideline.control_plane.tiering_model import PartitionRow
from tideline.domain.retention import Policy
from tideline.errors import UsageError
from tideline.kafka.topic_policies import RetentionPolicies, tracked_topics

TOPIC = UUID(int=1)
HYBRID = PartitionRow(
    log_id=1, topic="t", topic_id=TOPIC, partition=0, state="HYBRID", kind="migrated",
    generation=1, boundary=100, boundary_epoch=3, accepted_gap_from=-1, high_watermark=140,
    log_start=0, suffix_start=100, tiered_start=0, tiered_high_offset=99, merge_frontier=100,
    tiering_complete=True, tiering_reason=None, tiering_paused=False, tiering_requested_at=None,
    user_configs={}, deleted=False,
)  # fmt: skip
MIGRATING = replace(
    HYBRID, state="MIGRATING", boundary=-1, high_watermark=-1, suffix_start=-1, tiered_start=-1
)
LIMITED = RetentionPolicies({TOPIC: Policy(5_000, 700)})


def survey(row: PartitionRow, log_start: int | None = None, problem: str | None = None) -> Survey:
    observed = {}
    if log_start is not None or problem is not None:
        observed = {row.log_id: ObservedLog(row.log_id, log_start or 0, problem=problem)}
    return Survey({row.log_id: row}, LIMITED, observed)


def planned(**columns: object) -> Row:
    values: dict[str, object] = {
        "log_id": 1, "before_offset": 120, "prefix_before": 100, "suffix_before": 120,
        "by_time": 2, "by_size": 1, "removed_bytes": 30, "blocked": False, "boundary": 100,
    }  # fmt: skip
    return Row(**(values | columns))


def test_before_b0_only_a_size_limit_that_kafka_does_not_know_is_ours() -> None:
    assert not has_limit(MIGRATING, LIMITED)
    held = replace(MIGRATING, user_configs={"retention.bytes": "700"})
    assert has_limit(held, LIMITED)
    assert not has_limit(held, RetentionPolicies({TOPIC: Policy(5_000)}))


def test_from_b0_on_every_limit_is_ours() -> None:
    assert has_limit(HYBRID, LIMITED)
    assert not has_limit(HYBRID, RetentionPolicies({TOPIC: Policy()}))
    assert not has_limit(HYBRID, RetentionPolicies())


def test_a_prefix_ends_where_only_merged_segments_are_tiered() -> None:
    assert has_prefix(HYBRID)
    assert not has_prefix(replace(HYBRID, tiered_start=100))
    assert not has_prefix(replace(HYBRID, state="DISKLESS_ONLY", tiered_start=-1))
    assert not has_prefix(MIGRATING)


def test_what_is_planned_is_ordered_and_shown() -> None:
    seen = survey(HYBRID, log_start=0)
    (order,) = orders_of(seen, [planned()])
    assert (order.prefix_before, order.suffix_before, order.prefix_moved) == (100, 120, False)
    told = outcome(seen, [planned()], [order], [Removed(1, 100, 120)], False)
    assert told.failed is None
    assert told.details["removals"] == [
        {
            "topic": "t", "partition": 0, "state": "HYBRID", "boundary": 100, "log_start": 0,
            "new_log_start": 120, "prefix_before": 100, "suffix_before": 120, "by_time": 2,
            "by_size": 1, "bytes": 30, "kafka_moved_its_start": False, "done": True,
        }
    ]  # fmt: skip


def test_kafkas_own_expiry_is_an_order_too() -> None:
    seen = survey(HYBRID, log_start=40)
    (order,) = orders_of(seen, [])
    assert (order.prefix_moved, order.prefix_start) == (True, 40)
    assert orders_of(survey(replace(HYBRID, tiered_start=40), log_start=40), []) == []


def test_a_log_start_past_b0_counts_as_b0() -> None:
    """A tail past B0 that nobody serves has expired too."""
    gone = survey(replace(HYBRID, tiered_start=99), log_start=130)
    assert orders_of(gone, [])[0].prefix_moved


def test_a_partition_that_was_not_observed_makes_the_run_fail() -> None:
    seen = survey(HYBRID, problem="the partition has no leader")
    assert orders_of(seen, []) == []
    told = outcome(seen, [], [], [], False)
    assert told.failed is not None
    assert "t-0: the partition has no leader" in told.failed


def test_what_is_held_back_is_shown_with_its_reason() -> None:
    row = planned(before_offset=50, prefix_before=50, suffix_before=None, blocked=True)
    seen = survey(HYBRID, log_start=0)
    told = outcome(seen, [row], orders_of(seen, [row]), [], True)
    (held,) = told.details["held_back"]  # type: ignore[misc]
    assert "[50, 100)" in held["reason"]


def test_a_topic_that_is_not_tracked_is_refused_by_name() -> None:
    assert tracked_topics(["t"], [HYBRID]) == {"t"}
    with pytest.raises(UsageError, match="'other' is not tracked"):
        tracked_topics(["other"], [HYBRID])
    with pytest.raises(UsageError, match="'t' is not tracked"):
        tracked_topics(["t"], [replace(HYBRID, deleted=True)])
