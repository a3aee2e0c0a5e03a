"""On what the batches of a log are laid: what Postgres has of it, and what the catalog says since.

What always holds: a fact of the catalog moves starts, the frontier and the high watermark forward,
never back. What was only announced counts where nothing else explains the bucket: a boundary at
which batches were committed, a segment whose batches are gone, a removal whose batches are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tideline.domain.catalog import Boundary, MergedSegment
from tideline.domain.catalog_fold import LogFacts
from tideline.domain.ids import TopicIdPartition
from tideline.domain.log_batch import LogBatch
from tideline.domain.pipelining import SEQUENCES
from tideline.domain.producer_state import (
    ProducerEntry,
    RememberedBatch,
    StoredProducerState,
    entries_from_seeds,
    known_from,
    remember,
)
from tideline.domain.rebuild_plan import KnownLog
from tideline.domain.wal_producers import in_full, told_until

Snapshots = Callable[[MergedSegment], tuple[StoredProducerState, ...] | None]
"""Producers at the end of a segment; ``None``: nobody knows them."""


@dataclass(frozen=True, slots=True)
class Ground:
    """One log before the bucket's batches, and what the catalog adds to Postgres."""

    known: KnownLog
    boundary: Boundary | None = None
    """To be set where Postgres has none."""
    generation: int = -1
    prefix_start: int = -1
    accepted_gap_from: int = -1
    segments: tuple[MergedSegment, ...] = ()
    """From Postgres's frontier on, each where the one before it ended."""
    producers: tuple[StoredProducerState, ...] = ()
    """At the end of the last of them."""
    contradictions: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    """Announced, and nothing tells whether it counted."""

    @property
    def log(self) -> TopicIdPartition:
        return self.known.log


def ground_of(
    log: TopicIdPartition,
    topic: str,
    facts: LogFacts | None,
    here: KnownLog | None,
    rows: Sequence[LogBatch] = (),
    snapshots: Snapshots = lambda _: None,
) -> Ground | None:
    """``here``: as Postgres has it. ``rows``: what the bucket tells, in offset order; without them
    nothing announced is decided. ``snapshots`` is asked of the last segment only. ``None``: nobody
    knows of the log."""
    if facts is None:
        return None if here is None else Ground(here)
    boundary = facts.boundary or _decided_boundary(facts, rows)
    b0 = here.boundary if here and here.boundary >= 0 else boundary.boundary if boundary else -1
    undecided = tuple(
        repr(record)
        for record in facts.undecided
        if record is not boundary and not isinstance(record, MergedSegment)
    )
    if b0 < 0:
        return Ground(
            here or KnownLog(log, topic, -1, -1, -1, -1),
            generation=facts.generation,
            undecided=undecided,
        )
    contradictions = []
    if boundary is not None and boundary.boundary != b0:
        contradictions.append(f"B0 is {b0} in Postgres, and {boundary.boundary} in the catalog")
    start = max(b0, here.suffix_start if here else -1, facts.suffix_start)
    if not _is_whole(rows, start, facts.announced_start):
        start = facts.announced_start
    frontier = max(b0, here.frontier if here else -1)
    segments, broken = _segments(facts, frontier, start, rows)
    contradictions += broken
    producers = snapshots(segments[-1]) if segments else None
    known = _known(log, topic, b0, here, boundary, segments, producers, rows)
    return Ground(
        replace(known, suffix_start=start),
        boundary=boundary,
        generation=facts.generation,
        prefix_start=facts.prefix_start,
        accepted_gap_from=facts.accepted_gap_from,
        segments=segments,
        producers=producers or (),
        contradictions=tuple(contradictions),
        undecided=undecided,
    )


def _decided_boundary(facts: LogFacts, rows: Sequence[LogBatch]) -> Boundary | None:
    """Nothing is committed before B0 is set, and the first batch lies at B0."""
    if not rows:
        return None
    fitting = [
        record
        for record in facts.undecided
        if isinstance(record, Boundary) and record.boundary == rows[0].base_offset
    ]
    return fitting[0] if len(fitting) == 1 else None


def _segments(
    facts: LogFacts, frontier: int, start: int, rows: Sequence[LogBatch]
) -> tuple[tuple[MergedSegment, ...], list[str]]:
    """Those from ``frontier`` on without a gap, but for what lies below ``start``."""
    announced = [r for r in facts.undecided if isinstance(r, MergedSegment)]
    decided = [r for r in announced if not _is_whole(rows, r.base_offset, r.last_offset + 1)]
    found: list[MergedSegment] = []
    for segment in sorted([*facts.segments, *decided], key=lambda r: r.base_offset):
        if segment.last_offset < frontier:
            continue
        if segment.base_offset < frontier or segment.base_offset > max(frontier, start):
            return tuple(found), [
                f"segment {segment.segment_id} holds offsets {segment.base_offset} to "
                f"{segment.last_offset}, and {frontier} comes next"
            ]
        found.append(segment)
        frontier = segment.last_offset + 1
    return tuple(found), []


def _is_whole(rows: Iterable[LogBatch], first: int, end: int) -> bool:
    """Whether ``rows`` have every offset of ``[first, end)``."""
    following = first
    for row in rows:
        if row.base_offset > following or following >= end:
            break
        following = max(following, row.last_offset + 1)
    return following >= end


def _known(
    log: TopicIdPartition,
    topic: str,
    b0: int,
    here: KnownLog | None,
    boundary: Boundary | None,
    segments: Sequence[MergedSegment],
    at_end: Sequence[StoredProducerState] | None,
    rows: Sequence[LogBatch],
) -> KnownLog:
    if here is None or here.boundary < 0:
        seeds = boundary.seeds if boundary else None
        here = KnownLog(
            log,
            topic,
            b0,
            b0,
            b0,
            b0,
            producers=entries_from_seeds(seeds or (), -1),
            has_all_producers=seeds is not None,
        )
    if not segments:
        return here
    frontier = segments[-1].last_offset + 1
    if frontier > here.high_watermark:
        told = told_until(rows, frontier)
        here = replace(
            here,
            producers={**here.producers, **told}
            if at_end is None
            else in_full(_entries(at_end), {**here.producers, **told}),
            stored_producers=here.producers,
            has_all_producers=at_end is not None,
        )
    return replace(
        here,
        frontier=frontier,
        high_watermark=max(here.high_watermark, frontier),
        max_timestamp=max(here.max_timestamp, *(s.max_timestamp for s in segments)),
        batches=[batch for batch in here.batches if batch.base_offset >= frontier],
    )


def _entries(producers: Iterable[StoredProducerState]) -> dict[int, ProducerEntry]:
    """The newest batch of each is all that a segment tells of its producers, and not even that of
    one whose batches below B0 were not found (Kafka: ``ProducerStateEntry`` without metadata)."""
    entries = {}
    for one in producers:
        # When it was committed nobody knows: the timestamp is the producer's own.
        if one.last_offset < 0:
            entry = ProducerEntry(one.producer_epoch, (), -1, one.last_sequence)
        else:
            base = (one.last_sequence - one.offset_delta) % SEQUENCES
            batch = RememberedBatch(
                base, one.last_sequence, one.last_offset - one.offset_delta, one.timestamp
            )
            before = known_from(one.producer_epoch, base)
            entry = remember(before, one.producer_epoch, batch, -1)
        entries[one.producer_id] = entry
    return entries
