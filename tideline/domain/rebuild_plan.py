"""What of a log is written into a Postgres, and what is said of it: the bucket beside what is
known.

What always holds: a batch that Postgres has is never changed; one that it lacks is added where it
was committed, and only where Postgres has nothing. Offsets of which no batch is known, and offsets
that may have been given to somebody, are given to nobody again: the high watermark lies behind
them, and reads of them are an error until an operator gives them up: by empty batches
(``rebuild_filling.py``), or by deleting records up to their end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tideline.domain.ids import TopicIdPartition
from tideline.domain.log_batch import LogBatch
from tideline.domain.producer_state import KnownProducers, ProducerEntry
from tideline.domain.rebuild import RebuiltLog
from tideline.domain.wal_filling import is_filling
from tideline.domain.wal_placing import Hole
from tideline.domain.wal_producers import producers_after
from tideline.domain.wal_tail import OpenObject


class Verdict(StrEnum):
    """The worst that is true of a log comes first."""

    UNKNOWN_TOPIC = "unknown topic"
    """Neither Postgres nor a metadata record has it: its name and its B0 are not known."""
    CONTRADICTED = "contradicted"
    """Postgres or another object has something else at an offset: nothing is added."""
    HOLES = "holes"
    OPEN = "open"
    """Objects may have been committed behind its end: their number of offsets is left free."""
    UNANSWERED = "unanswered"
    """The same, and their gateways say that nobody was told of them: an empty batch takes their
    offsets, because somebody may have read there."""
    BEHIND = "behind"
    """Postgres lacks batches that the bucket has; nothing else is wrong."""
    WHOLE = "whole"


REMEDIES: Mapping[Verdict, str] = {
    Verdict.UNKNOWN_TOPIC: "restore a backup of Postgres in which the topic is tracked, or delete "
    "the topic in Kafka; its objects are left alone",
    Verdict.CONTRADICTED: "two Postgres have given the same offsets: name the history that counts "
    "with --history, or restore the Postgres that clients were served from",
    Verdict.HOLES: "bring back the objects (versions, or a replica of the bucket) and run it "
    "again; if they are lost for good: --write --fill-holes, so that readers pass over them",
    Verdict.OPEN: "gateways that still run tell what became of their last commits when they are "
    "idle or stop: let them, and run it again. Else give those commits up: --give-up-open before "
    "it is written if they were told to nobody, --write --fill-holes if they may have been",
    Verdict.UNANSWERED: "tideline rebuild --write: an empty batch takes the offsets of what was "
    "acknowledged to nobody, and its producers send it again",
    Verdict.BEHIND: "tideline rebuild --write",
    Verdict.WHOLE: "",
}


@dataclass(frozen=True, slots=True)
class KnownBatch:
    """A row that Postgres has. Offsets inclusive, times in ms."""

    base_offset: int
    last_offset: int
    object_key: str
    byte_offset: int
    byte_size: int
    running_max_timestamp: int
    append_time: int = -1


@dataclass(frozen=True, slots=True)
class KnownLog:
    """A log as Postgres or its metadata record has it, before the bucket's batches."""

    log: TopicIdPartition
    topic: str
    boundary: int
    """B0; -1: it is not set."""
    suffix_start: int
    frontier: int
    """First offset that is not in a merged segment."""
    high_watermark: int
    max_timestamp: int = -1
    producers: Mapping[int, ProducerEntry] = field(default_factory=dict)
    """At the high watermark."""
    batches: Sequence[KnownBatch] = ()
    has_all_producers: bool = True
    """Whether one that is not among ``producers`` has no state."""
    stored_producers: Mapping[int, ProducerEntry] | None = None
    """What Postgres has of them, where ``producers`` are those at the end of a merged segment."""

    @property
    def first(self) -> int:
        """From here on every offset must lie in a batch."""
        return max(self.boundary, self.suffix_start, self.frontier)


@dataclass(frozen=True, slots=True)
class LogPlan:
    """What is to be written of one log, and what is wrong with it."""

    log: TopicIdPartition
    known: KnownLog | None
    add: tuple[LogBatch, ...] = ()
    """Rows that are not known, in offset order."""
    producers: Mapping[int, ProducerEntry] = field(default_factory=dict)
    """Those that are others than before."""
    high_watermark: int = -1
    max_timestamp: int = -1
    holes: tuple[Hole, ...] = ()
    """Also the one at the end, which is left free."""
    open_objects: tuple[OpenObject, ...] = ()
    contradictions: tuple[str, ...] = ()
    end: int = -1
    """The offset behind the last batch that is known by then."""
    unplaced: int = 0
    """Batches and open objects of a log of which nobody knows B0."""

    @property
    def verdict(self) -> Verdict:
        if self.known is None or self.known.boundary < 0:
            return Verdict.UNKNOWN_TOPIC if self.unplaced else Verdict.WHOLE
        if self.contradictions:
            return Verdict.CONTRADICTED
        if any(hole.base_offset < self.end for hole in self.holes):
            return Verdict.HOLES
        if self.holes:
            return Verdict.UNANSWERED if self._is_unanswered else Verdict.OPEN
        return Verdict.BEHIND if self.has_changes else Verdict.WHOLE

    @property
    def _is_unanswered(self) -> bool:
        """What is left free at the end is that of objects which their gateways have answered to
        nobody, and nothing else."""
        waiting = [o for o in self.open_objects if o.placed_at is None and not o.settled]
        records = sum(o.records for o in waiting)
        return (
            bool(waiting)
            and all(o.wal_object.unanswered for o in waiting)
            and self.high_watermark == self.end + records
        )

    @property
    def has_changes(self) -> bool:
        return (
            self.known is not None
            and self.known.boundary >= 0
            and (
                bool(self.add)
                or self.high_watermark != self.known.high_watermark
                or self.max_timestamp != self.known.max_timestamp
            )
        )

    @property
    def inferred(self) -> int:
        return sum(row.inferred for row in self.add)


def plan_log(
    log: TopicIdPartition,
    rebuilt: RebuiltLog,
    known: KnownLog | None,
    open_objects: Sequence[OpenObject] = (),
    contradictions: Sequence[str] = (),
    *,
    give_up_open: bool = False,
) -> LogPlan:
    """``rebuilt``: all batches of the log that the bucket tells. ``contradictions``: what the fold
    said of this log. ``give_up_open``: somebody says that what is open was told to nobody."""
    if known is None or known.boundary < 0:
        unplaced = len(rebuilt.batches) + len(open_objects)
        return LogPlan(log, known, open_objects=tuple(open_objects), unplaced=unplaced)
    readable = [
        row
        for row in rebuilt.batches
        if row.base_offset >= known.frontier and row.last_offset >= known.suffix_start
    ]
    add, differing = _beside(readable, known.batches)
    contradicted = (*contradictions, *differing)
    if differing:
        # Somebody was served from another line of commits: which one counts is for people.
        add = []
    rows = list(_with_running_maxima(add, known))
    spans = sorted(
        [(b.base_offset, b.last_offset) for b in known.batches]
        + [(row.base_offset, row.last_offset) for row in rows]
    )
    end = max(known.first, spans[-1][1] + 1 if spans else 0)
    taken_by_others = max((row.last_offset + 1 for row in readable), default=0)
    reserved = max(end, taken_by_others) if give_up_open else max(end, rebuilt.reserved)
    high_watermark = max(known.high_watermark, reserved)
    # Also of what retention has removed: its producers go on from it.
    beyond = [row for row in rebuilt.batches if row.base_offset >= known.high_watermark]
    before = KnownProducers(known.producers, known.has_all_producers)
    after = producers_after(before, [] if differing else beyond, known.high_watermark)
    stored = known.producers if known.stored_producers is None else known.stored_producers
    return LogPlan(
        log,
        known,
        add=tuple(rows),
        producers={i: e for i, e in after.items() if stored.get(i) != e},
        high_watermark=high_watermark,
        max_timestamp=max(
            known.max_timestamp,
            *(row.running_max_timestamp for row in [*rows[-1:], *rebuilt.batches[-1:]]),
        )
        if rebuilt.batches and not differing
        else known.max_timestamp,
        holes=tuple(_holes(spans, known.first, high_watermark)),
        open_objects=tuple(open_objects),
        contradictions=contradicted,
        end=end,
    )


def _beside(
    told: Iterable[LogBatch], known: Sequence[KnownBatch]
) -> tuple[list[LogBatch], list[str]]:
    """Told rows where Postgres has nothing, and where it has something else. Both in offset
    order. Where either of the two is a filling, Postgres's stays and nothing is wrong: offsets were
    given up in a history that knew less, or that knows more."""
    add: list[LogBatch] = []
    differing: list[str] = []
    at = 0
    for row in told:
        while at < len(known) and known[at].last_offset < row.base_offset:
            at += 1
        if at == len(known) or known[at].base_offset > row.last_offset:
            add.append(row)
        elif not _is_same(row, known[at]) and not _is_given_up(row, known[at]):
            here = known[at]
            differing.append(
                f"offsets {row.base_offset} to {row.last_offset} are in {row.object_key}, and "
                f"Postgres has {here.base_offset} to {here.last_offset} in {here.object_key}"
            )
    return add, differing


def _is_given_up(row: LogBatch, known: KnownBatch) -> bool:
    return is_filling(row.footer.byte_size) or is_filling(known.byte_size)


def _is_same(row: LogBatch, known: KnownBatch) -> bool:
    return (
        row.base_offset,
        row.last_offset,
        row.object_key,
        row.footer.byte_offset,
        row.footer.byte_size,
    ) == (
        known.base_offset,
        known.last_offset,
        known.object_key,
        known.byte_offset,
        known.byte_size,
    )


def _with_running_maxima(add: Iterable[LogBatch], known: KnownLog) -> Iterator[LogBatch]:
    largest, at = -1, 0
    for row in add:
        while at < len(known.batches) and known.batches[at].base_offset < row.base_offset:
            largest = max(largest, known.batches[at].running_max_timestamp)
            at += 1
        if row.base_offset >= known.high_watermark:
            largest = max(largest, known.max_timestamp)
        # What retention has passed counts too, as far as it is in the bucket.
        largest = max(largest, row.max_timestamp, row.running_max_timestamp)
        yield replace(row, running_max_timestamp=largest)


def _holes(spans: Iterable[tuple[int, int]], first: int, high_watermark: int) -> Iterator[Hole]:
    following = first
    for base, last in spans:
        if base > following:
            yield Hole(following, base - 1)
        following = max(following, last + 1)
    if high_watermark > following:
        yield Hole(following, high_watermark - 1)
