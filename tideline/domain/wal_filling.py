"""Offsets that were given up, as the bucket has them: objects that hold empty batches.

A *filling* is a batch without records that takes offsets all the same, as compaction leaves it in
Kafka: clients pass over it. A rebuild stores one object for each log whose offsets are given up; it
tells its own outcome, and names the objects whose batches may have been given those offsets
(docs/restore.md).

What always holds: what a filling lies over is given up for good. No batch that turns up there later
is taken, so that the log is the same from nothing as beside a Postgres that has the filling.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid5

from tideline.domain.ids import TopicIdPartition
from tideline.domain.log_batch import LogBatch
from tideline.domain.wal_footer import BatchOutcome, EarlierCommit, Footer, FooterBatch
from tideline.domain.wal_streams import GoneObject, ToldObject, WalObject
from tideline.domain.wal_tail import log_of

EMPTY_BATCH_BYTES = 61
"""The header of a batch of magic 2. With a record in it a batch is longer, so that its size tells a
filling wherever a batch is described."""
MOST_OFFSETS = 2**31 - 1
"""Of one batch: the delta of its last offset, and the number in a footer, are 32 bit integers."""
FILLER = -1
"""In the place of a gateway's id, in the footer of an object with fillings."""
NO_TIMESTAMP = -1
"""An empty batch is the answer to no search by timestamp."""
_NAMES = UUID("6f1d2a5e-6f0e-5b1c-9a8e-2f6f5d1f7c23")


@dataclass(frozen=True, slots=True)
class Filled:
    """One empty batch: offsets and the time of the commit of its neighbour in ms."""

    base_offset: int
    offsets: int
    append_time: int


@dataclass(frozen=True, slots=True)
class FillingObject:
    """The object that fills one log. Of the same content it has the same key, whoever makes it."""

    log: TopicIdPartition
    history_id: UUID
    written_at_ms: int
    """Not later than anything else in the bucket says: objects are judged by the newest time."""
    filled: tuple[Filled, ...]
    given_up: tuple[str, ...]
    """Keys of objects whose batches of this log were waited for until now."""

    @property
    def incarnation(self) -> UUID:
        """Its commit stream, which has no other object."""
        return uuid5(_NAMES, repr(self))

    def key(self, prefix: str) -> str:
        """``prefix``: of the installation, empty or with a slash at its end."""
        return f"{prefix}wal/{self.incarnation.hex}"

    def footer(self, key: str) -> Footer:
        outcomes = tuple(BatchOutcome("NONE", f.base_offset, f.append_time) for f in self.filled)
        named = [
            EarlierCommit(sequence, other, ()) for sequence, other in enumerate(self.given_up, 1)
        ]
        return Footer(
            history_id=self.history_id,
            gateway_id=FILLER,
            incarnation=self.incarnation,
            sequence=0,
            written_at_ms=self.written_at_ms,
            batches=self._batches(),
            earlier=(EarlierCommit(0, key, outcomes), *named),
        )

    def told(self, key: str, size: int) -> ToldObject:
        """As it is read from the bucket, where it has ``size`` bytes."""
        footer = self.footer(key)
        return ToldObject(
            WalObject(
                key=key,
                size=size,
                gateway_id=FILLER,
                incarnation=self.incarnation,
                sequence=footer.sequence,
                written_at_ms=self.written_at_ms,
                count=len(footer.batches),
                batches=tuple(enumerate(footer.batches)),
            ),
            footer.earlier[0].outcomes,
        )

    def rows(self, key: str) -> list[LogBatch]:
        return [
            LogBatch(filled.base_offset, key, filled.append_time, batch, self.incarnation)
            for filled, batch in zip(self.filled, self._batches(), strict=True)
        ]

    def _batches(self) -> tuple[FooterBatch, ...]:
        return tuple(
            FooterBatch(
                topic_id=self.log.topic_id,
                partition=self.log.partition,
                byte_offset=number * EMPTY_BATCH_BYTES,
                byte_size=EMPTY_BATCH_BYTES,
                record_count=filled.offsets,
                producer_id=-1,
                producer_epoch=-1,
                base_sequence=-1,
                last_sequence=-1,
                max_timestamp=NO_TIMESTAMP,
                log_append_time=False,
            )
            for number, filled in enumerate(self.filled)
        )


def is_filling(byte_size: int) -> bool:
    """Whether a batch of so many bytes has no record."""
    return byte_size == EMPTY_BATCH_BYTES


def given_up(
    told: Iterable[ToldObject], gone: Iterable[GoneObject]
) -> tuple[dict[TopicIdPartition, set[str]], list[GoneObject]]:
    """Keys of the objects that fillings have given up, by log; and of ``gone`` those that are
    really told of: a filling names the others."""
    fillers = {one.wal_object.incarnation: one for one in told if _is_filler(one)}
    named: dict[TopicIdPartition, set[str]] = defaultdict(set)
    left = []
    for one in gone:
        if (filler := fillers.get(one.incarnation)) is None:
            left.append(one)
            continue
        for log in {log_of(batch) for _, batch in filler.wal_object.batches}:
            named[log].add(one.key)
    return named, left


def _is_filler(told: ToldObject) -> bool:
    return told.wal_object.gateway_id == FILLER


def without_given_up(rows: Sequence[LogBatch]) -> Sequence[LogBatch]:
    """``rows`` of one log without those that lie, even in part, where a filling does."""
    ends: list[int] = []
    bases: list[int] = []
    kept: set[LogBatch] = set()
    for row in sorted(
        (row for row in rows if is_filling(row.footer.byte_size)),
        key=lambda row: (row.base_offset, row.object_key),
    ):
        if not ends or row.base_offset > ends[-1]:
            bases.append(row.base_offset)
            ends.append(row.last_offset)
            kept.add(row)
    if not kept:
        return rows

    def is_free(row: LogBatch) -> bool:
        at = bisect_right(bases, row.last_offset) - 1
        return at < 0 or ends[at] < row.base_offset

    return [row for row in rows if row in kept or is_free(row)]
