"""A run of split or merge says what it did, what that asked of the object store, and how fast."""

from __future__ import annotations

from spark.tiering.outcomes import Ended, MergeOutcome, SplitOutcome
from spark.tiering.summary import MergeSummary, SplitSummary


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
