"""What the footers of a bucket say of each log: batches with offsets, producers, and what is open.

What always holds: a batch whose outcome is told lies where its commit put it, or is said to
contradict another; a batch without one is placed only where nothing else fits, and is marked as
inferred; whatever is left over is told with all that is known of it. Nothing is guessed
(decision 0022).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from tideline.domain.ids import TopicIdPartition
from tideline.domain.log_batch import LogBatch
from tideline.domain.producer_state import NOBODY_KNOWS, KnownProducers, ProducerEntry
from tideline.domain.wal_filling import given_up, without_given_up
from tideline.domain.wal_footer import FooterBatch
from tideline.domain.wal_placing import Hole
from tideline.domain.wal_producers import producers_after
from tideline.domain.wal_streams import (
    GoneObject,
    Streams,
    ToldObject,
    UnreadableObject,
    WalObject,
)
from tideline.domain.wal_tail import LogFold, OpenObject, log_of


@dataclass(frozen=True, slots=True)
class RebuiltLog:
    """One log as far as the bucket tells it, in offset order."""

    batches: tuple[LogBatch, ...]
    producers: Mapping[int, ProducerEntry]
    high_watermark: int
    """The offset behind the last known batch; -1 when none is known."""
    holes: tuple[Hole, ...]
    """Between known batches, and from the given start on."""
    reserved: int = -1
    """The offset behind everything that may have been given to somebody."""


@dataclass(frozen=True, slots=True)
class KnownPlace:
    """Where Postgres has a batch of an object."""

    base_offset: int
    append_time: int


KnownObjects = Mapping[str, Mapping[int, KnownPlace]]
"""By object key and byte offset, of objects that Postgres knows as committed; one of which no batch
was accepted, or all have gone, is there and empty."""


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
    told: dict[str, ToldObject] = field(default_factory=dict)
    """By key."""
    tail: int = 0
    """Objects without a told outcome that no Postgres knows either."""
    tail_ms: int = 0
    """How long before the newest time in the bucket the oldest of them was written."""
    given_up: dict[TopicIdPartition, int] = field(default_factory=dict)
    """Batches of older histories at or past the first one of the current history."""
    filled_over: dict[TopicIdPartition, int] = field(default_factory=dict)
    """Batches that lie where an operator has given the offsets up: they are not taken."""
    doubtful: frozenset[TopicIdPartition] = frozenset()
    """Logs of which some batch may lie anywhere: contradicting things are told of its object."""
    newest_ms: int = -1
    """The latest time that anything in the bucket names."""


def rebuild(
    streams: Streams,
    starts: Mapping[TopicIdPartition, int] | None = None,
    producers: Mapping[TopicIdPartition, KnownProducers] | None = None,
    known: KnownObjects | None = None,
    current: UUID | None = None,
    moved: Collection[TopicIdPartition] = (),
) -> Rebuilt:
    """Fold what was read. ``starts``: first offset of a log that must be in the bucket, by log;
    without it the first known batch is. ``producers``: idempotent ones at that start, by log;
    nobody knows those of the others. ``known``: of the objects of the tail those that a Postgres
    knows. ``current``: the history that counts where an older one has given the same offsets: an
    operator began it without what the older one had from there on. ``moved``: logs whose start is
    where somebody has deleted up to, or Postgres's high watermark, before which a rebuild may have
    left offsets free."""
    starts, producers, known = starts or {}, producers or {}, known or {}
    rows: dict[TopicIdPartition, list[LogBatch]] = defaultdict(list)
    result = Rebuilt(streams.objects, streams.batches, newest_ms=streams.newest_ms)
    for told in streams.told():
        result.told[told.wal_object.key] = told
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
                        told.wal_object.sequence,
                    )
                )
    abandoned, result.gone = given_up(result.told.values(), streams.gone())
    tail: dict[TopicIdPartition, list[WalObject]] = defaultdict(list)
    committed = {(o.incarnation, o.sequence) for o in streams.tail() if o.key in known}
    for found in streams.tail():
        if (places := known.get(found.key)) is not None:
            for batch, row in _known_rows(found, places):
                rows[log_of(batch)].append(row)
            continue
        if (found.incarnation, found.sequence) in committed:
            continue  # Another attempt was.
        for log in {log_of(batch): None for _, batch in found.batches}:
            if found.key not in abandoned.get(log, ()):
                tail[log].append(found)
        result.tail += 1
        result.tail_ms = max(result.tail_ms, streams.newest_ms - found.written_at_ms)
    doubts = _doubts(streams)
    result.doubtful = frozenset(doubts)
    explained = sorted(offset for gone in result.gone for offset in gone.base_offsets)
    for log in sorted({*rows, *tail, *starts, *doubts}):
        unreadable = bool(streams.unreadable)
        fold = LogFold(
            log,
            starts.get(log),
            explained,
            unreadable,
            streams.newest_ms,
            log in moved,
            producers.get(log, NOBODY_KNOWS),
        )
        mine, open_here = rows.pop(log, []), tail.pop(log, [])
        if (begun := _begun(mine, streams.histories, current)) is not None:
            result.given_up[log] = len(mine)
            mine = [
                row
                for row in mine
                if row.last_offset < begun or streams.histories[row.stream] == current
            ]
            result.given_up[log] -= len(mine)
            open_here = [o for o in open_here if streams.histories[o.incarnation] == current]
        free = list(without_given_up(mine))
        if len(free) < len(mine):
            result.filled_over[log] = len(mine) - len(free)
        placed = fold.run(free, open_here)
        rebuilt = _rebuilt(
            placed, fold.holes, producers.get(log, NOBODY_KNOWS), starts.get(log, -1)
        )
        claims = [hole.last_offset + 1 for hole in fold.disputed]
        claims += [end for end, _ in doubts.get(log, ())]
        waiting = sum(found.records for found in fold.open_objects if not found.settled)
        waiting += sum(records for _, records in doubts.get(log, ()))
        reserved = max(rebuilt.high_watermark, 0, *claims, -1) + waiting
        result.logs[log] = replace(rebuilt, reserved=reserved)
        result.open_objects += fold.open_objects
        result.contradictions += fold.contradictions
    result.contradictions += streams.contradictions
    result.unreadable = streams.unreadable
    result.foreign = streams.foreign
    result.never_committed = streams.never_committed()
    return result


def _begun(
    rows: Iterable[LogBatch], histories: Mapping[UUID, UUID], current: UUID | None
) -> int | None:
    """The first offset of the current history; ``None``: it has none, or no other one has."""
    offsets = [row.base_offset for row in rows if histories[row.stream] == current]
    return min(offsets) if offsets and set(histories.values()) - {current} else None


def _known_rows(
    found: WalObject, places: Mapping[int, KnownPlace]
) -> Iterator[tuple[FooterBatch, LogBatch]]:
    for _, batch in found.batches:
        if (place := places.get(batch.byte_offset)) is not None:
            row = LogBatch(
                place.base_offset,
                found.key,
                place.append_time,
                batch,
                found.incarnation,
                found.sequence,
            )
            yield batch, row


def _doubts(streams: Streams) -> dict[TopicIdPartition, list[tuple[int, int]]]:
    """Of objects of which contradicting things are told, by log: the largest end that is named,
    and the records that may lie anywhere."""
    doubts: dict[TopicIdPartition, list[tuple[int, int]]] = defaultdict(list)
    for found, versions in streams.doubtful():
        for place, batch in found.batches:
            ends = [
                version.outcomes[place].base_offset + batch.record_count
                for version in versions
                if place < len(version.outcomes) and version.outcomes[place].error == "NONE"
            ]
            doubts[log_of(batch)].append((max(ends, default=-1), batch.record_count))
    return doubts


def _rebuilt(
    rows: Sequence[LogBatch],
    holes: tuple[Hole, ...],
    producers: KnownProducers,
    start: int,
) -> RebuiltLog:
    """With running maxima, producers and the high watermark."""
    end = rows[-1].last_offset + 1 if rows else start
    after = producers_after(producers, (row for row in rows if row.base_offset >= start), start)
    return RebuiltLog(_with_running_maxima(rows), after, max(end, start), holes)


def _with_running_maxima(rows: Iterable[LogBatch]) -> tuple[LogBatch, ...]:
    batches: list[LogBatch] = []
    largest = -1
    for row in rows:
        largest = max(largest, row.max_timestamp)
        batches.append(replace(row, running_max_timestamp=largest))
    return tuple(batches)


def with_fillings(log: RebuiltLog, rows: Iterable[LogBatch]) -> RebuiltLog:
    """``log`` as it is told once ``rows`` fill its holes, and all that was waited for is given
    up."""
    batches = sorted([*log.batches, *rows], key=lambda row: row.base_offset)
    end = max(log.high_watermark, batches[-1].last_offset + 1)
    return RebuiltLog(_with_running_maxima(batches), log.producers, end, (), reserved=end)
