"""What runs of split and merge add to the counters that the worker exports (002 §4.8.1)."""

from __future__ import annotations

from collections import Counter

from spark.tiering.merge_partition import MergeOutcome
from spark.tiering.split_file import Ended, SplitOutcome
from tideline.control_plane.jobs import JobsControlPlane
from tideline.domain.tiering_totals import Total, latency_buckets


class Totals:
    """Sums of one round; told to Postgres in one call. A driver that is killed in between leaves
    its last round uncounted: the data is right all the same."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()

    def add_split(self, outcome: SplitOutcome) -> None:
        """Count one WAL file."""
        self._sums[Total.BATCHES_SPLIT] += outcome.batches
        if outcome.ended == Ended.DONE:
            self._time(Total.SPLIT_LATENCY, outcome.elapsed_ms)
        elif outcome.ended == Ended.FAILED:
            self._sums[Total.FAILURES] += 1

    def add_merge(self, outcome: MergeOutcome) -> None:
        """Count one segment."""
        if outcome.ended == Ended.DONE:
            self._sums[Total.SEGMENTS_CREATED] += 1
            self._sums[Total.BATCHES_MERGED] += outcome.batches
            self._time(Total.MERGE_LATENCY, outcome.elapsed_ms)
        elif outcome.ended == Ended.FAILED:
            self._sums[Total.FAILURES] += 1

    def _time(self, total: Total, elapsed_ms: int) -> None:
        for name, value in latency_buckets(total, elapsed_ms).items():
            self._sums[name] += value

    def tell(self, plane: JobsControlPlane) -> None:
        """Add the sums. Raises as the control plane does."""
        if sums := {name: value for name, value in self._sums.items() if value}:
            plane.add_tiering_totals(sums)
