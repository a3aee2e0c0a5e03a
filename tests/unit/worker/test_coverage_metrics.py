"""The gauges of coverage say what the last verdicts say."""

from __future__ import annotations

from uuid import UUID

from prometheus_client import CollectorRegistry

from tideline.control_plane.tiering_model import CoverageStatusRow
from tideline.worker.metrics import CoverageGauges


def row(
    partition: int, complete: bool | None, observed_at: int | None, missing: int = 0
) -> CoverageStatusRow:
    return CoverageStatusRow(
        topic="orders", topic_id=UUID(int=1), partition=partition, log_id=partition,
        state="HYBRID", generation=1, boundary=100, tiering_complete=bool(complete),
        complete=complete, reason=None, detail={"missing_offsets": missing},
        observed_at=observed_at,
    )  # fmt: skip


def test_partitions_are_counted_by_verdict_and_the_age_is_that_of_the_newest_and_the_oldest() -> (
    None
):
    registry = CollectorRegistry()
    gauges = CoverageGauges(registry)
    gauges.update([row(0, True, 1_000), row(1, False, 5_000, missing=10), row(2, None, None)],
                  now_ms=9_000)  # fmt: skip

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"inkless_coverage_{name}", labels)

    assert value("partitions", verdict="covered") == 1
    assert value("partitions", verdict="not_covered") == 1
    assert value("partitions", verdict="not_looked_at") == 1
    assert value("missing_offsets", topic="orders", partition="1") == 10
    assert value("missing_offsets", topic="orders", partition="0") is None
    assert value("last_report_age_seconds", which="newest") == 4
    assert value("last_report_age_seconds", which="oldest") == 8


def test_what_is_covered_again_has_no_missing_offsets() -> None:
    registry = CollectorRegistry()
    gauges = CoverageGauges(registry)
    gauges.update([row(1, False, 5_000, missing=10)], now_ms=9_000)
    gauges.update([row(1, True, 6_000)], now_ms=9_000)
    labels = {"topic": "orders", "partition": "1"}
    assert registry.get_sample_value("inkless_coverage_missing_offsets", labels) is None
