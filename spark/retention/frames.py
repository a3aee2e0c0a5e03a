"""Retention over frames: the leading run of ``tideline.domain.retention``, for every log at once.

Frames in, frames out, all in Spark's own operators: memory is bounded by Spark's sort, whatever
the number of segments. WAL batches are not rows here: a log's batches are one number (their
bytes), and where the run reaches them Postgres finds the cut (``retention_wal_cut``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LOGS = """log_id bigint, topic string, topic_id binary, partition int, state string,
prefix_start bigint, boundary bigint, suffix_start bigint, high_watermark bigint,
retention_ms bigint, retention_bytes bigint, lineage array<int>, lineage_starts array<bigint>"""
"""One row per log whose topic has a limit. Offsets as in ``LogBounds``; −1: unset or unlimited.
``lineage``: the leader epochs in Kafka, ascending, with their first offsets beside them."""

SEGMENTS = """topic_id binary, partition int, start_offset bigint, end_offset bigint,
size_bytes bigint, max_timestamp bigint, epochs array<int>, epoch_starts array<bigint>"""
"""Remote segments in COPY_SEGMENT_FINISHED. Offsets inclusive, times in ms."""

UNITS = """log_id bigint, region int, start_offset bigint, end_offset bigint, size_bytes bigint,
max_timestamp bigint"""
"""Units of logs: region 0 the prefix's, 1 merged segments."""

PREFIX, MERGED, WAL = 0, 1, 2
FINISHED = 1
"""``SegmentState.COPY_SEGMENT_FINISHED``."""
SEGMENT_RECORD, PARTITION_DELETE_RECORD, PARTITION_DELETED = 0, 2, 2
"""Kinds of records of the remote log's metadata, and the state that ends a partition."""


def readable_segments(events: DataFrame) -> DataFrame:
    """The remote log's metadata folded to its readable segments, as ``SEGMENTS``.

    The fold of ``tideline.domain.remote_log.RemoteLogIndex``: a segment counts from its
    registration on, its state only goes forward, and the end of a partition ends all before it.
    A segment that was ever deleted never counts again.
    """
    keys = ["topic_id", "partition"]
    ended = (
        events.where(f"kind = {PARTITION_DELETE_RECORD} AND state = {PARTITION_DELETED}")
        .groupBy(*keys)
        .agg(F.max("record_offset").alias("ended_at"))
    )
    of_segment = Window.partitionBy(*keys, "segment_id").orderBy("record_offset")
    so_far = of_segment.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    told = (
        events.where("segment_id IS NOT NULL")
        .join(F.broadcast(ended), keys, "left")
        .where("ended_at IS NULL OR record_offset > ended_at")
        .withColumn("registered", F.max(F.expr(f"kind = {SEGMENT_RECORD}")).over(so_far))
        .where("registered")
    )
    fields = (
        "start_offset", "end_offset", "size_bytes", "max_timestamp", "epochs", "epoch_starts",
    )  # fmt: skip
    return (
        told.groupBy(*keys, "segment_id")
        .agg(
            F.min_by(F.struct(*fields), "record_offset").alias("base"),
            F.max("state").alias("final"),
        )
        .where(f"final = {FINISHED}")
        .select(*keys, "base.*")
    )


def prefix_units(logs: DataFrame, segments: DataFrame) -> DataFrame:
    """The remote segments that count, as ``UNITS``: ``tideline.domain.retention.prefix_units``."""
    pieces = """
        transform(epochs, (e, i) -> named_struct(
            'epoch', e,
            'start', greatest(get(epoch_starts, i), start_offset),
            'stop', if(i + 1 < size(epochs),
                       greatest(get(epoch_starts, i + 1), start_offset), end_offset + 1)))
    """
    own = """
        transform(lineage, (e, i) -> named_struct(
            'epoch', e, 'start', get(lineage_starts, i),
            'stop', coalesce(get(lineage_starts, i + 1), 9223372036854775807)))
    """
    within = """
        size(lineage) > 0 AND forall(pieces, p ->
            p.start >= p.stop OR p.stop <= lineage_starts[0]
            OR exists(own, o -> o.epoch = p.epoch AND p.stop <= o.stop
                AND greatest(p.start, lineage_starts[0]) >= o.start))
    """
    keys = ["topic_id", "partition"]
    bounds = logs.select("log_id", *keys, "prefix_start", "boundary", "lineage", "lineage_starts")
    return (
        segments.join(bounds, keys)
        .where("end_offset >= prefix_start AND (boundary < 0 OR start_offset < boundary)")
        .withColumn("pieces", F.expr(pieces))
        .withColumn("own", F.expr(own))
        .where(within)
        .select(
            "log_id",
            F.lit(PREFIX).alias("region"),
            "start_offset",
            F.expr("if(boundary < 0, end_offset, least(end_offset, boundary - 1))").alias(
                "end_offset"
            ),
            "size_bytes",
            "max_timestamp",
        )
    )


def segments_to_remove(
    logs: DataFrame, units: DataFrame, wal_bytes: DataFrame, now_ms: int
) -> DataFrame:
    """How far the run gets over segments, one row per log of ``logs``.

    ``wal_bytes``: ``log_id``, ``wal_bytes``; a log without a row has none. Adds to ``logs``:

    - ``log_start``: the earliest readable offset now; ``cutoff``: of ``retention.ms``, in ms
    - ``before_offset``: the start after the run; ``by_time``, ``by_size``, ``removed_bytes``
    - ``excess``: bytes that are still too many behind the run
    - ``blocked``: it stopped at a unit of the suffix that is due, but offsets of the prefix are
      in no segment
    - ``reaches_wal``: no segment stopped it, so that batches may go too
    """
    bounded = _with_bounds(logs, now_ms)
    live = units.join(
        bounded.select("log_id", "boundary", "log_start", "cutoff", "retention_bytes"), "log_id"
    ).where("end_offset >= log_start")
    # Without the batches' bytes the excess of a log would be known only after a second pass.
    sized = live.join(wal_bytes, "log_id", "left")
    judged = _judged(sized)
    run = judged.groupBy("log_id").agg(
        _sum("gone AND too_old", 1).alias("by_time"),
        _sum("gone AND NOT too_old", 1).alias("by_size"),
        _sum("gone", F.col("size_bytes")).alias("removed_bytes"),
        F.max(F.expr("if(gone, end_offset + 1, NULL)")).alias("reached"),
        F.max(F.expr("first_kept AND due AND barred")).alias("blocked"),
        F.min("gone").alias("all_gone"),
        F.sum("size_bytes").alias("segment_bytes"),
    )
    excess = "if(retention_bytes >= 0, greatest(total_bytes - retention_bytes, 0), 0)"
    return (
        bounded.join(run, "log_id", "left")
        .join(wal_bytes, "log_id", "left")
        .na.fill(0, ["by_time", "by_size", "removed_bytes", "segment_bytes", "wal_bytes"])
        .withColumn("total_bytes", F.expr("segment_bytes + wal_bytes"))
        .withColumn("before_offset", F.expr("greatest(log_start, reached)"))
        .withColumn("excess", F.expr(f"greatest({excess} - removed_bytes, 0)"))
        .withColumn("blocked", F.coalesce("blocked", F.lit(False)))
        .withColumn(
            "reaches_wal",
            F.expr(
                "coalesce(all_gone, true) AND boundary >= 0 "
                "AND high_watermark > greatest(before_offset, boundary)"
            ),
        )
        .drop("reached", "all_gone", "segment_bytes")
    )


def _with_bounds(logs: DataFrame, now_ms: int) -> DataFrame:
    return logs.withColumn(
        "log_start",
        F.expr(
            "if(boundary < 0 OR prefix_start < boundary, prefix_start, "
            "greatest(boundary, suffix_start))"
        ),
    ).withColumn(
        "cutoff",
        F.expr(f"if(retention_ms >= 0, greatest({now_ms} - retention_ms, -1), -1)"),
    )


def _judged(live: DataFrame) -> DataFrame:
    """Each unit with what the rules say of it.

    The excess before a unit is the log's excess less all that stands before it, not below zero:
    the same as subtracting one unit after the other, because no size is negative.
    """
    of_log = Window.partitionBy("log_id")
    order = of_log.orderBy("region", "start_offset", "end_offset", "size_bytes", "max_timestamp")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    through = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    total = F.sum("size_bytes").over(of_log) + F.coalesce("wal_bytes", F.lit(0))
    too_many = F.when(
        F.col("retention_bytes") >= 0, F.greatest(total - F.col("retention_bytes"), F.lit(0))
    ).otherwise(0)
    passed = F.coalesce(F.sum("size_bytes").over(before), F.lit(0))
    reached = F.greatest("log_start", F.max(F.col("end_offset") + 1).over(before))
    return (
        live.withColumn("excess", F.greatest(too_many - passed, F.lit(0)))
        .withColumn("too_old", F.expr("cutoff >= 0 AND max_timestamp <= cutoff"))
        .withColumn("due", F.expr("too_old OR (excess > 0 AND size_bytes <= excess)"))
        .withColumn("barred", (F.col("region") != PREFIX) & (reached < F.col("boundary")))
        .withColumn("kept", F.expr("barred OR NOT due"))
        .withColumn("kept_before", F.coalesce(F.max("kept").over(before), F.lit(False)))
        .withColumn("gone", ~F.max("kept").over(through))
        .withColumn("first_kept", F.expr("kept AND NOT kept_before"))
    )


def _sum(condition: str, value: Column | int) -> Column:
    return F.sum(F.when(F.expr(condition), value).otherwise(0))


def with_wal_cut(removals: DataFrame, cuts: DataFrame) -> DataFrame:
    """Adds what ``retention_wal_cut`` found: ``log_id``, ``cut_before``, ``cut_by_time``,
    ``cut_by_size``, ``cut_bytes``.

    Batches that are due behind a hole in the prefix stay, and make the log ``blocked``.
    """
    found = removals.join(cuts, "log_id", "left").na.fill(
        0, ["cut_by_time", "cut_by_size", "cut_bytes"]
    )
    barred = F.expr("before_offset < boundary")
    due = F.col("cut_by_time") + F.col("cut_by_size") > 0
    taken = found.withColumn("blocked", F.col("blocked") | (barred & due)).withColumn(
        "takes", due & ~barred
    )
    for name, cut in (
        ("by_time", "cut_by_time"),
        ("by_size", "cut_by_size"),
        ("removed_bytes", "cut_bytes"),
    ):
        taken = taken.withColumn(name, F.expr(f"{name} + if(takes, {cut}, 0)"))
    return taken.withColumn(
        "before_offset", F.expr("if(takes, greatest(before_offset, cut_before), before_offset)")
    ).drop("cut_before", "cut_by_time", "cut_by_size", "cut_bytes", "takes")


def with_targets(removals: DataFrame) -> DataFrame:
    """Adds ``prefix_before`` and ``suffix_before``: ``tideline.domain.retention.targets``; NULL
    where nothing is asked of Kafka or of the control plane."""
    in_prefix = "if(boundary < 0, before_offset, least(before_offset, boundary))"
    return removals.withColumn(
        "prefix_before", F.expr(f"if({in_prefix} > prefix_start, {in_prefix}, NULL)")
    ).withColumn(
        "suffix_before",
        F.expr(
            "if(boundary >= 0 AND before_offset > greatest(boundary, suffix_start), "
            "before_offset, NULL)"
        ),
    )
