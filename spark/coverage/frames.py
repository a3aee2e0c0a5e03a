"""Coverage of the tiered prefix: observations of each partition in, one verdict each out.

A prefix ``[log start, B0)`` is complete when finished segments of the log's own lineage, with
whole objects, cover it without a gap (seed 000, "Determining tieringComplete"; the rule is
:func:`tideline.domain.coverage.assess`). Merged segments are the suffix's: what is wrong with
them is reported and does not decide. How one partition is judged is in :mod:`spark.coverage.judge`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa

from spark.common.packing import (
    LOG,
    MERGED,
    PLACE,
    SEEN,
    by_log,
    in_packs,
    pack,
    pack_objects,
    packed_events,
    unpack,
)
from spark.common.rows import chunks, from_frame, to_batch
from spark.coverage.judge import CoverageVerdict, digest_of_merged, judge_log
from spark.coverage.tasks import Bucket

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VERDICTS_AT_ONCE = 256
"""Of one record batch."""
TASKS_PER_CORE = 4
"""Tasks of unlike sizes even out."""
FINISHED_MERGE = "COPY_SEGMENT_FINISHED"


@dataclass(frozen=True, slots=True)
class CoveredLog:
    """One partition whose prefix is judged. Starts inclusive, ends exclusive."""

    log_id: int
    topic_id: UUID
    partition: int
    log_start: int
    boundary: int
    """End of the prefix: B0, or where an accepted log gap begins."""
    suffix_start: int
    merge_frontier: int
    epochs: tuple[int, ...]
    """The log's lineage, ascending, with the first offset of each beside it."""
    epoch_starts: tuple[int, ...]
    prefix: str = ""
    """Of the keys of its objects."""
    seen_at: int = -1
    """ms; when an earlier run found every object of its segments. Only if that may be relied on."""
    seen_digest: bytes | None = None
    """Of what its segments were then."""


def verdicts(
    logs: DataFrame, events: DataFrame, merged: DataFrame, objects: Bucket | DataFrame, now_ms: int
) -> DataFrame:
    """One :class:`CoverageVerdict` per partition of ``logs``. Reading them raises, through Spark,
    :class:`tideline.kafka.errors.MetadataNotUnderstood`.

    ``logs``: rows of :class:`CoveredLog`; only their partitions are judged. ``merged``: of
    ``MergedSegmentRow``. ``events``: as their source makes them, in rows or packed already.
    ``objects``: a bucket is listed by whoever judges, a log at a time and only where no earlier
    look may be relied on; or what was listed before, in rows or packed. ``now_ms``: when the
    objects were listed, at the earliest, to tell orphans from what is new.
    """
    bucket = objects if isinstance(objects, Bucket) else None
    listed = None if isinstance(objects, Bucket) else objects

    def judge(tables: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
        found = (judge_log(table, now_ms, bucket) for table in tables)
        for some in chunks((one for one in found if one is not None), VERDICTS_AT_ONCE):
            yield to_batch(CoverageVerdict, some)

    # By a number that is given where the bucket is waited for: Spark would let one task do what
    # looks like little.
    tasks = logs.sparkSession.sparkContext.defaultParallelism * TASKS_PER_CORE if bucket else 0
    return by_log(observations(logs, events, merged, listed), judge, CoverageVerdict, tasks)


@dataclass(frozen=True, slots=True)
class MergedDigest:
    log_id: int
    digest: str
    """:func:`spark.coverage.judge.digest_of_merged`"""


def merged_digests(merged: DataFrame, log_ids: Collection[int]) -> dict[int, str]:
    """By log of ``log_ids`` what ``merged``, rows of ``MergedSegmentRow``, has of it."""

    def tell(tables: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
        digests = (
            MergedDigest(table["log_id"][0].as_py(), digest_of_merged(unpack(table)[0]))
            for table in tables
        )
        for some in chunks(digests, VERDICTS_AT_ONCE):
            yield to_batch(MergedDigest, some)

    ids = merged.sparkSession.createDataFrame(pa.table({"log_id": pa.array(log_ids, pa.int64())}))
    packs = in_packs(_of_merged(merged, ids), pack)
    found = from_frame(MergedDigest, by_log(packs, tell, MergedDigest))
    return {one.log_id: one.digest for one in found}


def observations(
    logs: DataFrame, events: DataFrame, merged: DataFrame, objects: DataFrame | None
) -> DataFrame:
    """One frame of :class:`Packed` of everything that was observed of each partition: one shuffle
    moves a few rows per partition instead of millions, and no more than one partition is unpacked
    at a time."""
    from pyspark.sql import functions as F

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
    together = (
        packed_events(events, logs)
        .unionAll(in_packs(of_logs, pack))
        .unionAll(in_packs(_of_merged(merged, logs), pack))
    )
    if objects is not None:
        return together.unionAll(in_packs(objects, pack_objects))
    of_looks = logs.where("seen_digest IS NOT NULL").select(
        "log_id",
        F.lit(SEEN).cast("tinyint").alias("kind"),
        F.col("seen_digest").alias("segment_id"),
        F.col("seen_at").alias("stamp"),
    )
    of_places = logs.select(
        "log_id",
        F.lit(PLACE).cast("bigint").alias("form"),
        F.encode("prefix", "utf-8").alias("records"),
        F.lit(b"").alias("epochs"),
    )
    return together.unionAll(in_packs(of_looks, pack)).unionAll(of_places)


def _of_merged(merged: DataFrame, logs: DataFrame) -> DataFrame:
    """What a judge is told of merged segments: of the ``log_id`` in ``logs``."""
    from pyspark.sql import functions as F

    return merged.join(F.broadcast(logs.select("log_id")), "log_id", "left_semi").select(
        "log_id",
        F.lit(MERGED).cast("tinyint").alias("kind"),
        "segment_id",
        F.col("base_offset").alias("first"),
        F.col("last_offset").alias("last"),
        F.col("size_bytes").alias("size"),
        (F.col("state") == FINISHED_MERGE).cast("int").alias("state"),
    )
