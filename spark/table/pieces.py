"""What one task reads: a part of a segment, or a run of batches in WAL objects.

Offsets are inclusive at the start and exclusive at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from pyspark.sql.datasource import InputPartition

from tideline.domain.coverage import OffsetRange
from tideline.domain.ids import TopicIdPartition
from tideline.kafka.txn_index import AbortedTxn

PIECE_BYTES = 64 * 1024 * 1024
"""Of stored bytes that one task reads, about."""


class Place(StrEnum):
    """Where a piece lies."""

    PREFIX = "prefix"
    MERGED = "merged"
    WAL = "wal"

    @property
    def is_dense(self) -> bool:
        """Whether a batch has every offset. Of the prefix compaction may have taken some while the
        topic had ``cleanup.policy=compact`` (Kafka's ``LogCleaner``): nobody is served them."""
        return self is not Place.PREFIX


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """The batches of a segment that begin in one of ``parts`` equal pieces of its bytes."""

    object_key_stem: str
    base_offset: int
    last_offset: int
    """inclusive"""
    size_bytes: int
    part: int = 0
    parts: int = 1

    def bytes_from(self, part: int) -> int:
        """Where a part begins, before it is moved to the next batch that the index knows."""
        return self.size_bytes * part // self.parts


@dataclass(frozen=True)
class Piece(InputPartition):
    """May be pickled; travels to whoever reads it."""

    topic: str
    topic_id: UUID
    partition: int
    place: Place
    start: int
    end: int
    size_bytes: int
    """About as many bytes are read."""
    segment: SegmentPart | None = None
    """``None``: batches in WAL objects, or in what they were merged into meanwhile."""
    leader_epoch: int | None = None
    """That of every batch from B0 on; ``None``: the batches say their own."""
    aborted: tuple[AbortedTxn, ...] = ()
    """Transactions with records in ``[start, end)``."""
    pin: UUID | None = None
    """What keeps it from the collection while it is read."""

    @property
    def log(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(self.start, self.end)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} {self.range} ({self.place})"


def parts_of(size_bytes: int) -> int:
    """In how many pieces a segment is read."""
    return max(1, -(-size_bytes // PIECE_BYTES))
