"""Which batch may be split, what the next segment holds, and where an offset lives: what the SQL of
tiering is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tideline.domain.tiering import MAX_SEGMENT_SPAN, LogBounds, Place, R, age, placements


class Eligibility(StrEnum):
    """Whether a batch may be split out of its WAL file, and if not why."""

    ELIGIBLE = "eligible"
    DELETED = "topic deleted"
    PAUSED = "tiering paused"
    CONVERTED = "already split"
    UNCOMMITTED = "at or past the high watermark"
    EXPIRED = "below the start of the suffix"
    YOUNG = "younger than local.retention.ms"


@dataclass(frozen=True, slots=True)
class PartitionTiering:
    """What decides for all batches of a partition. Offsets: starts inclusive, ends exclusive."""

    suffix_start: int
    high_watermark: int
    cutoff_ms: int | None
    """:meth:`TieringConfig.cutoff`."""
    requested_at_ms: int | None = None
    """An operator asked for tiering then: of what was committed until then age does not matter
    (002 4.8.2, ``triggerTiering``). What comes later waits its time, so that a request ends."""
    paused: bool = False
    deleted: bool = False


def eligibility(
    partition: PartitionTiering,
    *,
    last_offset: int,
    max_timestamp: int,
    append_time: int,
    split: bool,
) -> Eligibility:
    """Judge one batch (002 4.7.4). ``last_offset`` inclusive, times in ms; ``append_time`` is that
    of its commit.

    A batch that reaches past the suffix's start is taken whole, however far below it begins.
    A batch without timestamps (-1) counts as old.
    """
    if partition.deleted:
        return Eligibility.DELETED
    if partition.paused:
        return Eligibility.PAUSED
    if split:
        return Eligibility.CONVERTED
    if last_offset >= partition.high_watermark:
        return Eligibility.UNCOMMITTED
    if last_offset < partition.suffix_start:
        return Eligibility.EXPIRED
    old = partition.cutoff_ms is not None and age(max_timestamp, append_time) < partition.cutoff_ms
    requested = partition.requested_at_ms is not None and append_time <= partition.requested_at_ms
    return Eligibility.ELIGIBLE if old or requested else Eligibility.YOUNG


def oldest_files(
    ages: Mapping[int, Sequence[int]], max_files: int, max_batches: int, from_ms: int | None = None
) -> list[int]:
    """What a claim takes of the files that may be claimed, oldest first.

    ``ages``: file → age of each of its batches, all of them eligible.
    """
    first = {
        file: min(found)
        for file, times in ages.items()
        if (found := [age for age in times if from_ms is None or age >= from_ms])
    }
    taken: list[int] = []
    batches = 0
    for file in sorted(first, key=lambda file: (first[file], file))[:max_files]:
        batches += len(ages[file])
        if taken and batches > max_batches:
            break
        taken.append(file)
    return taken


def segment_reach(runs: Sequence[R], frontier: int, limit_bytes: int) -> tuple[R, ...]:
    """The leading runs that make the next segment: without a gap from ``frontier`` (inclusive) on,
    as many as ``limit_bytes`` and 32 bit offsets allow, at least one when one begins there.

    Kafka's rule (``LogSegment.shouldRoll``): a segment closes before what would make it too large.
    """
    taken: list[R] = []
    size, following = 0, frontier
    for run in runs:
        too_large = size + run.byte_size > limit_bytes
        too_long = run.last_offset - frontier > MAX_SEGMENT_SPAN
        if run.base_offset != following or (taken and (too_large or too_long)):
            break
        taken.append(run)
        size += run.byte_size
        following = run.last_offset + 1
    return tuple(taken)


def place_of(log: LogBounds, offset: int) -> Place | None:
    """Where one offset lives; ``None`` for one that is gone or not yet written."""
    for placement in placements(log):
        if placement.start <= offset < placement.end:
            return placement.place
    return None
