"""A run of split or merge says what it did, what that asked of the object store, and how fast."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from spark.tiering import job
from spark.tiering.outcomes import Ended, MergeOutcome, SplitOutcome
from spark.tiering.summary import MergeSummary, SplitSummary
from tideline.domain.tiering_totals import Total, latency_buckets
from tideline.kafka.topic_policies import TieringPolicies
from tideline.settings import JobsSettings


def test_a_split_counts_what_its_transactions_did_and_what_went_wrong() -> None:
    summary = SplitSummary()
    summary.add(SplitOutcome(1, "wal/a", Ended.DONE, runs=3, batches=30, bytes=900))
    summary.add(SplitOutcome(2, "wal/b", Ended.FAILED, error="gaps"))
    summary.add(SplitOutcome(3, "wal/c", Ended.STALE))
    # A task that Spark ran twice has split more than what its second attempt tells.
    work = {"files.split": 2, "runs.split": 4, "batches.split": 40, "bytes.split": 1_000}
    summary.end(500, work)
    assert (summary.files, summary.runs, summary.batches, summary.bytes) == (2, 4, 40, 1_000)
    assert (summary.stale, summary.failed) == (1, 1)
    assert summary.complaint is not None
    assert "gaps" in summary.complaint
    assert (summary.elapsed_ms, summary.batches_per_s) == (500, 80.0)


def test_a_merge_tells_its_requests_and_the_rates_of_its_batches_and_segments() -> None:
    summary = MergeSummary(partitions=2)
    for _ in range(2):
        summary.add(MergeOutcome(
            "t", "id", 0, Ended.DONE, "s", batches=40, object_reads=5, bytes_read=900,
            object_writes=6,
        ))  # fmt: skip
    summary.end(4_000, {"segments.created": 2, "batches.merged": 80})
    assert (summary.object_reads, summary.bytes_read, summary.object_writes) == (10, 1_800, 12)
    assert (summary.batches_per_s, summary.segments_per_s) == (20.0, 0.5)


def test_a_run_with_nothing_to_do_has_no_rate() -> None:
    split, merge = SplitSummary(), MergeSummary()
    split.end(0, {})
    merge.end(0, {})
    assert (split.batches_per_s, merge.batches_per_s, merge.segments_per_s) == (0.0, 0.0, 0.0)


class Plane:
    """Takes what runs add up."""

    def __init__(self) -> None:
        self.added: list[dict[str, int]] = []
        self.add_tiering_totals = self.added.append

    def take_tiering_work(self, worker: UUID) -> dict[str, int]:
        return {}


def sums(latency: Total, *elapsed_ms: int) -> Counter[str]:
    added: Counter[str] = Counter({Total.FAILURES: 1})
    for one in elapsed_ms:
        added.update({k: v for k, v in latency_buckets(latency, one).items() if v})
    return added


def test_a_run_adds_up_how_long_each_of_its_files_and_segments_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seed 002, 4.8.1, of what was done; what failed is counted."""
    plane: Any = Plane()
    run: Any = SimpleNamespace(
        settings=JobsSettings.model_validate({"postgres_dsn": "host=x", "kafka_bootstrap": "a:1"}),
        parallelism=1,
        spark=None,
        progress=lambda text: None,
        records=SimpleNamespace(add=lambda *rows: None),
    )
    splits = [
        SplitOutcome(1, "wal/a", Ended.DONE, elapsed_ms=40),
        SplitOutcome(2, "wal/b", Ended.DONE, elapsed_ms=7_000),
        SplitOutcome(3, "wal/c", Ended.STALE, elapsed_ms=7_000),
        SplitOutcome(4, "wal/d", Ended.FAILED, elapsed_ms=7_000, error="gaps"),
    ]
    merges = [
        MergeOutcome("t", "id", 0, Ended.DONE, "s", elapsed_ms=90),
        MergeOutcome("t", "id", 0, Ended.FAILED, "s", elapsed_ms=90, error="gaps"),
    ]
    order = SimpleNamespace(log_id=1, pending_bytes=1)
    reads = SimpleNamespace(cheaper_whole=lambda hosts, most: False, runs=0, objects=0)
    plane.pending_reads = lambda log_ids: reads
    for name, does in (
        ("take_over", lambda job, plane: UUID(int=1)),
        ("split_outcomes", lambda *asked: iter(splits)),
        ("ready", lambda *asked: [order]),
        ("with_lineages", lambda job, orders: orders),
        ("hosts", lambda job: 1),
        ("to_frame", lambda *asked: None),
        ("from_frame", lambda *asked: merges),
        ("frames", SimpleNamespace(merge=lambda *asked, **named: None)),
        ("Share", lambda orders: orders),
    ):
        monkeypatch.setattr(job, name, does)
    rules = TieringPolicies({}, {})
    job.split_all(run, plane, rules)
    job.merge_all(run, plane, rules)
    assert plane.added == [sums(Total.SPLIT_LATENCY, 40, 7_000), sums(Total.MERGE_LATENCY, 90)]
