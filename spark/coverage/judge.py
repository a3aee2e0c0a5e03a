"""The verdict on one partition, from its packed observations and what the bucket has of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from spark.common import code
from spark.common.fold import NO_EVENTS, Events, Flags, Ints, Segments, fold
from spark.common.packing import (
    LOG,
    MERGED,
    NO_LOG,
    SEEN,
    Objects,
    must_be_understood,
    place_of,
    segment_name,
    stem,
    unpack,
)
from spark.coverage.cover import (
    DELETING,
    FINISHED,
    OWN_BITS,
    STARTED,
    TXN_INDEX_BIT,
    Cover,
    Found,
    cover,
    gaps,
    match,
    may_lack_txn_index,
)
from spark.coverage.tasks import Bucket

SHOWN = 20
"""Gaps, and segments of each kind of trouble, that a verdict names; all of them are counted."""
ORPHAN_AFTER_MS = 3_600_000
"""An object that no metadata names may be of a copy that is under way, or of one that finished
between the reading of the metadata and the listing."""
DIGEST_RULES = b"1"
"""Another number makes every run list again: changes with what objects a segment must have."""


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
    objects_seen_at: int = -1
    """ms; when the run began that listed its objects: this one, or that whose look was relied on.
    """
    objects_digest: str | None = None
    """Hex; of what its segments are, if every object of theirs was there and no other."""
    merged_digest: str = ""
    """Hex; of its merged segments (:func:`digest_of_merged`)."""
    judged_by: str = ""
    """:data:`spark.common.code.DIGEST` of who judged. For the next run; no report has it."""


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
    seen_at: int
    """ms; when these objects were listed."""
    digest: str


def judge_log(table: pa.Table, now_ms: int, bucket: Bucket | None) -> CoverageVerdict | None:
    """The verdict on one partition's packed observations; ``None`` without the log itself."""
    log_id = table["log_id"][0].as_py()
    if log_id == NO_LOG:
        must_be_understood(unpack(table)[0])
        return None
    prefix = place_of(table)
    # Where nobody lists, nobody relies on a digest either.
    place = (bucket.server, bucket.bucket, prefix) if bucket is not None else ()
    log = _taken_apart(*unpack(table), now_ms, place)
    if log is None:
        return None
    if bucket is not None and log.seen_at < 0:
        log = replace(log, objects=bucket.listed(log_id, prefix), seen_at=now_ms)
    found = cover(
        log.start, log.boundary, log.segments, log.objects, log.lineage_epochs, log.lineage_starts
    )
    end = max(log.start, log.boundary)
    complete = not len(found.gap_starts)
    verdict = CoverageVerdict(
        log_id,
        anomalies=log.segments.anomalies,
        merged_digest=digest_of_merged(log.merged),
        judged_by=code.DIGEST,
        complete=complete,
        wanted_start=log.start,
        wanted_end=end,
        covered_to=end if complete else int(found.gap_starts[0]),
        earliest_remote=found.earliest_remote,
        missing_offsets=int((found.gap_ends - found.gap_starts).sum()),
        gap_count=len(found.gap_starts),
        gaps=_gaps(log, found),
    )
    verdict = _with_merged(_with_segments(verdict, log, found, now_ms), log)
    whole = verdict.complete and not verdict.orphan_count and _is_whole(log, found)
    return replace(
        verdict, objects_seen_at=log.seen_at, objects_digest=log.digest if whole else None
    )


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


def _taken_apart(
    everything: Events, objects: Objects, now_ms: int, place: tuple[str, ...]
) -> _Log | None:
    """``place``: store, bucket and prefix. Its objects are those that were handed over; where none
    were and an earlier look may be relied on, what its segments must have. Else ``seen_at`` is -1:
    nobody has looked."""
    of_kind = everything.kind

    def rows(kind: int) -> Ints:
        return np.flatnonzero(of_kind == kind)

    itself = everything.take(rows(LOG))
    if not len(itself):
        return None
    segments = fold(everything.take(np.flatnonzero(of_kind < LOG)))
    merged, look = everything.take(rows(MERGED)), everything.take(rows(SEEN))
    digest = digest_of(segments, merged, place)
    seen_at = now_ms if len(objects) else -1
    if len(look) and not segments.anomalies and _id(look, 0).hex == digest:
        seen_at, objects = int(look.stamp[0]), what_must_be(segments.base, merged)
    return _Log(
        start=int(itself.start[0]),
        boundary=int(itself.end[0]),
        suffix_start=int(itself.size[0]),
        merge_frontier=int(itself.stamp[0]),
        lineage_epochs=itself.epochs.values,
        lineage_starts=itself.epoch_starts.values,
        segments=segments,
        merged=merged,
        objects=objects,
        seen_at=seen_at,
        digest=digest,
    )


def _id(events: Events, row: int) -> UUID:
    return UUID(int=int(events.id_high[row]) << 64 | int(events.id_low[row]))


def digest_of(segments: Segments, merged: Events, place: tuple[str, ...]) -> str:
    """Hex of 16 bytes: of everything that says which objects there must be, and in which
    ``place`` (store, bucket and prefix): a look into another one says nothing of it."""
    found = hashlib.blake2b(DIGEST_RULES, digest_size=16)
    found.update(repr(place).encode())
    for some in (segments.base, merged):
        _add(found, some)
    return found.hexdigest()


def digest_of_merged(merged: Events) -> str:
    """Hex of 16 bytes: of everything that is known of merged segments, in any order."""
    found = hashlib.blake2b(digest_size=16)
    _add(found, merged)
    return found.hexdigest()


def _add(found: hashlib.blake2b, some: Events) -> None:
    order = np.lexsort((some.id_low, some.id_high))
    found.update(len(order).to_bytes(8, "little"))
    for column in (
        some.id_high, some.id_low, some.start, some.end, some.size, some.state,
        some.txn_index_empty,
    ):  # fmt: skip
        found.update(column[order].tobytes())


NOTHING_MERGED = digest_of_merged(NO_EVENTS)


def what_must_be(base: Events, merged: Events) -> Objects:
    """The objects of finished segments, each whole."""
    some, others = base.take(_finished(base)), merged.take(np.flatnonzero(merged.state == 1))

    def both(name: str) -> Any:
        return np.concatenate((getattr(some, name), getattr(others, name)))

    every_kind = np.full(len(some) + len(others), OWN_BITS | TXN_INDEX_BIT, dtype=np.int64)
    return Objects(
        both("id_high"), both("id_low"), both("start"), both("size"), every_kind,
        np.zeros(len(every_kind), dtype=np.int64),
    )  # fmt: skip


def _finished(base: Events) -> Ints:
    return np.flatnonzero(base.state == FINISHED)


def _is_whole(log: _Log, found: Cover) -> bool:
    """Whether every finished segment, of any lineage, has its objects; merged ones too."""
    rows, base = _finished(log.segments.base), log.segments.base
    of_brokers = Found(found.found.log_bytes[rows], found.found.kinds[rows])
    bad = of_brokers.bad(base.size[rows], may_lack_txn_index(base)[rows]).any()
    merged = log.merged.take(np.flatnonzero(log.merged.state == 1))
    return not bad and not _of_merged(log, merged).bad(merged.size, _no_txn(merged)).any()


def _of_merged(log: _Log, merged: Events) -> Found:
    return Found.of(log.objects, merged.id_high, merged.id_low)


def _no_txn(merged: Events) -> Flags:
    """Only segments of transactional data need a transaction index, and the suffix has none."""
    return np.ones(len(merged), dtype=bool)


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
    lacks = may_lack_txn_index(events)
    return tuple(
        BadSegment(
            segment_name(events, int(row)),
            found.problem(int(row), int(events.size[row]), bool(lacks[row])),
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
    found = _of_merged(log, merged)
    bad = found.bad(merged.size, _no_txn(merged))
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
