"""Which listed segment objects no broker knows.

The listing must be older than the metadata: a broker announces a segment before it uploads it, so
an object that was listed and has no record afterwards is an orphan, not a newcomer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from pyspark.sql import functions as F

from tideline.domain.remote_log import SegmentState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEYS = ["topic_id", "partition", "segment_id"]
DELETED = int(SegmentState.DELETE_SEGMENT_FINISHED)


@dataclass(frozen=True, slots=True)
class SegmentObject:
    object_key: str
    topic_id: UUID
    partition: int
    segment_id: UUID
    size: int
    etag: str
    modified_ms: int


def known_segments(events: DataFrame) -> DataFrame:
    """Segments that Kafka's metadata has in any state, as ``KEYS``, from rows of
    :class:`spark.common.metadata_records.MetadataRecord`.

    Stricter than the brokers' own fold, because a mistake here deletes: a segment is unknown only
    when the last record about it says that its deletion is finished. Records that do not parse or
    are of an unknown kind are one row of nulls (:func:`is_readable`).
    """
    return (
        events.where("segment_id IS NOT NULL OR topic_id IS NULL")
        .groupBy(*KEYS)
        .agg(F.max_by("state", "record_offset").alias("last_state"))
        .where(f"last_state IS NULL OR last_state <> {DELETED}")
        .select(*KEYS)
    )


def is_readable(known: DataFrame) -> bool:
    """Whether every record was understood. If not, an object without a record may have had one."""
    return known.where("topic_id IS NULL").isEmpty()


def orphans(listed: DataFrame, known: DataFrame) -> DataFrame:
    """Rows of ``listed`` (:class:`SegmentObject`) whose segment is not in ``known``.

    Both are sorted, which spills. Spark takes what a Python function makes for as little as it was
    given, and would send millions of keys to every executor, as a table that has to fit."""
    return listed.join(known.hint("merge"), KEYS, "left_anti")
