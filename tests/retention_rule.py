"""Retention of one log, one unit after the other: what the frames and the SQL are held against.

The units of a log, oldest first, are the prefix's remote segments, the merged segments and the WAL
batches. Only a leading run of them goes, judged as Kafka judges remote segments
(``RemoteLogManager.cleanupExpiredRemoteLogSegments``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tideline.domain.coverage import lineage_ranges
from tideline.domain.remote_log import EpochStart, RemoteSegment, SegmentState
from tideline.domain.retention import Policy, gap_before_boundary, log_start


class Region(StrEnum):
    """Where a unit of the log lies, in the order of the log."""

    PREFIX = "prefix"
    MERGED = "merged"
    WAL = "wal"


@dataclass(frozen=True, slots=True)
class Unit:
    """What goes as a whole or not at all. Offsets are inclusive; size in bytes, times in ms."""

    region: Region
    start_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int
    """When it came where none of its records has one."""


@dataclass(frozen=True, slots=True)
class RetainedLog:
    """Where the parts of one log begin and end. Starts are inclusive, ends exclusive."""

    prefix_start: int
    """Kafka's log start offset; may lie past B0."""
    boundary: int
    """B0, −1 while it is unset: all of the log is prefix then."""
    suffix_start: int
    high_watermark: int
    """End of the suffix; −1 while B0 is unset."""
    accepted_gap_from: int = -1
    """First offset of an accepted log gap that ends at B0; −1: there is none."""

    @property
    def prefix_end(self) -> int:
        return self.boundary if self.accepted_gap_from < 0 else self.accepted_gap_from

    @property
    def log_start(self) -> int:
        """Earliest readable offset of the whole log."""
        return log_start(self.prefix_start, self.boundary, self.suffix_start)


def prefix_units(
    bounds: RetainedLog, segments: Iterable[RemoteSegment], lineage: Sequence[EpochStart]
) -> list[Unit]:
    """The readable remote segments of the log's own lineage, below B0, in offset order.

    Segments of a deposed leader count for nothing: their offsets belong to others. One that
    reaches past B0 (a tail that was never acknowledged) ends at B0 as a unit, and so does one that
    reaches an accepted gap, which holds nothing.
    """
    return [
        Unit(
            Region.PREFIX,
            segment.start_offset,
            segment.end_offset
            if bounds.boundary < 0 or segment.end_offset + 1 < bounds.prefix_end
            else bounds.boundary - 1,
            segment.size_bytes,
            segment.max_timestamp,
        )
        for segment in sorted(segments, key=lambda s: (s.start_offset, s.end_offset))
        if segment.state is SegmentState.COPY_SEGMENT_FINISHED
        and segment.end_offset >= bounds.prefix_start
        and (bounds.boundary < 0 or segment.start_offset < bounds.prefix_end)
        and within_lineage(segment, lineage)
    ]


def within_lineage(segment: RemoteSegment, lineage: Sequence[EpochStart]) -> bool:
    """Whether every offset of ``segment`` that the log still has carries the log's own epoch
    there (``RemoteLogManager.isRemoteSegmentWithinLeaderEpochs``).

    ``lineage`` is ascending; offsets below its first entry are no longer of the log. An empty
    lineage belongs to a log that never had a leader, so that nothing is within it.
    """
    if not lineage:
        return False
    own = lineage_ranges(lineage)
    starts = [max(entry.start_offset, segment.start_offset) for entry in segment.leader_epochs]
    stops = [*starts[1:], segment.end_offset + 1]
    for entry, start, stop in zip(segment.leader_epochs, starts, stops, strict=True):
        if start >= stop or stop <= lineage[0].start_offset:
            continue
        mine = own.get(entry.epoch)
        if mine is None or stop > mine.end or max(start, lineage[0].start_offset) < mine.start:
            return False
    return True


@dataclass(slots=True)
class LeadingRun:
    """Takes units in offset order until the first one that stays.

    Kafka's order of the rules: a unit that is too old goes, whatever its size; another one goes
    while the excess still holds all of it. Either way the excess shrinks by its size.
    """

    cutoff_ms: int
    excess: int
    before_offset: int
    """Everything below goes (exclusive)."""
    by_time: int = 0
    by_size: int = 0
    removed_bytes: int = 0

    def too_old(self, unit: Unit) -> bool:
        """``retention.ms`` removes it."""
        return self.cutoff_ms >= 0 and unit.max_timestamp <= self.cutoff_ms

    def too_much(self, unit: Unit) -> bool:
        """``retention.bytes`` removes it."""
        return self.excess > 0 and unit.size_bytes <= self.excess

    def take(self, unit: Unit) -> bool:
        """Whether ``unit`` goes; the run has ended when it does not."""
        if self.too_old(unit):
            self.by_time += 1
        elif self.too_much(unit):
            self.by_size += 1
        else:
            return False
        self.excess = max(self.excess - unit.size_bytes, 0)
        self.removed_bytes += unit.size_bytes
        self.before_offset = max(self.before_offset, unit.end_offset + 1)
        return True


@dataclass(frozen=True, slots=True)
class Removal:
    """What one application of retention removes of one log."""

    before_offset: int
    """The log's start afterwards; the present one when nothing goes."""
    prefix_before: int | None
    """Ask Kafka to delete below this, never past B0; ``None``: nothing of the prefix goes."""
    suffix_before: int | None
    """Ask the control plane to delete below this; ``None``: nothing of the suffix goes."""
    by_time: int
    by_size: int
    removed_bytes: int
    held_back: str | None = None
    """Why the run ended before the suffix although the rules would go on."""


def plan(bounds: RetainedLog, units: Iterable[Unit], policy: Policy, now_ms: int) -> Removal:
    """Apply ``policy`` to a whole log.

    ``units``: what :func:`prefix_units` gives, then the merged segments, then the WAL batches;
    those below the log's start are left out.
    """
    live = [unit for unit in units if unit.end_offset >= bounds.log_start]
    total = sum(unit.size_bytes for unit in live)
    run = LeadingRun(cutoff_ms(policy, now_ms), excess(policy, total), bounds.log_start)
    held_back = None
    for unit in live:
        if unit.region is not Region.PREFIX and run.before_offset < bounds.boundary:
            if run.too_old(unit) or run.too_much(unit):
                held_back = gap_before_boundary(run.before_offset, bounds.boundary)
            break
        if not run.take(unit):
            break
    prefix_before, suffix_before = targets(bounds, run.before_offset)
    return Removal(
        run.before_offset,
        prefix_before,
        suffix_before,
        run.by_time,
        run.by_size,
        run.removed_bytes,
        held_back,
    )


def cutoff_ms(policy: Policy, now_ms: int) -> int:
    """A unit whose largest timestamp is at or before this is too old; −1: no unit is.

    As in Kafka, nothing is too old while ``now_ms`` − retention.ms is negative.
    """
    return max(now_ms - policy.retention_ms, -1) if policy.retention_ms >= 0 else -1


def excess(policy: Policy, total_bytes: int) -> int:
    """Bytes that the log has too many; never negative."""
    return max(total_bytes - policy.retention_bytes, 0) if policy.retention_bytes >= 0 else 0


def targets(bounds: RetainedLog, before_offset: int) -> tuple[int | None, int | None]:
    """Who is asked to delete below which offset: (Kafka, the control plane)."""
    boundary = bounds.boundary
    in_prefix = before_offset if boundary < 0 else min(before_offset, bounds.prefix_end)
    in_suffix = boundary >= 0 and before_offset > max(boundary, bounds.suffix_start)
    return (
        in_prefix if in_prefix > bounds.prefix_start else None,
        before_offset if in_suffix else None,
    )
