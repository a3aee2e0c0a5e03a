"""Coverage of the tiered prefix: observations of each partition in, one verdict each out.

A prefix ``[log start, B0)`` is complete when finished segments of the log's own lineage, with
whole objects, cover it without a gap (seed 000, "Determining tieringComplete"; the rule is
:func:`tideline.domain.coverage.assess`). Merged segments are the suffix's: what is wrong with
them is reported and does not decide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np
import pyarrow as pa

from spark.common.fold import PARTITION_DELETE, Events, Flags, Ints, Segments, fold
from spark.common.packing import (
    LOG,
    MERGED,
    NO_LOG,
    Objects,
    in_packs,
    must_be_understood,
    pack,
    pack_objects,
    packed_events,
    segment_name,
    stem,
    unpack,
)
from spark.common.rows import spark_schema, to_batch
from spark.coverage.cover import DELETING, STARTED, Cover, Found, cover, gaps, match

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN = 20
"""Gaps, and segments of each kind of trouble, that a verdict names; all of them are counted."""
ORPHAN_AFTER_MS = 3_600_000
"""An object that no metadata names may be of a copy that is under way, or of one that finished
between the reading of the metadata and the listing."""

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


@dataclass(frozen=True, slots=True)
class Gap:
    """``[start, end)``, and why: a key of ``spark.coverage.report.REMEDIES``."""

    start: int
    end: int
    cause: str


@dataclass(frozen=True, slots=True)
class BadSegment:
    segment: str
    problem: str


@dataclass(frozen=True, slots=True)
class CoverageVerdict:
    """On one partition. Lists have at most :data:`SHOWN` entries, the counts count all."""

    log_id: int
    complete: bool = False
    held_back: str | None = None
    """Why a prefix that is covered is not complete yet; the job knows it from the replicas."""
    wanted_start: int = 0
    wanted_end: int = 0
    """Exclusive."""
    covered_to: int = 0
    """Exclusive."""
    earliest_remote: int = -1
    missing_offsets: int = 0
    gap_count: int = 0
    gaps: tuple[Gap, ...] = ()
    segments: int = 0
    overlapping: int = 0
    overshooting: int = 0
    unfinished_count: int = 0
    unfinished: tuple[str, ...] = ()
    foreign_count: int = 0
    foreign: tuple[str, ...] = ()
    broken_count: int = 0
    broken: tuple[BadSegment, ...] = ()
    orphan_count: int = 0
    orphans: tuple[str, ...] = ()
    anomalies: int = 0
    """Metadata records that no legal history contains."""
    merged_segments: int = 0
    merged_broken_count: int = 0
    merged_broken: tuple[BadSegment, ...] = ()
    merged_gap_count: int = 0
    merged_gaps: tuple[Gap, ...] = ()


def verdicts(
    logs: DataFrame, events: DataFrame, merged: DataFrame, objects: DataFrame, now_ms: int
) -> DataFrame:
    """One :class:`CoverageVerdict` per partition of ``logs``. Reading them raises, through Spark,
    :class:`tideline.kafka.errors.MetadataNotUnderstood`.

    ``logs``: rows of :class:`CoveredLog`; only their partitions are judged. ``merged``: of
    ``MergedSegmentRow``. ``events`` and ``objects``: as their sources make them, in rows or packed
    already. ``now_ms``: when the objects were listed, to tell orphans from what is new.
    """

    def judge(table: pa.Table) -> pa.Table:
        verdict = judge_log(table, now_ms)
        return pa.Table.from_batches([to_batch(CoverageVerdict, [verdict] if verdict else [])])

    together = observations(logs, events, merged, objects)
    return together.groupBy("log_id").applyInArrow(judge, spark_schema(CoverageVerdict))


def observations(
    logs: DataFrame, events: DataFrame, merged: DataFrame, objects: DataFrame
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
    of_merged = merged.join(F.broadcast(logs.select("log_id")), "log_id", "left_semi").select(
        "log_id",
        F.lit(MERGED).cast("tinyint").alias("kind"),
        "segment_id",
        F.col("base_offset").alias("first"),
        F.col("last_offset").alias("last"),
        F.col("size_bytes").alias("size"),
        (F.col("state") == FINISHED_MERGE).cast("int").alias("state"),
    )
    return (
        packed_events(events, logs)
        .unionAll(in_packs(of_logs, pack))
        .unionAll(in_packs(of_merged, pack))
        .unionAll(in_packs(objects, pack_objects))
    )


@dataclass(frozen=True, slots=True)
class _Log:
    start: int
    boundary: int
    suffix_start: int
    merge_frontier: int
    lineage_epochs: Ints
    lineage_starts: Ints
    segments: Segments
    merged: Events
    objects: Objects


def judge_log(table: pa.Table, now_ms: int) -> CoverageVerdict | None:
    """The verdict on one partition's packed observations; ``None`` without the log itself."""
    log_id = table["log_id"][0].as_py()
    if log_id == NO_LOG:
        must_be_understood(unpack(table)[0])
        return None
    log = _taken_apart(*unpack(table))
    if log is None:
        return None
    found = cover(
        log.start, log.boundary, log.segments, log.objects, log.lineage_epochs, log.lineage_starts
    )
    end = max(log.start, log.boundary)
    complete = not len(found.gap_starts)
    verdict = CoverageVerdict(
        log_id,
        anomalies=log.segments.anomalies,
        complete=complete,
        wanted_start=log.start,
        wanted_end=end,
        covered_to=end if complete else int(found.gap_starts[0]),
        earliest_remote=found.earliest_remote,
        missing_offsets=int((found.gap_ends - found.gap_starts).sum()),
        gap_count=len(found.gap_starts),
        gaps=_gaps(log, found),
    )
    return _with_merged(_with_segments(verdict, log, found, now_ms), log)


def _with_segments(
    verdict: CoverageVerdict, log: _Log, found: Cover, now_ms: int
) -> CoverageVerdict:
    base, objects, orphans = log.segments.base, log.objects, _orphans(log, now_ms)
    return replace(
        verdict,
        segments=found.segments,
        overlapping=found.overlapping,
        overshooting=found.overshooting,
        unfinished_count=len(found.unfinished),
        unfinished=tuple(segment_name(base, int(row)) for row in found.unfinished[:SHOWN]),
        foreign_count=len(found.foreign),
        foreign=tuple(segment_name(base, int(row)) for row in found.foreign[:SHOWN]),
        broken_count=len(found.broken),
        broken=_bad(base, found.found, found.broken),
        orphan_count=len(orphans),
        orphans=tuple(
            stem(int(objects.start[n]), int(objects.id_high[n]), int(objects.id_low[n]))
            for n in orphans[:SHOWN]
        ),
    )


def _taken_apart(everything: Events, objects: Objects) -> _Log | None:
    of_kind = everything.kind

    def rows(kind: int) -> Ints:
        return np.flatnonzero(of_kind == kind)

    itself = everything.take(rows(LOG))
    if not len(itself):
        return None
    return _Log(
        start=int(itself.start[0]),
        boundary=int(itself.end[0]),
        suffix_start=int(itself.size[0]),
        merge_frontier=int(itself.stamp[0]),
        lineage_epochs=itself.epochs.values,
        lineage_starts=itself.epoch_starts.values,
        segments=fold(everything.take(np.flatnonzero(of_kind <= PARTITION_DELETE))),
        merged=everything.take(rows(MERGED)),
        objects=objects,
    )


def _gaps(log: _Log, found: Cover) -> tuple[Gap, ...]:
    return tuple(
        Gap(int(start), int(end), _cause(log, found, int(start), int(end)))
        for start, end in zip(found.gap_starts[:SHOWN], found.gap_ends[:SHOWN], strict=True)
    )


def _cause(log: _Log, found: Cover, start: int, end: int) -> str:
    base = log.segments.base
    touches: Flags = (base.start < end) & (base.end >= start)
    if touches[found.broken].any():
        return "bad_objects"
    if touches[base.state == STARTED].any():
        return "copying"
    if touches[base.state == DELETING].any():
        return "being_deleted"
    if touches.any():
        return "other_lineage"
    if start == log.start and found.earliest_remote > start:
        return "starts_late"
    return "absent"


def _bad(events: Events, found: Found, rows: Ints) -> tuple[BadSegment, ...]:
    return tuple(
        BadSegment(
            segment_name(events, int(row)),
            found.problem(int(row), int(events.size[row]), bool(events.txn_index_empty[row])),
        )
        for row in rows[:SHOWN]
    )


def _orphans(log: _Log, now_ms: int) -> Ints:
    """Listed segments that neither the brokers nor the control plane know, and that are old."""
    base, merged, objects = log.segments.base, log.merged, log.objects
    known = match(
        objects.id_high,
        objects.id_low,
        np.concatenate((base.id_high, merged.id_high)),
        np.concatenate((base.id_low, merged.id_low)),
    )
    old = objects.modified < now_ms - ORPHAN_AFTER_MS
    return np.flatnonzero((known < 0) & old)


def _with_merged(verdict: CoverageVerdict, log: _Log) -> CoverageVerdict:
    """Merged segments that the suffix still reads, and the offsets that it could not."""
    wanted = (log.merged.state == 1) & (log.merged.end >= log.suffix_start)
    merged = log.merged.take(np.flatnonzero(wanted))
    # Only segments of transactional data need a transaction index, and the suffix has none.
    no_txn_index = np.ones(len(merged), dtype=bool)
    found = Found.of(log.objects, merged.id_high, merged.id_low)
    bad = found.bad(merged.size, no_txn_index)
    merged.txn_index_empty[:] = True
    starts, ends = gaps(
        log.suffix_start,
        max(log.suffix_start, log.merge_frontier),
        np.maximum(merged.start[~bad], log.suffix_start),
        merged.end[~bad] + 1,
    )
    shown = zip(starts[:SHOWN], ends[:SHOWN], strict=True)
    return replace(
        verdict,
        merged_segments=len(merged),
        merged_broken_count=int(bad.sum()),
        merged_broken=_bad(merged, found, np.flatnonzero(bad)),
        merged_gap_count=len(starts),
        merged_gaps=tuple(Gap(int(start), int(end), "merged_objects") for start, end in shown),
    )
