"""What ``retention.ms`` and ``retention.bytes`` remove of logs that have a prefix and a suffix.

The two are one log: its units, oldest first, are the prefix's remote segments, the merged segments
and the WAL batches. Only a leading run of units goes, judged one by one as Kafka judges remote
segments (``RemoteLogManager.cleanupExpiredRemoteLogSegments``): a unit that is too old goes,
whatever its size; another one goes while the log's excess still holds all of it. What always holds
(seed 000, "Retention and earliest offset in hybrid topics"):

- B0 never moves, and Kafka is asked to delete nothing at or past it;
- the suffix loses nothing while a record of the prefix stands before it;
- a suffix that retention has emptied stays, empty; an empty suffix takes nothing of the prefix
  with it.

Frames in, frames out, for every log at once. One partition's segments are folded with numpy; the
rest is Spark's own operators, so that memory is bounded by Spark's sort. WAL batches are not rows
here: a log's batches are one number (their bytes), and where the run reaches them Postgres finds
the cut (``retention_wal_cut``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from spark.common.fold import PARTITION_DELETE, Flags, Ints, fold, within_lineage
from spark.common.packing import (
    LOG,
    NO_LOG,
    by_log,
    in_packs,
    must_be_understood,
    pack,
    packed_events,
    unpack,
)
from spark.common.rows import ROWS_AT_ONCE, arrow_schema
from tideline.domain.remote_log import SegmentState

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Units = tuple[Ints, Ints, Ints, Ints]
PREFIX_REGION, MERGED_REGION, WAL_REGION = 0, 1, 2
"""Where a unit of the log lies, in the order of the log."""


@dataclass(frozen=True, slots=True)
class LimitedLog:
    """One log whose topic has a limit; -1: unset, or unlimited."""

    log_id: int
    topic: str
    topic_id: UUID
    partition: int
    state: str
    prefix_start: int
    """Kafka's log start offset; may lie past B0."""
    boundary: int
    """B0; while it is unset all of the log is prefix."""
    prefix_end: int
    """Where the prefix ends, exclusive: at B0, or where an accepted log gap begins."""
    suffix_start: int
    high_watermark: int
    """End of the suffix (exclusive)."""
    retention_ms: int
    retention_bytes: int
    epochs: tuple[int, ...]
    """The lineage in Kafka, ascending, with the first offset of each beside it."""
    epoch_starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """What goes as a whole or not at all. Offsets are inclusive; time in ms."""

    log_id: int
    region: int
    start_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int


def prefix_units(logs: DataFrame, events: DataFrame, now_ms: int) -> DataFrame:
    """The readable remote segments below B0 of each log's own lineage, as rows of :class:`Unit`.

    ``logs``: rows of :class:`LimitedLog`; ``events``: as ``spark.common.remote_log`` makes them.
    Segments of a deposed leader count for nothing: their offsets belong to others. One that reaches
    past the prefix's end (a tail that was never acknowledged) ends there as a unit. Of a log
    without a limit by size nothing is told behind the first unit that stays: it changes nothing,
    and is nearly all of the log.
    """
    of_logs = _with_bounds(logs, now_ms).select(
        "log_id",
        F.lit(LOG).cast("tinyint").alias("kind"),
        F.col("prefix_start").alias("first"),
        F.col("prefix_end").alias("last"),
        F.col("retention_bytes").alias("size"),
        F.col("cutoff").alias("stamp"),
        "epochs",
        "epoch_starts",
    )
    together = packed_events(events, logs).unionAll(in_packs(of_logs, pack))
    return by_log(together, units_of_logs, Unit)


def units_of_logs(tables: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Those of :func:`units_of_log`, by the thousand."""
    some: list[pa.RecordBatch] = []
    rows = 0
    for table in tables:
        some.append(units_of_log(table))
        rows += len(some[-1])
        if max(rows, len(some)) >= ROWS_AT_ONCE:
            yield pa.concat_batches(some)
            some, rows = [], 0
    if some:
        yield pa.concat_batches(some)


def units_of_log(table: pa.Table) -> pa.RecordBatch:
    """The units of one log's packed records. None without the log itself: it brings the lineage,
    and nothing is within an empty one."""
    log_id, (everything, _) = table["log_id"][0].as_py(), unpack(table)
    if log_id == NO_LOG:
        must_be_understood(everything)
    log = everything.take(np.flatnonzero(everything.kind == LOG))
    found = fold(everything.take(np.flatnonzero(everything.kind <= PARTITION_DELETE))).base
    start, prefix_end = (int(log.start[0]), int(log.end[0])) if len(log) else (0, 0)
    end = found.end if prefix_end < 0 else np.minimum(found.end, prefix_end - 1)
    readable: Flags = (
        (found.state == int(SegmentState.COPY_SEGMENT_FINISHED))
        & (found.end >= start)
        & ((found.start < prefix_end) | (prefix_end < 0))
        & within_lineage(found, log.epochs.values, log.epoch_starts.values)
    )
    kept = np.flatnonzero(readable)
    columns = (found.start[kept], end[kept], found.size[kept], found.newest[kept])
    if len(log) and log.size[0] < 0:
        columns = _up_to_one_that_stays(columns, int(log.stamp[0]))
    of_log = (np.full(len(columns[0]), log_id), np.full(len(columns[0]), PREFIX_REGION))
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.int64()) for values in (*of_log, *columns)],
        schema=arrow_schema(Unit),
    )


def _up_to_one_that_stays(units: Units, cutoff: int) -> Units:
    """Start, end, size and newest time of units that only age takes away, in the order in which
    they are judged, to the first one that is young enough."""
    order = np.lexsort(units[::-1])
    starts, ends, sizes, newest = (values[order] for values in units)
    young = np.flatnonzero((newest > cutoff) | (cutoff < 0))
    told = slice(0, int(young[0]) + 1 if len(young) else len(order))
    return starts[told], ends[told], sizes[told], newest[told]


def segments_to_remove(
    logs: DataFrame, units: DataFrame, wal_bytes: DataFrame, now_ms: int
) -> DataFrame:
    """How far the run gets over segments, one row per log of ``logs``.

    ``wal_bytes``: ``log_id``, ``wal_bytes``; a log without a row has none. Adds to ``logs``:

    - ``log_start``: the earliest readable offset now; ``cutoff``: units whose largest timestamp
      is at or before it are too old, in ms; -1: no unit is
    - ``before_offset``: the start after the run; ``by_time``, ``by_size``, ``removed_bytes``
    - ``excess``: bytes that are still too many behind the run
    - ``blocked``: it stopped at a unit of the suffix that is due, but offsets of the prefix are
      in no segment
    - ``reaches_wal``: no segment stopped it, so that batches may go too
    """
    bounded = _with_bounds(logs, now_ms)
    # Whoever is through with the prefix is at B0: an accepted log gap holds nothing.
    through = f"region = {PREFIX_REGION} AND boundary >= 0 AND end_offset + 1 >= prefix_end"
    # A row for each log goes to every executor: Spark may take units, of which there can be
    # millions, for fewer, because it takes what a Python function makes for what it was given.
    bounds = bounded.select(
        "log_id", "boundary", "prefix_end", "log_start", "cutoff", "retention_bytes"
    )
    live = (
        units.join(F.broadcast(bounds), "log_id")
        .withColumn("end_offset", F.expr(f"if({through}, boundary - 1, end_offset)"))
        .where("end_offset >= log_start")
    )
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
        .withColumn("barred", (F.col("region") != PREFIX_REGION) & (reached < F.col("boundary")))
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
    """Adds who is asked to delete below which offset (exclusive): ``prefix_before`` Kafka, never
    past the prefix's end, ``suffix_before`` the control plane; NULL where nothing is asked."""
    in_prefix = "if(boundary < 0, before_offset, least(before_offset, prefix_end))"
    return removals.withColumn(
        "prefix_before", F.expr(f"if({in_prefix} > prefix_start, {in_prefix}, NULL)")
    ).withColumn(
        "suffix_before",
        F.expr(
            "if(boundary >= 0 AND before_offset > greatest(boundary, suffix_start), "
            "before_offset, NULL)"
        ),
    )
