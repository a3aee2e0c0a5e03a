"""What a run of split or of merge did: for people and programs, and for the worker's counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from spark.common.record_rows import SegmentRow
from spark.tiering.outcomes import Ended, MergeOutcome, SplitOutcome
from tideline.control_plane.jobs import JobsControlPlane
from tideline.domain.tiering_totals import Total, latency_buckets

FAILURES_SHOWN = 20


def per_second(count: int, elapsed_ms: int) -> float:
    """The rate over the whole run (seed 002, 8.3), 0 for one that took no time."""
    return round(1000 * count / elapsed_ms, 3) if elapsed_ms else 0.0


@dataclass
class SplitSummary:
    """What a run of split did. Sizes in bytes. What is counted twice nowhere, whoever was killed or
    tried again, comes from the transactions of the work itself."""

    files: int = 0
    """WAL files."""
    runs: int = 0
    """Of offsets of one partition in one WAL file: what merge reads in one piece."""
    batches: int = 0
    bytes: int = 0
    stale: int = 0
    """Files that another worker took over."""
    failed: int = 0
    failures: list[dict[str, object]] = field(default_factory=list)
    elapsed_ms: int = 0
    batches_per_s: float = 0.0

    def end(self, elapsed_ms: int, work: Mapping[str, int]) -> None:
        """The run took so long, from its first claim to its last commit, and did ``work``."""
        self.files = work.get(Total.FILES_SPLIT, 0)
        self.runs = work.get(Total.RUNS_SPLIT, 0)
        self.batches = work.get(Total.BATCHES_SPLIT, 0)
        self.bytes = work.get(Total.BYTES_SPLIT, 0)
        self.elapsed_ms, self.batches_per_s = elapsed_ms, per_second(self.batches, elapsed_ms)

    def add(self, outcome: SplitOutcome) -> None:
        if outcome.ended == Ended.STALE:
            self.stale += 1
        elif outcome.ended == Ended.FAILED:
            self.failed += 1
            if len(self.failures) < FAILURES_SHOWN:
                self.failures.append({"object_key": outcome.object_key, "error": outcome.error})

    @property
    def complaint(self) -> str | None:
        """Why the run is not good, in one line."""
        if not self.failed:
            return None
        return (
            f"{self.failed} WAL files could not be split, the first: {self.failures[0]['error']}. "
            "They are tried again later; `tideline tiering status` shows what is parked"
        )


@dataclass
class MergeSummary:
    """What a run of merge did, counted as :class:`SplitSummary`; but ``object_*`` (requests) and
    ``bytes_read`` are those of the tasks whose result counts."""

    partitions: int = 0
    """That had enough for a segment."""
    segments: int = 0
    batches: int = 0
    """Rows that are gone from Postgres."""
    records: int = 0
    bytes: int = 0
    object_reads: int = 0
    bytes_read: int = 0
    object_writes: int = 0
    stale: int = 0
    """Segments that another worker, retention or a deletion of the topic made needless."""
    failed: int = 0
    failures: list[dict[str, object]] = field(default_factory=list)
    elapsed_ms: int = 0
    batches_per_s: float = 0.0
    segments_per_s: float = 0.0

    def end(self, elapsed_ms: int, work: Mapping[str, int]) -> None:
        """The run took so long, from its first claim to its last commit, and did ``work``."""
        self.segments = work.get(Total.SEGMENTS_CREATED, 0)
        self.batches = work.get(Total.BATCHES_MERGED, 0)
        self.records = work.get(Total.RECORDS_MERGED, 0)
        self.bytes = work.get(Total.BYTES_MERGED, 0)
        self.elapsed_ms = elapsed_ms
        self.batches_per_s = per_second(self.batches, elapsed_ms)
        self.segments_per_s = per_second(self.segments, elapsed_ms)

    def add(self, outcome: MergeOutcome) -> None:
        self.object_reads += outcome.object_reads
        self.bytes_read += outcome.bytes_read
        self.object_writes += outcome.object_writes
        if outcome.ended == Ended.STALE:
            self.stale += 1
        elif outcome.ended == Ended.FAILED:
            self.failed += 1
            if len(self.failures) < FAILURES_SHOWN:
                where = {"topic": outcome.topic, "partition": outcome.partition}
                self.failures.append({**where, "error": outcome.error})

    @property
    def complaint(self) -> str | None:
        """Why the run is not good, in one line."""
        if not self.failed:
            return None
        first = self.failures[0]
        return (
            f"{self.failed} segments could not be merged, the first of "
            f"{first['topic']}-{first['partition']}: {first['error']}. They are tried again "
            "later; `tideline tiering status` shows what is parked"
        )


def record_rows(outcomes: Iterable[MergeOutcome]) -> Iterator[SegmentRow]:
    """What was made or failed, for the table ``segments``."""
    for one in outcomes:
        if one.ended in (Ended.DONE, Ended.FAILED):
            yield SegmentRow(
                one.topic, one.topic_id, one.partition, one.segment_id, one.base_offset,
                one.last_offset, one.size_bytes, one.batches, one.records, one.ended.value,
                one.error,
            )  # fmt: skip


class Totals:
    """What only a run knows for the counters that the worker exports (002 §4.8.1): latencies and
    failures, added in Postgres by one call. A driver that is killed before it leaves them out; what
    was split and merged counts itself."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()

    def add(self, outcome: SplitOutcome | MergeOutcome) -> None:
        if outcome.ended == Ended.FAILED:
            self._sums[Total.FAILURES] += 1
        elif outcome.ended == Ended.DONE:
            latency = (
                Total.SPLIT_LATENCY if isinstance(outcome, SplitOutcome) else Total.MERGE_LATENCY
            )
            for name, value in latency_buckets(latency, outcome.elapsed_ms).items():
                self._sums[name] += value

    def add_to(self, plane: JobsControlPlane) -> None:
        """Add the sums. Raises as the control plane does."""
        if sums := {name: value for name, value in self._sums.items() if value}:
            plane.add_tiering_totals(sums)
