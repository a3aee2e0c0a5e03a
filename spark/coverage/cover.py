"""The rules of :func:`tideline.domain.coverage.assess`, with numpy for many segments at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from spark.common.fold import Events, Flags, Ids, Ints, Segments, by_id, own_pieces
from spark.common.packing import KIND_BITS, Objects, kind_bits
from tideline.domain.coverage import AIVEN_KINDS, FOREVER, OWN_KINDS
from tideline.domain.remote_log import SegmentState

STARTED = int(SegmentState.COPY_SEGMENT_STARTED)
FINISHED = int(SegmentState.COPY_SEGMENT_FINISHED)
DELETING = int(SegmentState.DELETE_SEGMENT_STARTED)
OWN_BITS, AIVEN_BITS = kind_bits(OWN_KINDS), kind_bits(AIVEN_KINDS)
TXN_INDEX_BIT = KIND_BITS["txnindex"]


@dataclass(frozen=True, slots=True)
class Found:
    """For each of some segments, what the bucket has of it."""

    log_bytes: Ints
    kinds: Ints

    @classmethod
    def of(cls, objects: Objects, high: Ids, low: Ids) -> Found:
        rows = match(high, low, objects.id_high, objects.id_low)
        there = rows >= 0
        log_bytes = np.full(len(high), -1, dtype=np.int64)
        kinds = np.zeros(len(high), dtype=np.int64)
        log_bytes[there], kinds[there] = objects.log_bytes[rows[there]], objects.kinds[rows[there]]
        return cls(log_bytes, kinds)

    def bad(self, size: Ints, lacks_txn_index: Flags) -> Flags:
        """Which have no log, one of another size, or miss an object that they need.
        ``lacks_txn_index``: :func:`may_lack_txn_index`."""
        found: Flags = (self.log_bytes != size) | (self._missing(lacks_txn_index) != 0)
        return found

    def _missing(self, lacks_txn_index: Flags) -> Ints:
        packed = (self.kinds & AIVEN_BITS) != 0
        own = np.where(lacks_txn_index, OWN_BITS, OWN_BITS | TXN_INDEX_BIT)
        return np.where(packed, AIVEN_BITS, own) & ~self.kinds

    def problem(self, row: int, size: int, lacks_txn_index: bool) -> str:
        """Why ``row`` is bad, as :func:`tideline.domain.coverage.assess` says it."""
        if self.log_bytes[row] < 0:
            return "its log object is not in the bucket"
        if self.log_bytes[row] != size:
            return (
                f"its log object has {self.log_bytes[row]} bytes instead of {size}"
                " (compressed or encrypted?)"
            )
        missing = int(self._missing(np.full(len(self.kinds), lacks_txn_index))[row])
        kinds = sorted(kind for kind, bit in KIND_BITS.items() if missing & bit)
        return f"its {', '.join(kinds)} object is not in the bucket"


def may_lack_txn_index(segments: Events) -> Flags:
    """Those of a log that need no transaction index, by
    :func:`tideline.domain.coverage.txn_indexes_told_from`."""
    told = segments.txn_index_empty
    first = segments.start[told].min() if told.any() else FOREVER
    found: Flags = told | (segments.start < first)
    return found


def match(high: Ids, low: Ids, in_high: Ids, in_low: Ids) -> Ints:
    """Where each id is among the others (the first of equals), -1 if it is not."""
    if not len(in_high) or not len(high):
        return np.full(len(high), -1, dtype=np.int64)
    order = by_id(np.concatenate((in_high, high)), np.concatenate((in_low, low)))
    sorted_high = np.concatenate((in_high, high))[order]
    sorted_low = np.concatenate((in_low, low))[order]
    same = (sorted_high[1:] == sorted_high[:-1]) & (sorted_low[1:] == sorted_low[:-1])
    begins = np.concatenate(([True], ~same))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = order[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    found = place[len(in_high) :]
    return np.where(found < len(in_high), found, -1)


@dataclass(frozen=True, slots=True)
class Cover:
    """The fields of :class:`tideline.domain.coverage.Coverage`, segments as row numbers."""

    gap_starts: Ints
    gap_ends: Ints
    earliest_remote: int
    segments: int
    overlapping: int
    overshooting: int
    unfinished: Ints
    foreign: Ints
    broken: Ints
    found: Found
    order: Ints = field(repr=False)


def cover(
    wanted_start: int,
    boundary: int,
    segments: Segments,
    objects: Objects,
    lineage_epochs: Ints,
    lineage_starts: Ints,
) -> Cover:
    """Judge ``[wanted_start, boundary)``. Lineage ascending, as its partition's leader has it."""
    base = segments.base
    order = np.lexsort((base.end, base.start))
    ordered = base.take(order)
    found = Found.of(objects, ordered.id_high, ordered.id_low)
    rows, starts, ends = own_pieces(ordered, lineage_epochs, lineage_starts)
    finished = ordered.state == FINISHED
    mine = finished[rows]
    rows, starts, ends = rows[mine], starts[mine], ends[mine]
    valid = np.zeros(len(ordered), dtype=bool)
    valid[rows] = True
    broken = valid & found.bad(ordered.size, may_lack_txn_index(ordered))
    good = ~broken[rows]
    rows, starts, ends = rows[good], starts[good], ends[good]
    firsts = np.concatenate(([True], rows[1:] != rows[:-1])) if len(rows) else good
    end = max(wanted_start, boundary)
    clip_starts, clip_ends = np.maximum(starts, wanted_start), np.minimum(ends, end)
    inside = clip_starts < clip_ends
    pieces = rows[inside], clip_starts[inside], clip_ends[inside]
    gap_starts, gap_ends = gaps(wanted_start, end, pieces[1], pieces[2])
    return Cover(
        gap_starts=gap_starts,
        gap_ends=gap_ends,
        earliest_remote=int(starts[firsts].min()) if len(rows) else -1,
        segments=len(np.unique(pieces[0])),
        overlapping=_overlapping(*pieces),
        overshooting=int(
            (valid & ~broken & (ordered.start < boundary) & (ordered.end >= boundary)).sum()
        ),
        unfinished=order[ordered.state == STARTED],
        foreign=order[finished & ~valid],
        broken=order[broken],
        found=Found(*(_put_back(values, order) for values in (found.log_bytes, found.kinds))),
        order=order,
    )


def _put_back(values: Ints, order: Ints) -> Ints:
    unordered = np.empty_like(values)
    unordered[order] = values
    return unordered


def gaps(start: int, end: int, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Where ``[start, end)`` is not covered by the pieces: (starts, ends)."""
    order = np.lexsort((ends, starts))
    starts = np.concatenate((starts[order], [end]))
    reached = np.maximum.accumulate(np.concatenate(([start], ends[order])))
    open_ = starts > reached
    return reached[open_], starts[open_]


def _overlapping(rows: Ints, starts: Ints, ends: Ints) -> int:
    """Segments with a piece that shares an offset with a piece of a segment before them."""
    if not len(rows):
        return 0
    begins = np.concatenate(([True], rows[1:] != rows[:-1]))
    first = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    before = np.concatenate(([-1], np.maximum.accumulate(ends)))[first]
    highest = np.concatenate(([-1], np.maximum.accumulate(starts)))[first]
    overlaps = before > starts
    # A piece that begins at or after all before it overlaps exactly if one of them reaches it.
    for row in np.flatnonzero(overlaps & (highest > starts)):
        earlier = slice(0, first[row])
        overlaps[row] = bool(((starts[earlier] < ends[row]) & (ends[earlier] > starts[row])).any())
    return len(np.unique(rows[overlaps]))
