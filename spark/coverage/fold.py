"""Remote log metadata of one partition, folded with numpy.

The same fold as :class:`tideline.domain.remote_log.RemoteLogIndex`, for many segments at once: a
run of records of one segment that only goes forward is judged without a loop, and the rest (a
state that goes back, a segment that is registered again after its deletion) record by record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tideline.domain.remote_log import LEGAL_TRANSITIONS, PartitionDeleteState, SegmentState

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.uint64]
"""Halves of segment ids."""
SEGMENT, UPDATE, PARTITION_DELETE = 0, 1, 2
DELETED = int(SegmentState.DELETE_SEGMENT_FINISHED)
PARTITION_DELETED = int(PartitionDeleteState.DELETE_PARTITION_FINISHED)


@dataclass(frozen=True, slots=True)
class Ragged:
    """Lists of integers end to end: list ``i`` is ``values[offsets[i]:offsets[i + 1]]``."""

    values: Ints
    offsets: Ints

    def take(self, rows: Ints) -> Ragged:
        """The lists of ``rows``, in that order."""
        lengths = (self.offsets[1:] - self.offsets[:-1])[rows]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        return Ragged(self.values[np.repeat(self.offsets[:-1][rows], lengths) + within], offsets)


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
    epochs: Ragged
    epoch_starts: Ragged

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: Ints) -> Events:
        """These rows, in this order."""
        return Events(
            self.place[rows],
            self.position[rows],
            self.kind[rows],
            self.id_high[rows],
            self.id_low[rows],
            self.start[rows],
            self.end[rows],
            self.size[rows],
            self.state[rows],
            self.txn_index_empty[rows],
            self.stamp[rows],
            self.epochs.take(rows),
            self.epoch_starts.take(rows),
        )


@dataclass(frozen=True, slots=True)
class Segments:
    """What the fold left: present segments, in the order in which they were registered."""

    base: Events
    """Of each the record that registered it; ``state`` and ``stamp`` are those of the fold."""
    anomalies: int
    """Records that no legal history contains, since the partition's last deletion."""

    def __len__(self) -> int:
        return len(self.base)


def fold(events: Events, malformed: int = 0) -> Segments:
    """Apply the records in their order. ``malformed``: records that could not be decoded."""
    order = np.lexsort((events.position, events.place))
    gone = np.flatnonzero(
        (events.kind[order] == PARTITION_DELETE) & (events.state[order] == PARTITION_DELETED)
    )
    if len(gone):
        order = order[gone[-1] + 1 :]
    order = order[events.kind[order] != PARTITION_DELETE]
    order = order[by_id(events.id_high[order], events.id_low[order])]
    if not len(order):
        return Segments(events.take(order), malformed)
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
    anomalies = malformed + int(illegal.sum())

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


def by_id(high: Ids, low: Ids) -> Ints:
    """The order that puts equal ids side by side, and keeps their own order.

    Ids are random: nearly all of their low halves differ in the bits that remain when the row
    number takes the lowest, and plain numbers are sorted many times faster than pairs.
    """
    row_bits = np.uint64(max(1, len(low) - 1).bit_length())
    numbered = (low >> row_bits << row_bits) | np.arange(len(low), dtype=np.uint64)
    numbered.sort()
    order: Ints = (numbered & ((np.uint64(1) << row_bits) - np.uint64(1))).astype(np.int64)
    alike = (numbered[1:] >> row_bits) == (numbered[:-1] >> row_bits)
    same = (low[order][1:] == low[order][:-1]) & (high[order][1:] == high[order][:-1])
    if (alike & ~same).any():
        order = np.lexsort((low, high))
    return order


def _legal(state: Ints) -> Flags:
    """Whether each state may follow the one before it."""
    table = np.zeros((4, 4), dtype=bool)
    for before, after in LEGAL_TRANSITIONS:
        table[before, after] = True
    np.fill_diagonal(table, True)
    return np.concatenate(([True], table[state[:-1], state[1:]]))


def _fold_run(kind: Ints, state: Ints, stamp: Ints, rows: range) -> tuple[int, int, int, int]:
    """One segment's records: (row that registered it or -1, state, stamp, anomalies)."""
    base, now, when, anomalies = -1, 0, 0, 0
    for row in rows:
        told = int(state[row])
        if base < 0:
            if kind[row] == SEGMENT:
                base, now, when = row, told, int(stamp[row])
            elif told != DELETED:
                anomalies += 1
            continue
        if told == now:
            continue
        if (now, told) not in LEGAL_TRANSITIONS:
            anomalies += 1
            if told < now:
                continue
        if told == DELETED:
            base = -1
        else:
            now, when = told, int(stamp[row])
    return base, now, when, anomalies
