"""The suffix of one partition while its batches become merged segments, as a pure model.

What always holds: segments follow each other without a gap from the suffix's start (or B0) up to
the merge frontier F, batches from F up to the high watermark; readers see the same log as without
tiering. Only split batches are merged, in order, and what retention has removed never is (002
§4.7, §10.7 option B). ``begin_merge``, ``finish_merge``, ``delete_records`` and
``advance_prefix_start`` do the same in SQL; tests/contract keeps them equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate

from tideline.domain.migration import UNDEFINED_OFFSET, MigrationState
from tideline.domain.suffix_log import Appended, SuffixLog


class MergeRefusal(StrEnum):
    """Why a finished segment is not registered."""

    STALE_CLAIM = "StaleClaim"
    RANGE_GONE = "TieredRangeGone"
    TOPIC_DELETED = "TopicDeleted"


@dataclass(frozen=True, slots=True)
class Plan:
    """A run of split batches under a merge token."""

    token: int
    batches: tuple[Appended, ...]

    @property
    def base_offset(self) -> int:
        return self.batches[0].base_offset

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset


@dataclass(slots=True)
class TieredSuffix:
    """``log`` is the same suffix without tiering; ``prefix_start`` is Kafka's log start below B0,
    -1 without a prefix."""

    log: SuffixLog
    prefix_start: int = UNDEFINED_OFFSET
    deleted: bool = False
    split: set[int] = field(default_factory=set)
    """Base offsets of batches that are split."""
    segments: list[tuple[Appended, ...]] = field(default_factory=list)
    """Registered ones, in offset order."""
    token: int = 0
    """Of the newest merge; 0 when it has ended."""

    def mark_split(self, base_offset: int) -> None:
        self.split.add(base_offset)

    @property
    def frontier(self) -> int:
        """F: the first offset that is neither merged nor expired."""
        merged = self.segments[-1][-1].last_offset + 1 if self.segments else self.log.boundary
        return max(merged, self.log.start)

    def unmerged(self) -> list[Appended]:
        """Readable batches that no segment holds."""
        return [b for b in self.log.readable() if b.last_offset >= self.frontier]

    def mergeable(self) -> list[Appended]:
        """The split batches that follow the frontier without a gap."""
        found: list[Appended] = []
        for batch in self.unmerged():
            if batch.base_offset not in self.split:
                break
            found.append(batch)
        return found

    def plan(self, token: int, max_bytes: int) -> Plan | None:
        """Whole batches up to ``max_bytes``, but one at least; older tokens are lost."""
        candidates = self.mergeable()
        if self.deleted or not candidates:
            return None
        sizes = accumulate(batch.byte_size for batch in candidates)
        fitting = sum(1 for size in sizes if size <= max_bytes)
        self.token = token
        return Plan(token, tuple(candidates[: max(fitting, 1)]))

    def finish(self, plan: Plan) -> MergeRefusal | None:
        """Register the segment of ``plan`` unless it is refused; then nothing changes."""
        if plan.token != self.token:
            return MergeRefusal.STALE_CLAIM
        if self.deleted:
            return MergeRefusal.TOPIC_DELETED
        if plan.last_offset < self.log.start:
            return MergeRefusal.RANGE_GONE
        self.segments.append(plan.batches)
        self.token = 0
        return None

    def readable_segments(self) -> list[tuple[Appended, ...]]:
        return [s for s in self.segments if s[-1].last_offset >= self.log.start]

    def advance_prefix(self, log_start: int) -> None:
        """Kafka's log start moved; at B0 the prefix is gone."""
        if self.prefix_start >= 0:
            start = max(self.prefix_start, log_start)
            self.prefix_start = start if start < self.log.boundary else UNDEFINED_OFFSET

    @property
    def state(self) -> MigrationState:
        hybrid = self.prefix_start >= 0 or self.readable_segments()
        return MigrationState.HYBRID if hybrid else MigrationState.DISKLESS_ONLY

    @property
    def tiered_start(self) -> int:
        """The first readable offset in tiered storage, or -1."""
        if self.prefix_start >= 0:
            return self.prefix_start
        segments = self.readable_segments()
        return max(segments[0][0].base_offset, self.log.start) if segments else UNDEFINED_OFFSET
