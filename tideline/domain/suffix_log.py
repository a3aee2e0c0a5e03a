"""The diskless suffix of one partition, as a pure model: offsets, reads, lookups, deletions.

What always holds: offsets begin at B0 and have no gaps, an answer never reaches below B0, and a
record is appended once however often it is sent (seed 000). ``commit_file``, ``find_batches``,
``list_offsets`` and ``delete_records`` do the same in SQL; tests/contract keeps them equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tideline.domain.producer_state import (
    Judgement,
    ProducerEntry,
    RememberedBatch,
    Verdict,
    judge,
    remember,
)

KEYS_KEPT_AHEAD_MS = 60_000
"""A gateway registers object keys ahead and uses one at most this much later: the collector's grace
for keys that were registered and not committed is longer."""


@dataclass(frozen=True, slots=True)
class Appended:
    """One batch of the suffix. Offsets are inclusive; times in ms."""

    base_offset: int
    last_offset: int
    byte_size: int
    append_time: int
    max_timestamp: int


@dataclass(frozen=True, slots=True)
class Produced:
    """A batch that a producer sent. ``producer_id`` -1: not idempotent."""

    record_count: int
    byte_size: int
    max_timestamp: int
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    last_sequence: int = -1


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """``base_offset`` and ``append_time`` are the original's for a duplicate, -1 for a refusal."""

    verdict: Verdict
    base_offset: int = -1
    append_time: int = -1


@dataclass(slots=True)
class SuffixLog:
    """A suffix that begins at ``boundary`` (B0)."""

    boundary: int
    producers: dict[int, ProducerEntry] = field(default_factory=dict)
    batches: list[Appended] = field(default_factory=list)
    high_watermark: int = -1
    start: int = -1

    def __post_init__(self) -> None:
        self.high_watermark = self.start = self.boundary

    def append(
        self, batch: Produced, append_time: int, *, log_append_time: bool = False
    ) -> AppendOutcome:
        """Judge ``batch`` and append it at the high watermark unless it is refused."""
        judged = self._judge(batch)
        if judged.original is not None:
            original = judged.original
            return AppendOutcome(judged.verdict, original.base_offset, original.append_time)
        if judged.verdict is not Verdict.APPEND:
            return AppendOutcome(judged.verdict)
        base = self.high_watermark
        self.high_watermark += batch.record_count
        self.batches.append(
            Appended(
                base_offset=base,
                last_offset=self.high_watermark - 1,
                byte_size=batch.byte_size,
                append_time=append_time,
                max_timestamp=append_time if log_append_time else batch.max_timestamp,
            )
        )
        if batch.producer_id >= 0:
            self.producers[batch.producer_id] = remember(
                self.producers.get(batch.producer_id),
                batch.producer_epoch,
                RememberedBatch(batch.base_sequence, batch.last_sequence, base, append_time),
            )
        return AppendOutcome(Verdict.APPEND, base, append_time)

    def _judge(self, batch: Produced) -> Judgement:
        if batch.producer_id < 0:
            return Judgement(Verdict.APPEND)
        return judge(
            self.producers.get(batch.producer_id),
            batch.producer_epoch,
            batch.base_sequence,
            batch.last_sequence,
        )

    def readable(self) -> list[Appended]:
        """Batches that hold an offset at or after the start."""
        return [batch for batch in self.batches if batch.last_offset >= self.start]

    def find(self, fetch_offset: int, max_bytes: int) -> tuple[str, list[Appended]]:
        """The error, and batches from ``fetch_offset`` on: at least one if any is available."""
        if fetch_offset < self.boundary:
            return "BELOW_BOUNDARY", []
        if not self.start <= fetch_offset <= self.high_watermark:
            return "OFFSET_OUT_OF_RANGE", []
        found: list[Appended] = []
        for batch in self.readable():
            if batch.last_offset < fetch_offset:
                continue
            if found and sum(b.byte_size for b in found) + batch.byte_size > max_bytes:
                break
            found.append(batch)
        return "NONE", found

    def at_timestamp(self, timestamp: int) -> Appended | None:
        """The first batch with a record at or after ``timestamp``."""
        return next((b for b in self.readable() if b.max_timestamp >= timestamp), None)

    def of_max_timestamp(self) -> Appended | None:
        """The first batch that holds the largest timestamp."""
        return max(self.readable(), key=lambda b: (b.max_timestamp, -b.last_offset), default=None)

    def delete_records(self, before_offset: int) -> int:
        """Advance the start (never back, never past the high watermark) and return it."""
        if not 0 <= before_offset <= self.high_watermark:
            raise ValueError(
                f"offset {before_offset} lies outside 0..{self.high_watermark}, the high watermark"
            )
        self.start = max(self.start, before_offset)
        return self.start
