"""The suffix of one partition: offsets, reads, lookups, deletions, and its merged segments.

What always holds: offsets begin at B0 and have no gaps, an answer never reaches below B0, and a
record is appended once however often it is sent (seed 000). Merged segments follow each other
without a gap from the suffix's start (or B0) up to the merge frontier F, batches from F up to the
high watermark; readers see the same log as without tiering. Only split batches are merged, in
order, and what retention has removed never is (002 §4.7, §10.7 option B).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile

from tideline.control_plane.errors import StaleClaim, TieredRangeGone
from tideline.control_plane.model import (
    BatchCoordinates,
    BatchToCommit,
    CommitError,
    CommittedBatch,
    ListOffsetsKind,
    SegmentCoordinates,
    SuffixOffset,
)
from tideline.domain.migration import UNDEFINED_OFFSET
from tideline.domain.producer_state import (
    ProducerEntry,
    RememberedBatch,
    Verdict,
    judge,
    remember,
)
from tideline.domain.topic_configs import LOG_APPEND_TIME

FIND_LIMIT = 500
"""Batches of one log that one answer of ``find_batches`` holds at most."""
FIND_LIMIT_IN_ALL = 2_000
"""Batches of all its logs, but one of each log at least."""
SEGMENT_LIMIT = 8
"""Segments that one search by timestamp answers at most."""


@dataclass(frozen=True, slots=True)
class MergeRun:
    """A run of split batches under a merge token."""

    token: int
    batches: tuple[BatchCoordinates, ...]

    @property
    def base_offset(self) -> int:
        return self.batches[0].base_offset

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset


@dataclass(slots=True)
class Suffix:
    """A suffix that begins at ``boundary`` (B0)."""

    boundary: int
    producers: dict[int, ProducerEntry] = field(default_factory=dict)
    batches: list[BatchCoordinates] = field(default_factory=list)
    """Of the WAL region and of the merged one, until they are pruned."""
    prefix_start: int = UNDEFINED_OFFSET
    """First readable offset of Kafka's prefix; -1 when there is none."""
    high_watermark: int = field(init=False)
    start: int = field(init=False)
    """First offset that retention has left, never below B0."""
    split: set[int] = field(default_factory=set)
    """Base offsets of batches that are split."""
    segments: list[SegmentCoordinates] = field(default_factory=list)
    """Registered ones, in offset order."""
    token: int = 0
    """Of the newest merge; 0 when it has ended."""

    def __post_init__(self) -> None:
        self.high_watermark = self.start = self.boundary

    # Appends

    def append(self, batch: BatchToCommit, object_key: str, now_ms: int) -> CommittedBatch:
        """Judge ``batch`` and append it at the high watermark unless it is refused."""
        judged = self._judge(batch)
        error = CommitError(judged.error)
        if judged.original is not None:
            known = judged.original
            return CommittedBatch(error, known.base_offset, known.append_time)
        if error is not CommitError.NONE:
            return CommittedBatch(error)
        base = self.high_watermark
        self.high_watermark += batch.record_count
        by_append = batch.timestamp_type == LOG_APPEND_TIME
        self.batches.append(
            BatchCoordinates(
                object_key=object_key,
                byte_offset=batch.byte_offset,
                byte_size=batch.byte_size,
                base_offset=base,
                last_offset=self.high_watermark - 1,
                timestamp_type=batch.timestamp_type,
                append_time=now_ms,
                max_timestamp=now_ms if by_append else batch.max_timestamp,
            )
        )
        if batch.producer_id >= 0:
            kept = RememberedBatch(batch.base_sequence, batch.last_sequence, base, now_ms)
            known_entry = self.producers.get(batch.producer_id)
            self.producers[batch.producer_id] = remember(
                known_entry, batch.producer_epoch, kept, now_ms
            )
        return CommittedBatch(CommitError.NONE, base, now_ms)

    def _judge(self, batch: BatchToCommit) -> Verdict:
        if batch.producer_id < 0:
            return Verdict("NONE")
        known = self.producers.get(batch.producer_id)
        return judge(known, batch.producer_epoch, batch.base_sequence, batch.last_sequence)

    # Reads

    def readable(self) -> list[BatchCoordinates]:
        """Batches that hold an offset at or after the start, merged or not."""
        return [batch for batch in self.batches if batch.last_offset >= self.start]

    def readable_segments(self) -> list[SegmentCoordinates]:
        return [s for s in self.segments if s.last_offset >= self.start]

    def find_error(self, fetch_offset: int) -> str:
        """Why nothing is read from ``fetch_offset`` on, or ``NONE``."""
        if fetch_offset < self.boundary:
            return "BELOW_BOUNDARY"
        within = self.start <= fetch_offset <= self.high_watermark
        return "NONE" if within else "OFFSET_OUT_OF_RANGE"

    def find(
        self, fetch_offset: int, max_bytes: int, limit: int = FIND_LIMIT
    ) -> list[BatchCoordinates]:
        """Batches from the one that holds ``fetch_offset`` on, as without tiering, up to the next
        hole: at least one, and none only at the high watermark or in a hole."""
        if self.find_error(fetch_offset) != "NONE":
            return []
        found: list[BatchCoordinates] = []
        size, limit = 0, min(limit, FIND_LIMIT)
        for batch in unbroken(self.readable(), fetch_offset):
            if found and (size + batch.byte_size > max_bytes or len(found) >= limit):
                break
            found.append(batch)
            size += batch.byte_size
        return found

    def segment_at(self, offset: int) -> SegmentCoordinates | None:
        """The readable merged segment that holds the offset."""
        holding = (s for s in self.readable_segments() if s.base_offset <= offset <= s.last_offset)
        return next(holding, None)

    def at_timestamp(self, timestamp: int) -> BatchCoordinates | None:
        """The first batch with a record at or after ``timestamp``, as without tiering."""
        return _first_at(self.readable(), timestamp)

    def of_max_timestamp(self) -> BatchCoordinates | None:
        """The first batch that holds the largest timestamp, as without tiering."""
        return _first_of_max(self.readable())

    def list_offsets(self, kind: ListOffsetsKind, timestamp: int) -> SuffixOffset:
        """As ``ControlPlane.list_offsets``: candidates among segments beside the batch."""
        match kind:
            case ListOffsetsKind.EARLIEST:
                return SuffixOffset("NONE", self.start, suffix_start=self.start)
            case ListOffsetsKind.LATEST:
                return SuffixOffset("NONE", self.high_watermark, suffix_start=self.start)
            case ListOffsetsKind.TIMESTAMP:
                young = [s for s in self.readable_segments() if s.max_timestamp >= timestamp]
                batch = _first_at(self.unmerged(), timestamp)
                return self._candidates(young[:SEGMENT_LIMIT], batch)
            case ListOffsetsKind.MAX_TIMESTAMP:
                return self._candidates(self._segments_of_max(), _first_of_max(self.unmerged()))

    def _segments_of_max(self) -> list[SegmentCoordinates]:
        """The first of the largest timestamp, and the one that the suffix starts in unless all its
        records are older."""
        whole = [s for s in self.readable_segments() if s.base_offset >= self.start]
        largest = max((s.max_timestamp for s in whole), default=-1)
        chosen = next((s for s in whole if s.max_timestamp == largest), None)
        cut = [
            s
            for s in self.readable_segments()
            if s.base_offset < self.start and s.max_timestamp >= largest
        ]
        return cut if chosen is None else [*cut, chosen]

    def _candidates(
        self, segments: Sequence[SegmentCoordinates], batch: BatchCoordinates | None
    ) -> SuffixOffset:
        found = segments[0] if segments else batch
        return SuffixOffset(
            "NONE",
            offset=UNDEFINED_OFFSET if found is None else max(found.base_offset, self.start),
            timestamp=-1 if found is None else found.max_timestamp,
            batch=batch,
            segments=tuple(segments),
            suffix_start=self.start,
        )

    # Retention

    def prune(self, *, deleted: bool, limit: int) -> int:
        """Forget at most ``limit`` batches that nobody can read; how many."""
        gone = [b for b in self.batches if deleted or b.last_offset < self.start][:limit]
        self.batches = [b for b in self.batches if b not in gone]
        return len(gone)

    def advance_prefix(self, log_start: int) -> None:
        """Kafka's log start moved; at B0 the prefix is gone."""
        if self.prefix_start >= 0:
            start = max(self.prefix_start, log_start)
            self.prefix_start = start if start < self.boundary else UNDEFINED_OFFSET

    @property
    def has_prefix(self) -> bool:
        """Whether Kafka has anything below B0."""
        return 0 <= self.prefix_start < self.boundary

    @property
    def tiered_start(self) -> int:
        """The first readable offset in tiered storage, or -1."""
        if self.prefix_start >= 0:
            return self.prefix_start
        segments = self.readable_segments()
        return max(segments[0].base_offset, self.start) if segments else UNDEFINED_OFFSET

    # Merging

    @property
    def frontier(self) -> int:
        """F: the first offset that is neither merged nor expired."""
        merged = self.segments[-1].last_offset + 1 if self.segments else self.boundary
        return max(merged, self.start)

    def unmerged(self) -> list[BatchCoordinates]:
        """Readable batches that no segment holds."""
        return [b for b in self.readable() if b.last_offset >= self.frontier]

    def mergeable(self) -> list[BatchCoordinates]:
        """The split batches that follow the frontier without a gap."""
        whole = unbroken(self.unmerged(), self.frontier)
        return list(takewhile(lambda batch: batch.base_offset in self.split, whole))

    def plan(self, token: int, max_bytes: int) -> MergeRun | None:
        """Whole batches up to ``max_bytes``, but one at least; older tokens are lost."""
        candidates = self.mergeable()
        if not candidates:
            return None
        sizes = accumulate(batch.byte_size for batch in candidates)
        fitting = sum(1 for size in sizes if size <= max_bytes)
        self.token = token
        return MergeRun(token, tuple(candidates[: max(fitting, 1)]))

    def finish(self, run: MergeRun, segment: SegmentCoordinates) -> None:
        """Register the segment of ``run``. Raises ``StaleClaim``, ``TieredRangeGone``; then nothing
        changes."""
        if run.token != self.token:
            raise StaleClaim(f"merge token {run.token} is lost")
        if run.last_offset < self.start:
            raise TieredRangeGone(f"retention has removed all up to offset {self.start - 1}")
        self.segments.append(segment)
        self.token = 0


def unbroken(batches: Sequence[BatchCoordinates], offset: int) -> Iterator[BatchCoordinates]:
    """From the batch that holds ``offset`` on, each that begins where the one before it ended."""
    behind = (batch for batch in batches if batch.last_offset >= offset)
    first = next(behind, None)
    if first is None or first.base_offset > offset:
        return
    yield first
    following = first.last_offset + 1
    for batch in behind:
        if batch.base_offset != following:
            return
        yield batch
        following = batch.last_offset + 1


def _first_at(batches: Sequence[BatchCoordinates], timestamp: int) -> BatchCoordinates | None:
    return next((b for b in batches if b.max_timestamp >= timestamp), None)


def _first_of_max(batches: Sequence[BatchCoordinates]) -> BatchCoordinates | None:
    return max(batches, key=lambda b: (b.max_timestamp, -b.last_offset), default=None)
