"""Everything that was observed of a partition, brought together by one shuffle.

The records of :mod:`spark.coverage.packing`: the shuffle moves a few rows per partition instead of
millions, and no more than one partition is unpacked at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from spark.coverage.packing import (
    LOG,
    MERGED,
    PACKED,
    PACKED_EVENTS,
    UNKNOWN_PARTITION,
    pack,
    pack_events,
    pack_objects,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NO_LOG = -1
"""``log_id`` of records that cannot be decoded: they belong to no partition."""
FINISHED_MERGE = "COPY_SEGMENT_FINISHED"


def observations(
    logs: DataFrame, events: DataFrame, merged: DataFrame, objects: DataFrame
) -> DataFrame:
    """One packed frame of all of them; columns: :data:`PACKED`.

    ``logs``: log_id, topic_id, partition, log_start, boundary, suffix_start, merge_frontier,
    epochs, epoch_starts; only their partitions are kept. ``events``, ``merged``, ``objects``: as
    their sources make them, in rows or packed already.
    """
    from pyspark.sql import functions as F

    keys = F.broadcast(logs.select("log_id", "topic_id", "partition"))
    of_events = (
        _packed(events, pack_events, PACKED_EVENTS)
        .join(keys, ["topic_id", "partition"], "left")
        .where(F.col("log_id").isNotNull() | (F.col("partition") == UNKNOWN_PARTITION))
        .select(F.coalesce("log_id", F.lit(NO_LOG)).alias("log_id"), "form", "records", "epochs")
    )
    of_logs = logs.select(
        "log_id",
        F.lit(LOG).cast("tinyint").alias("kind"),
        F.col("log_start").alias("first"),
        F.col("boundary").alias("last"),
        F.col("suffix_start").alias("size"),
        F.col("merge_frontier").alias("stamp"),
        "epochs",
        "epoch_starts",
    )
    of_merged = merged.join(keys.select("log_id"), "log_id", "left_semi").select(
        "log_id",
        F.lit(MERGED).cast("tinyint").alias("kind"),
        "segment_id",
        F.col("base_offset").alias("first"),
        F.col("last_offset").alias("last"),
        F.col("size_bytes").alias("size"),
        (F.col("state") == FINISHED_MERGE).cast("int").alias("state"),
    )
    return (
        of_events.unionAll(_packed(of_logs, pack, PACKED))
        .unionAll(_packed(of_merged, pack, PACKED))
        .unionAll(_packed(objects, pack_objects, PACKED))
    )


def _packed(
    frame: DataFrame, packing: Callable[[pa.RecordBatch], pa.RecordBatch], schema: str
) -> DataFrame:
    if "records" in frame.columns:
        return frame

    def pack_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield packing(batch)

    return frame.mapInArrow(pack_all, schema)
