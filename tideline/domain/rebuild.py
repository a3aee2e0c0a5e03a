"""What the footers of a bucket say of each log: batches with offsets, producers, and what is open.

What always holds: a batch whose outcome is told lies where its commit put it, or is said to
contradict another; a batch without one is placed only where nothing else fits, and is marked as
inferred; whatever is left over is told with all that is known of it. Nothing is guessed
(decision 0020).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_state import (
    ProducerEntry,
    RememberedBatch,
    entries_from_seeds,
    judge,
    remember,
)
from tideline.domain.producer_tail import ProducerSeed
from tideline.domain.wal_placing import Hole
from tideline.domain.wal_streams import GoneObject, Streams, UnreadableObject, WalObject
from tideline.domain.wal_tail import LogBatch, LogFold, OpenObject, log_of


@dataclass(frozen=True, slots=True)
class RebuiltLog:
    """One log as far as the bucket tells it, in offset order."""

    batches: tuple[LogBatch, ...]
    producers: Mapping[int, ProducerEntry]
    high_watermark: int
    """The offset behind the last known batch; -1 when none is known."""
    holes: tuple[Hole, ...]
    """Between known batches, and from the given start on."""


@dataclass(slots=True)
class Rebuilt:
    """All logs, and what could not be told."""

    objects: int
    batches: int
    logs: dict[TopicIdPartition, RebuiltLog] = field(default_factory=dict)
    open_objects: list[OpenObject] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)
    unreadable: Sequence[UnreadableObject] = ()
    foreign: Sequence[tuple[str, UUID]] = ()
    gone: Sequence[GoneObject] = ()
    never_committed: Sequence[str] = ()


def rebuild(
    streams: Streams,
    starts: Mapping[TopicIdPartition, int] | None = None,
    seeds: Mapping[TopicIdPartition, Iterable[ProducerSeed]] | None = None,
) -> Rebuilt:
    """Fold what was read. ``starts``: first offset of a log that must be in the bucket, by log;
    without it the first known batch is. ``seeds``: producers at B0."""
    starts, seeds = starts or {}, seeds or {}
    rows: dict[TopicIdPartition, list[LogBatch]] = defaultdict(list)
    for told in streams.told():
        for place, batch in told.wal_object.batches:
            outcome = told.outcomes[place]
            if outcome.error == "NONE":
                rows[log_of(batch)].append(
                    LogBatch(
                        outcome.base_offset,
                        told.wal_object.key,
                        outcome.append_time,
                        batch,
                        told.wal_object.incarnation,
                    )
                )
    tail: dict[TopicIdPartition, list[WalObject]] = defaultdict(list)
    for found in streams.tail():
        for log in {log_of(batch): None for _, batch in found.batches}:
            tail[log].append(found)
    result = Rebuilt(streams.objects, streams.batches)
    result.gone = streams.gone()
    explained = sorted(offset for gone in result.gone for offset in gone.base_offsets)
    for log in sorted({*rows, *tail, *starts}):
        unreadable = bool(streams.unreadable)
        fold = LogFold(log, starts.get(log), explained, unreadable, streams.newest_ms)
        placed = fold.run(rows.pop(log, []), tail.pop(log, []))
        result.logs[log] = _rebuilt(placed, fold.holes, seeds.get(log, ()), starts.get(log, -1))
        result.open_objects += fold.open_objects
        result.contradictions += fold.contradictions
    result.contradictions += streams.contradictions
    result.unreadable = streams.unreadable
    result.foreign = streams.foreign
    result.never_committed = streams.never_committed()
    return result


def _rebuilt(
    rows: Sequence[LogBatch],
    holes: tuple[Hole, ...],
    seeds: Iterable[ProducerSeed],
    start: int,
) -> RebuiltLog:
    """With running maxima, producers and the high watermark."""
    producers = entries_from_seeds(seeds, -1)
    batches: list[LogBatch] = []
    largest = -1
    for row in rows:
        largest = max(largest, row.max_timestamp)
        batches.append(replace(row, running_max_timestamp=largest))
        batch = row.footer
        if batch.producer_id >= 0:
            entry = producers.get(batch.producer_id)
            judged = judge(entry, batch.producer_epoch, batch.base_sequence, batch.last_sequence)
            # It was committed: where it does not follow, its producer's state had expired.
            producers[batch.producer_id] = remember(
                entry if judged.error == "NONE" else None,
                batch.producer_epoch,
                RememberedBatch(
                    batch.base_sequence, batch.last_sequence, row.base_offset, row.append_time
                ),
                row.append_time,
            )
    end = rows[-1].last_offset + 1 if rows else start
    return RebuiltLog(tuple(batches), producers, max(end, start), holes)
