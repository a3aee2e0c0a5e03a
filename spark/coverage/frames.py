"""Coverage of the tiered prefix: observations of each partition in, one verdict each out.

A prefix ``[log start, B0)`` is complete when finished segments of the log's own lineage, with
whole objects, cover it without a gap (seed 000, "Determining tieringComplete"; the rule is
:func:`tideline.domain.coverage.assess`). Merged segments are the suffix's: what is wrong with
them is reported and does not decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spark.coverage.cover import DELETING, STARTED, Cover, Found, cover, gaps, match
from spark.coverage.fold import (
    PARTITION_DELETE,
    Events,
    Flags,
    Ints,
    Segments,
    fold,
)
from spark.coverage.observations import NO_LOG, observations
from spark.coverage.packing import LOG, MERGED, Objects, segment_name, stem, unpack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN = 20
"""Gaps, and segments of each kind of trouble, that a verdict names; all of them are counted."""
ORPHAN_AFTER_MS = 3_600_000
"""An object that no metadata names may be of a copy that is under way, or of one that finished
between the reading of the metadata and the listing."""

_GAP = pa.struct([("start", pa.int64()), ("end", pa.int64()), ("cause", pa.string())])
_BAD = pa.struct([("segment", pa.string()), ("problem", pa.string())])
_NAMES = pa.list_(pa.string())
ARROW = pa.schema(
    [
        ("log_id", pa.int64()),
        ("complete", pa.bool_()),
        ("held_back", pa.string()),
        ("wanted_start", pa.int64()),
        ("wanted_end", pa.int64()),
        ("covered_to", pa.int64()),
        ("earliest_remote", pa.int64()),
        ("missing_offsets", pa.int64()),
        ("gap_count", pa.int64()),
        ("gaps", pa.list_(_GAP)),
        ("segments", pa.int64()),
        ("overlapping", pa.int64()),
        ("overshooting", pa.int64()),
        ("unfinished_count", pa.int64()),
        ("unfinished", _NAMES),
        ("foreign_count", pa.int64()),
        ("foreign", _NAMES),
        ("broken_count", pa.int64()),
        ("broken", pa.list_(_BAD)),
        ("orphan_count", pa.int64()),
        ("orphans", _NAMES),
        ("anomalies", pa.int64()),
        ("merged_segments", pa.int64()),
        ("merged_broken_count", pa.int64()),
        ("merged_broken", pa.list_(_BAD)),
        ("merged_gap_count", pa.int64()),
        ("merged_gaps", pa.list_(_GAP)),
    ]
)
"""Offsets that start something are inclusive, those that end something exclusive. ``held_back``:
why a prefix that is covered is not complete yet; the job knows it from the replicas."""


def verdicts(
    logs: DataFrame, events: DataFrame, merged: DataFrame, objects: DataFrame, now_ms: int
) -> DataFrame:
    """One row per partition of ``logs``; columns: :data:`ARROW`. A row with ``log_id`` -1 counts
    metadata records that could not be decoded. Inputs: :func:`spark.coverage.observations`.

    ``now_ms``: when the objects were listed, to tell orphans from what is new.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    def judge(table: pa.Table) -> pa.Table:
        row = judge_log(table, now_ms)
        return pa.Table.from_pylist([row] if row else [], schema=ARROW)

    together = observations(logs, events, merged, objects)
    return together.groupBy("log_id").applyInArrow(judge, from_arrow_schema(ARROW))


@dataclass(frozen=True, slots=True)
class _Log:
    """One partition, taken apart."""

    start: int
    boundary: int
    suffix_start: int
    merge_frontier: int
    lineage_epochs: Ints
    lineage_starts: Ints
    segments: Segments
    merged: Events
    objects: Objects


def judge_log(table: pa.Table, now_ms: int) -> dict[str, Any] | None:
    """The verdict on one partition's packed observations; ``None`` without the log itself."""
    log_id = table["log_id"][0].as_py()
    if log_id == NO_LOG:
        return {"log_id": NO_LOG, "anomalies": len(unpack(table)[0])}
    log = _taken_apart(*unpack(table))
    if log is None:
        return None
    found = cover(
        log.start, log.boundary, log.segments, log.objects, log.lineage_epochs, log.lineage_starts
    )
    base = log.segments.base
    end = max(log.start, log.boundary)
    complete = not len(found.gap_starts)
    orphans = _orphans(log, now_ms)
    objects = log.objects
    return {
        "log_id": log_id,
        "complete": complete,
        "wanted_start": log.start,
        "wanted_end": end,
        "covered_to": end if complete else int(found.gap_starts[0]),
        "earliest_remote": found.earliest_remote,
        "missing_offsets": int((found.gap_ends - found.gap_starts).sum()),
        "gap_count": len(found.gap_starts),
        "gaps": _gaps(log, found),
        "segments": found.segments,
        "overlapping": found.overlapping,
        "overshooting": found.overshooting,
        "unfinished_count": len(found.unfinished),
        "unfinished": [segment_name(base, int(row)) for row in found.unfinished[:SHOWN]],
        "foreign_count": len(found.foreign),
        "foreign": [segment_name(base, int(row)) for row in found.foreign[:SHOWN]],
        "broken_count": len(found.broken),
        "broken": _bad(base, found.found, found.broken),
        "orphan_count": len(orphans),
        "orphans": [
            stem(int(objects.start[n]), int(objects.id_high[n]), int(objects.id_low[n]))
            for n in orphans[:SHOWN]
        ],
        "anomalies": log.segments.anomalies,
        **_merged(log),
    }


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


def _gaps(log: _Log, found: Cover) -> list[dict[str, Any]]:
    return [
        {"start": int(start), "end": int(end), "cause": _cause(log, found, int(start), int(end))}
        for start, end in zip(found.gap_starts[:SHOWN], found.gap_ends[:SHOWN], strict=True)
    ]


def _cause(log: _Log, found: Cover, start: int, end: int) -> str:
    """Why ``[start, end)`` is not covered: a key of ``spark.coverage.remedies.REMEDIES``."""
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


def _bad(events: Events, found: Found, rows: Ints) -> list[dict[str, str]]:
    return [
        {
            "segment": segment_name(events, int(row)),
            "problem": found.problem(
                int(row), int(events.size[row]), bool(events.txn_index_empty[row])
            ),
        }
        for row in rows[:SHOWN]
    ]


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


def _merged(log: _Log) -> dict[str, Any]:
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
    return {
        "merged_segments": len(merged),
        "merged_broken_count": int(bad.sum()),
        "merged_broken": _bad(merged, found, np.flatnonzero(bad)),
        "merged_gap_count": len(starts),
        "merged_gaps": [
            {"start": int(start), "end": int(end), "cause": "merged_objects"}
            for start, end in zip(starts[:SHOWN], ends[:SHOWN], strict=True)
        ],
    }
