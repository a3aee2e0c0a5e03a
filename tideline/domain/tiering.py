"""When aged suffix data becomes tiered segments, and where each offset of a log lives.

The log of one partition, from B0 on, has one frontier F: below it are merged segments, from it on
batches in WAL objects. What always holds: F only grows, nothing is merged that could still change
(a batch at or past the high watermark) or that nobody may read any more (below the suffix's
start), and a segment is a run of offsets without a gap (seed 002, 4.7.4, 4.7.9, 10.7).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapreplace
from typing import Protocol, TypeVar

from tideline.domain.migration import UNDEFINED_OFFSET
from tideline.domain.remote_log import EpochStart

LOCAL_RETENTION_MS = "local.retention.ms"
RETENTION_MS = "retention.ms"
SEGMENT_BYTES = "segment.bytes"
SEGMENT_MS = "segment.ms"
INDEX_INTERVAL_BYTES = "index.interval.bytes"

KAFKA_DEFAULTS: Mapping[str, int] = {
    LOCAL_RETENTION_MS: -2,
    RETENTION_MS: 604_800_000,
    SEGMENT_BYTES: 1_073_741_824,
    SEGMENT_MS: 604_800_000,
    INDEX_INTERVAL_BYTES: 4_096,
}
"""Kafka's own defaults (``TopicConfig``), for a key that neither topic nor broker sets."""

AS_RETENTION = -2
"""``local.retention.ms``: the less of ``retention.ms`` and :data:`DEFAULT_AGE_MS`."""
UNLIMITED = -1
REQUEST_BYTES = 64 * 1024
"""What a request to an object store costs, in bytes that cost as much."""
SHARE_BYTES = 64 * 1024 * 1024
"""Of a task of merge with several partitions: beside a second of work a task costs little."""
SHARES_PER_CORE = 4
"""So that the last ones to end leave few cores idle."""
MOST_SHARES = 4_096
"""More tasks cost more than they even out."""
DEFAULT_AGE_MS = 3_600_000
"""When batches are tiered of a topic that does not say: an hour. A classic tiered topic is copied
as soon as a segment is rolled, whatever its local retention; here each batch keeps a row in
Postgres so long, and a hundred gateways write 7 * 10^7 of them an hour (docs/tiering.md)."""
LONG_AGE_MS = 86_400_000
"""From a day on preflight warns."""
MAX_SEGMENT_SPAN = 2_147_483_647
"""Positions and relative offsets in an index are 32 bit integers."""


def suffix_lineage(
    prefix: Iterable[EpochStart], boundary: int, boundary_epoch: int
) -> tuple[EpochStart, ...]:
    """The leader epochs of a log that goes on past B0, as a segment's checkpoint has them.

    ``prefix``: the epochs of Kafka's log, ascending; a leader that was elected after B0 has one
    there that holds no record of ours. Every batch from B0 on has ``boundary_epoch``.
    """
    below = [e for e in prefix if e.start_offset < boundary and e.epoch <= boundary_epoch]
    if below and below[-1].epoch == boundary_epoch:
        return tuple(below)
    return (*below, EpochStart(boundary_epoch, boundary))


@dataclass(frozen=True, slots=True)
class TieringConfig:
    """What of a topic's configs decides about tiering. Times in ms, sizes in bytes."""

    local_retention_ms: int
    """-1: aged data is never tiered by itself. -2 is resolved already (:func:`tiering_age`)."""
    segment_bytes: int
    segment_ms: int
    index_interval_bytes: int

    def cutoff(self, now_ms: int) -> int | None:
        """Batches whose :func:`age` is below this are old enough; ``None`` when none ever is."""
        if self.local_retention_ms == UNLIMITED:
            return None
        return now_ms - self.local_retention_ms

    def overdue_ms(self, max_timestamp: int, append_time: int, now_ms: int) -> int:
        """For how long a batch that is not split could have been: since it was old enough, and not
        before it was committed, which is later where producers send old timestamps."""
        if self.local_retention_ms == UNLIMITED:
            return 0
        due = age(max_timestamp, append_time) + self.local_retention_ms
        return max(0, now_ms - max(append_time, due))


def age(max_timestamp: int, append_time: int) -> int:
    """Since when a batch ages, in ms: the largest timestamp that its producer gave it, but no later
    than its commit. A producer whose clock runs years ahead keeps no partition from being tiered.
    A batch without timestamps (-1) counts as old."""
    return min(max_timestamp, append_time)


def tiering_age(local_retention_ms: int, retention_ms: int, default_age_ms: int) -> int:
    """How old batches get before they are tiered, in ms; :data:`UNLIMITED`: they never are.

    ``default_age_ms`` counts for :data:`AS_RETENTION` alone; :data:`UNLIMITED`: the retention does.
    """
    if local_retention_ms != AS_RETENTION:
        return local_retention_ms
    bounds = [age for age in (retention_ms, default_age_ms) if age != UNLIMITED]
    return min(bounds, default=UNLIMITED)


def effective_config(
    described: Mapping[str, str | None],
    user_values: Mapping[str, str | None] | None = None,
    defaults: Mapping[str, str | None] | None = None,
    default_age_ms: int = DEFAULT_AGE_MS,
) -> TieringConfig:
    """The configs that the user means.

    ``described``: the topic's effective values (DescribeConfigs). ``user_values``: for each key
    that Tideline holds at another value, the user's own, ``None`` when it was unset: then the
    broker's default holds (``defaults``, else Kafka's). ``default_age_ms``: :func:`tiering_age`.
    Raises ``ValueError`` that names a value that is no number.
    """
    held, fallback = user_values or {}, defaults or {}

    def value(key: str) -> int:
        text = held[key] if key in held else described.get(key)
        if text is None:
            text = fallback.get(key)
        if text is None:
            return KAFKA_DEFAULTS[key]
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{key} is {text!r}, which is not a whole number") from None

    return TieringConfig(
        local_retention_ms=tiering_age(
            value(LOCAL_RETENTION_MS), value(RETENTION_MS), default_age_ms
        ),
        segment_bytes=value(SEGMENT_BYTES),
        segment_ms=value(SEGMENT_MS),
        index_interval_bytes=value(INDEX_INTERVAL_BYTES),
    )


class OffsetRun(Protocol):
    """A batch, or several that stay together: offsets inclusive at both ends, and bytes."""

    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def byte_size(self) -> int: ...


R = TypeVar("R", bound=OffsetRun)


def segment_limit(config: TieringConfig, max_segment_bytes: int) -> int:
    """The size that no segment exceeds, in bytes (002 10.5: the topic's ``segment.bytes``), unless
    its first batch alone does."""
    return min(config.segment_bytes, max_segment_bytes, MAX_SEGMENT_SPAN)


def contiguous_runs(batches: Iterable[R]) -> Iterator[tuple[R, ...]]:
    """Cut batches of one partition, in offset order, into runs without a gap."""
    run: list[R] = []
    for batch in batches:
        if run and batch.base_offset != run[-1].last_offset + 1:
            yield tuple(run)
            run = []
        run.append(batch)
    if run:
        yield tuple(run)


class MergeReason(StrEnum):
    """Why a segment is made now."""

    SIZE = "enough bytes"
    AGE = "older than segment.ms"
    REQUESTED = "requested"


@dataclass(frozen=True, slots=True)
class PendingMerge:
    """Split data of one partition that lies at the frontier without a gap."""

    byte_size: int
    oldest_split_at_ms: int | None
    """When the oldest of it was split; ``None`` without any."""
    requested: bool = False


def merge_reason(
    pending: PendingMerge, config: TieringConfig, *, min_segment_bytes: int, limit: int, now_ms: int
) -> MergeReason | None:
    """Why the pending data makes a segment now, or ``None`` when it waits for more.

    ``limit``: :func:`segment_limit`, in bytes; a topic with smaller segments than
    ``min_segment_bytes`` does not wait for more than one of them.
    """
    if pending.byte_size <= 0 or pending.oldest_split_at_ms is None:
        return None
    if pending.requested:
        return MergeReason.REQUESTED
    if pending.byte_size >= min(min_segment_bytes, limit):
        return MergeReason.SIZE
    if now_ms - pending.oldest_split_at_ms > config.segment_ms:
        return MergeReason.AGE
    return None


@dataclass(frozen=True, slots=True)
class PendingReads:
    """What all that is to be merged would be read from. Sizes in bytes."""

    runs: int
    """Of offsets of one partition in one WAL object."""
    run_bytes: int
    objects: int
    """WAL objects in which they lie."""
    object_bytes: int
    """Of those, whole."""

    def cheaper_whole(self, hosts: int, most_bytes: int) -> bool:
        """Whether each of ``hosts`` had better read every object once, than the tasks every run by
        a request of its own. ``most_bytes``: what a host may hold of objects."""
        ranged = self.runs * REQUEST_BYTES + self.run_bytes
        whole = hosts * (self.objects * REQUEST_BYTES + self.object_bytes)
        return self.object_bytes <= most_bytes and whole < ranged


def task_shares(sizes: Sequence[int], cores: int) -> list[list[int]]:
    """What each task is to do of things of these ``sizes``, by their places in it. As many tasks as
    keep ``cores`` busy to the end, or as have :data:`SHARE_BYTES` each if that is more; the largest
    thing first, each to whom has least. None is empty."""
    wanted = max(cores * SHARES_PER_CORE, -(-sum(sizes) // SHARE_BYTES))
    heap = [(0, n) for n in range(min(len(sizes), wanted, MOST_SHARES))]
    shares: list[list[int]] = [[] for _ in heap]
    for at in sorted(range(len(sizes)), key=lambda at: -sizes[at]):
        held, n = heap[0]
        shares[n].append(at)
        heapreplace(heap, (held + max(1, sizes[at]), n))
    return shares


class Place(StrEnum):
    """Where a range of offsets lives."""

    KAFKA = "kafka"
    """The whole log is Kafka's: B0 is not set."""
    PREFIX = "prefix"
    """Kafka's log below B0."""
    MERGED = "merged"
    """Merged segments: the tiered layout, with metadata in Postgres."""
    WAL = "wal"
    """Batches in WAL objects, with rows in Postgres."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A range of offsets in one place: ``start`` inclusive, ``end`` exclusive, never empty."""

    place: Place
    start: int
    end: int

    @property
    def offsets(self) -> int:
        """How many there are."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The offsets that divide a partition's log."""

    log_start: int
    """First readable offset of Kafka's log."""
    boundary: int
    """B0, or :data:`UNDEFINED_OFFSET`."""
    suffix_start: int
    """``max(B0, diskless start offset)``."""
    tiered_high_offset: int
    """Last merged offset, inclusive; -1 when nothing was merged."""
    high_watermark: int
    """Of the whole log."""

    @property
    def frontier(self) -> int:
        """F: first offset that no merged segment covers; B0 when nothing was merged."""
        return max(self.boundary, self.tiered_high_offset + 1)


def placements(log: LogBounds) -> tuple[Placement, ...]:
    """Where every readable offset lives, in order. Ranges do not overlap; there is a hole between
    two of them only where records were deleted."""
    if log.boundary == UNDEFINED_OFFSET:
        return _present((Place.KAFKA, log.log_start, log.high_watermark))
    start, frontier = max(log.suffix_start, log.boundary), log.frontier
    return _present(
        (Place.PREFIX, log.log_start, log.boundary),
        (Place.MERGED, start, min(frontier, log.high_watermark)),
        (Place.WAL, max(start, frontier), log.high_watermark),
    )


def _present(*ranges: tuple[Place, int, int]) -> tuple[Placement, ...]:
    return tuple(Placement(place, start, end) for place, start, end in ranges if start < end)
