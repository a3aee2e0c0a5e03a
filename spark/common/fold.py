"""Remote log metadata of one partition, folded and held against its lineage, with numpy.

The same fold as :class:`tideline.domain.remote_log.RemoteLogIndex`, for many segments at once: a
run of records of one segment that only goes forward is judged without a loop, and the rest (a
state that goes back, a segment that is registered again after its deletion) record by record.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from tideline.domain.coverage import FOREVER
from tideline.domain.remote_log import LEGAL_TRANSITIONS, PartitionDeleteState, SegmentState

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.uint64]
"""Halves of segment ids."""
SEGMENT, UPDATE, PARTITION_DELETE = 0, 1, 2
FOLDED = 9
"""No record of Kafka's: an earlier fold, up to ``position``, has counted ``size`` anomalies."""
DELETED = int(SegmentState.DELETE_SEGMENT_FINISHED)
PARTITION_DELETED = int(PartitionDeleteState.DELETE_PARTITION_FINISHED)


@dataclass(frozen=True, slots=True)
class Ragged:
    """Lists of integers end to end: list ``i`` is ``values[offsets[i]:offsets[i + 1]]``."""

    values: Ints
    offsets: Ints

    def where(self, rows: Ints) -> tuple[Ints, Ints]:
        """Where the values of the lists of ``rows`` lie, and the offsets of those lists then."""
        lengths = (self.offsets[1:] - self.offsets[:-1])[rows]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        return np.repeat(self.offsets[:-1][rows], lengths) + within, offsets


@dataclass(frozen=True, slots=True)
class Events:
    """Records of one partition, by column and in any order. Ids are two unsigned halves."""

    place: Ints
    """Partition of the metadata topic."""
    position: Ints
    kind: Ints
    id_high: Ids
    id_low: Ids
    start: Ints
    end: Ints
    size: Ints
    state: Ints
    txn_index_empty: Flags
    stamp: Ints
    newest: Ints
    epochs: Ragged
    """The leader epochs of each segment, and beside them where each begins: lists of equal lengths.
    """
    epoch_starts: Ragged

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: Ints) -> Events:
        """Copies of ``rows``, in that order."""
        if not len(rows):
            return NO_EVENTS
        at, offsets = self.epochs.where(rows)
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return Events(
            **columns,
            epochs=Ragged(self.epochs.values[at], offsets),
            epoch_starts=Ragged(self.epoch_starts.values[at], offsets),
        )


_COLUMNS = tuple(field.name for field in fields(Events))[:-2]
_NO_LISTS = Ragged(np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64))
_NOTHING: dict[str, Any] = {name: np.zeros(0, dtype=np.int64) for name in _COLUMNS} | {
    "id_high": np.zeros(0, dtype=np.uint64),
    "id_low": np.zeros(0, dtype=np.uint64),
    "txn_index_empty": np.zeros(0, dtype=bool),
}
NO_EVENTS = Events(**_NOTHING, epochs=_NO_LISTS, epoch_starts=_NO_LISTS)


@dataclass(frozen=True, slots=True)
class Segments:
    """What the fold left: present segments, in the order in which they were registered."""

    base: Events
    """Of each the record that registered it; ``state`` and ``stamp`` are those of the fold."""
    anomalies: int
    """Records that no legal history contains, since the partition's last deletion."""

    def __len__(self) -> int:
        return len(self.base)


def fold(events: Events) -> Segments:
    """Apply the records in their order. Among them may be what an earlier fold has left
    (:mod:`spark.common.kept_fold`)."""
    order = np.lexsort((events.position, events.place))
    gone = np.flatnonzero(
        (events.kind[order] == PARTITION_DELETE) & (events.state[order] == PARTITION_DELETED)
    )
    if len(gone):
        order = order[gone[-1] + 1 :]
    before = events.kind[order] == FOLDED
    counted = int(events.size[order[before]].sum())
    order = order[~before & (events.kind[order] != PARTITION_DELETE)]
    order = order[by_id(events.id_high[order], events.id_low[order])]
    if not len(order):
        return Segments(events.take(order), counted)
    kind, state, stamp = events.kind[order], events.state[order], events.stamp[order]
    high, low = events.id_high[order], events.id_low[order]
    begins = np.concatenate(([True], (high[1:] != high[:-1]) | (low[1:] != low[:-1])))
    first = np.flatnonzero(begins)
    last = np.concatenate((first[1:], [len(order)])) - 1
    changes = np.concatenate(([True], state[1:] != state[:-1])) | begins
    backwards = np.concatenate(([False], state[1:] < state[:-1])) & ~begins
    early_end = (state == DELETED) & (np.arange(len(order)) != last[np.cumsum(begins) - 1])
    odd = np.logical_or.reduceat(backwards | early_end, first) | (kind[first] != SEGMENT)
    run = np.cumsum(begins) - 1
    illegal = changes & ~begins & ~_legal(state) & ~odd[run]
    anomalies = counted + int(illegal.sum())

    base, final = first.copy(), state[last]
    changed_at = np.maximum.reduceat(np.where(changes, np.arange(len(order)), 0), first)
    when = stamp[changed_at]
    present = (final != DELETED) | (first == last)
    for number in np.flatnonzero(odd):
        rows = range(first[number], last[number] + 1)
        kept, at, ts, bad = _fold_run(kind, state, stamp, rows)
        anomalies += bad
        present[number] = kept >= 0
        if kept >= 0:
            base[number], final[number], when[number] = kept, at, ts
    rows_kept = order[base[present]]
    arrival = np.lexsort((events.position[rows_kept], events.place[rows_kept]))
    kept_events = events.take(rows_kept[arrival])
    kept_events.state[:] = final[present][arrival]
    kept_events.stamp[:] = when[present][arrival]
    return Segments(kept_events, anomalies)


def own_pieces(
    segments: Events, lineage_epochs: Ints, lineage_starts: Ints
) -> tuple[Ints, Ints, Ints]:
    """(segment, start, end) of the parts whose leader epoch is the log's own there, ends exclusive:
    :func:`tideline.domain.coverage.own_pieces`. Lineage ascending."""
    rows, epochs, starts, ends = _pieces(segments)
    if not len(rows) or not len(lineage_epochs):
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing, nothing
    at = np.clip(np.searchsorted(lineage_epochs, epochs), 0, len(lineage_epochs) - 1)
    lineage_ends = np.concatenate((lineage_starts[1:], [FOREVER]))
    starts, ends = np.maximum(starts, lineage_starts[at]), np.minimum(ends, lineage_ends[at])
    keep = (lineage_epochs[at] == epochs) & (starts < ends)
    return rows[keep], starts[keep], ends[keep]


def within_lineage(segments: Events, lineage_epochs: Ints, lineage_starts: Ints) -> Flags:
    """Of which segments every offset that the log still has is in an own piece: what is below the
    first entry of the lineage is no longer of the log. An empty lineage belongs to a log that
    never had a leader, so that nothing is within it
    (Kafka: ``RemoteLogManager.isRemoteSegmentWithinLeaderEpochs``)."""
    if not len(lineage_epochs):
        return np.zeros(len(segments), dtype=bool)
    missing = np.zeros(len(segments), dtype=np.int64)
    rows, _, starts, ends = _pieces(segments)
    np.add.at(missing, rows, np.maximum(ends - np.maximum(starts, lineage_starts[0]), 0))
    rows, starts, ends = own_pieces(segments, lineage_epochs, lineage_starts)
    np.subtract.at(missing, rows, ends - starts)
    found: Flags = missing == 0
    return found


def _pieces(segments: Events) -> tuple[Ints, Ints, Ints, Ints]:
    """(segment, leader epoch, start, end) of every leader epoch of every segment; an end at or
    below its start: none."""
    epochs, epoch_starts = segments.epochs, segments.epoch_starts
    rows = np.repeat(np.arange(len(segments)), epochs.offsets[1:] - epochs.offsets[:-1])
    starts = np.maximum(epoch_starts.values, segments.start[rows])
    is_last = np.concatenate((rows[1:] != rows[:-1], [True]))[: len(rows)]
    ends = np.where(is_last, segments.end[rows] + 1, np.concatenate((starts[1:], [0]))[: len(rows)])
    return rows, epochs.values, starts, ends


def by_id(high: Ids, low: Ids) -> Ints:
    """The order that puts equal ids side by side, and keeps their own order.

    One sort of plain numbers is many times faster than a sort of pairs. Each number has the upper
    bits of the id's lower half, and in the bits below the row that it came from. Ids are random:
    two that differ nearly always differ in those upper bits. Where they do not, pairs are sorted.
    """
    row_bits = np.uint64(max(1, len(low) - 1).bit_length())
    row_mask = (np.uint64(1) << row_bits) - np.uint64(1)
    numbers = (low & ~row_mask) | np.arange(len(low), dtype=np.uint64)
    numbers.sort()
    order: Ints = (numbers & row_mask).astype(np.int64)
    looks_alike = (numbers[1:] & ~row_mask) == (numbers[:-1] & ~row_mask)
    sorted_high, sorted_low = high[order], low[order]
    is_alike = (sorted_low[1:] == sorted_low[:-1]) & (sorted_high[1:] == sorted_high[:-1])
    if (looks_alike & ~is_alike).any():
        return np.lexsort((low, high))
    return order


_MAY_FOLLOW = np.eye(4, dtype=bool)
for _before, _after in LEGAL_TRANSITIONS:
    _MAY_FOLLOW[_before, _after] = True


def _legal(state: Ints) -> Flags:
    """Whether each state may follow the one before it."""
    return np.concatenate(([True], _MAY_FOLLOW[state[:-1], state[1:]]))


def _fold_run(kind: Ints, state: Ints, stamp: Ints, rows: range) -> tuple[int, int, int, int]:
    """One segment's records: (row that registered it or -1, state, stamp, anomalies)."""
    base, now, when, anomalies = -1, 0, 0, 0
    for row in rows:
        state_now = int(state[row])
        if base < 0:
            if kind[row] == SEGMENT:
                base, now, when = row, state_now, int(stamp[row])
            elif state_now != DELETED:
                anomalies += 1
            continue
        if state_now == now:
            continue
        if (now, state_now) not in LEGAL_TRANSITIONS:
            anomalies += 1
            if state_now < now:
                continue
        if state_now == DELETED:
            base = -1
        else:
            now, when = state_now, int(stamp[row])
    return base, now, when, anomalies
