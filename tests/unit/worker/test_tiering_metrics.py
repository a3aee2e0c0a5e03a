"""Metrics of tiering say what Postgres says, under the seed's names."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry

from tests.unit.cli.test_tiering_view import status
from tideline.control_plane.tiering_model import OldestUnsplit
from tideline.domain.tiering import TieringConfig
from tideline.domain.tiering_totals import LATENCY_BOUNDS_MS, Total, histogram, latency_buckets
from tideline.worker.metrics import Rested, TieringGauges, TieringLagGauges, TieringTotals


def test_gauges_sum_the_partitions_of_a_topic() -> None:
    registry = CollectorRegistry()
    gauges = TieringGauges(registry)
    gauges.update(
        [
            status(
                partition=0,
                pending_batches=3,
                eligible_bytes=10,
                tiered_high_offset=41,
                diskless_start_offset=42,
                pending_split_batches=5,
                pending_bytes=30,
            ),
            status(partition=1, pending_batches=4, parked=True, pending_bytes=12),
        ]
    )
    orders = {"topic": "orders"}
    assert registry.get_sample_value("inkless_tiering_batches_pending_split", orders) == 7
    assert registry.get_sample_value("inkless_tiering_eligible_bytes", orders) == 10
    assert registry.get_sample_value("inkless_tiering_parked_partitions", orders) == 1
    assert registry.get_sample_value("inkless_tiering_batches_pending_merge", orders) == 5
    assert registry.get_sample_value("inkless_tiering_lag_bytes", orders) == 42
    for number, start in (("0", 42), ("1", 10)):
        found = registry.get_sample_value(
            "inkless_diskless_start_offset", {**orders, "partition": number}
        )
        assert found == start
    high = registry.get_sample_value("inkless_tiered_high_offset", {**orders, "partition": "0"})
    assert high == 41
    assert (
        registry.get_sample_value("inkless_tiered_high_offset", {**orders, "partition": "1"})
        is None
    ), "nothing is tiered there"
    gauges.update([])
    assert registry.get_sample_value("inkless_tiering_eligible_bytes", orders) is None


def test_a_topic_is_as_late_as_its_latest_partition() -> None:
    registry, topic = CollectorRegistry(), UUID(int=7)
    gauges = TieringLagGauges(registry)
    configs = {topic: TieringConfig(60_000, 1, 1, 1)}
    oldest = [
        OldestUnsplit("orders", topic, max_timestamp=at, append_time=at) for at in (500, 300, 900)
    ]
    gauges.update(configs, oldest, rows=12, now_ms=65_300)
    orders = {"topic": "orders"}
    assert registry.get_sample_value("inkless_tiering_overdue_seconds", orders) == 5
    assert registry.get_sample_value("inkless_tiering_batch_rows") == 12
    gauges.update(configs, [], rows=0, now_ms=65_300)
    assert registry.get_sample_value("inkless_tiering_overdue_seconds", orders) is None


def test_work_that_took_long_rests_as_many_times_as_long_also_when_it_failed() -> None:
    clock = [100.0]

    def fail_after_a_minute() -> None:
        with counting.work():
            clock[0] += 60
            raise TimeoutError

    counting = Rested(9, lambda: clock[0])
    assert counting.due
    with pytest.raises(TimeoutError):
        fail_after_a_minute()
    clock[0] += 9 * 60 - 1
    assert not counting.due
    clock[0] += 1
    assert counting.due


def test_counters_and_histograms_are_what_the_jobs_have_added_up() -> None:
    registry = CollectorRegistry()
    totals = TieringTotals(registry)
    sums: Counter[str] = Counter({Total.BATCHES_SPLIT: 12, Total.SEGMENTS_CREATED: 3})
    for elapsed in (40, 60, 10_000_000):
        sums.update(latency_buckets(Total.SPLIT_LATENCY, elapsed))
    totals.update(sums)
    assert registry.get_sample_value("inkless_tiering_batches_split_total") == 12
    assert registry.get_sample_value("inkless_tiering_segments_created_total") == 3
    name = "inkless_tiering_split_latency_seconds"
    assert registry.get_sample_value(f"{name}_bucket", {"le": "0.05"}) == 1
    assert registry.get_sample_value(f"{name}_bucket", {"le": "0.1"}) == 2
    assert registry.get_sample_value(f"{name}_bucket", {"le": "300.0"}) == 2
    assert registry.get_sample_value(f"{name}_bucket", {"le": "+Inf"}) == 3
    assert registry.get_sample_value(f"{name}_sum") == 10_000.1


@pytest.mark.parametrize("bound", LATENCY_BOUNDS_MS)
def test_a_bound_belongs_to_its_bucket(bound: int) -> None:
    buckets, _ = histogram(Total.MERGE_LATENCY, latency_buckets(Total.MERGE_LATENCY, bound))
    assert dict(buckets)[str(bound / 1000)] == 1
