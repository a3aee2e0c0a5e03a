"""A run of split or merge says what it did, what that asked of the object store, and how fast."""

from __future__ import annotations

from spark.tiering.merge_partition import MergeOutcome
from spark.tiering.split_file import Ended, SplitOutcome
from spark.tiering.summary import MergeSummary, SplitSummary


def test_a_split_counts_its_requests_also_those_for_a_file_that_is_wrong_in_part() -> None:
    summary = SplitSummary()
    summary.add(SplitOutcome(
        1, "wal/a", Ended.DONE, batches=30, split_files=3,
        object_reads=2, bytes_read=900, object_writes=3, bytes_written=800,
    ))  # fmt: skip
    summary.add(SplitOutcome(
        2, "wal/b", Ended.FAILED, batches=10, split_files=1,
        object_reads=1, bytes_read=100, object_writes=1, bytes_written=50, error="CRC",
    ))  # fmt: skip
    summary.end(500)
    assert (summary.object_reads, summary.bytes_read) == (3, 1_000)
    assert (summary.object_writes, summary.bytes_written) == (4, 850)
    assert (summary.elapsed_ms, summary.batches_per_s) == (500, 80.0)


def test_a_merge_tells_the_rates_of_its_batches_and_segments() -> None:
    summary = MergeSummary(partitions=2)
    for _ in range(2):
        summary.add(MergeOutcome(
            "t", "id", 0, Ended.DONE, "s", batches=40, split_files=5,
            object_reads=5, object_writes=6,
        ))  # fmt: skip
    summary.end(4_000)
    assert (summary.object_reads, summary.object_writes) == (10, 12)
    assert (summary.batches_per_s, summary.segments_per_s) == (20.0, 0.5)


def test_a_run_with_nothing_to_do_has_no_rate() -> None:
    split, merge = SplitSummary(), MergeSummary()
    split.end(0)
    merge.end(0)
    assert (split.batches_per_s, merge.batches_per_s, merge.segments_per_s) == (0.0, 0.0, 0.0)
