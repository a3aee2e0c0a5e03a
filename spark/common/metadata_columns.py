"""Values of ``__remote_log_metadata`` decoded by columns.

Values of one layout (kind, leader epochs, bytes of custom metadata, tags; the topic's name before
it may have any length) lie one below the other as a table of bytes, so that a field of thousands is
read at once. A value that is not laid out exactly as known brokers write it goes to
:func:`tideline.kafka.remote_log_metadata.decode`, one by one: that decoder is the judge, and a
property test holds both to the same answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark.common.fold import PARTITION_DELETE, SEGMENT, UPDATE, Flags, Ints
from spark.common.metadata_records import MetadataRecord, decoded
from spark.common.rows import arrow_schema, to_batch

Bytes = npt.NDArray[np.uint8]
Structs = npt.NDArray[np.void]
_FRAME, _VERSION = 1, 0
_LOG = [("topic_id", "V16"), ("partition", ">i4"), ("tag_0", "u1")]
_OF_SEGMENT = [("segment_id", "V16"), ("tag_1", "u1")]
_RANGE = [("start", ">i8"), ("end", ">i8"), ("broker", ">i4"), ("newest", ">i8"), ("stamp", ">i8")]
_EPOCH = [("epoch", ">i4"), ("start", ">i8"), ("tag", "u1")]
_CHANGED = [("broker", ">i4"), ("stamp", ">i8")]
_TOPIC_AT_LEAST = 21
"""Bytes of :data:`_LOG`."""
_COUNT_AT, _CUSTOM_OF_UPDATE_AT = 74, 50
_LAST_STATE = {SEGMENT: 3, UPDATE: 3, PARTITION_DELETE: 2}
_MANY = 0x7F
"""A length or count from here on takes two bytes: such values are read one by one."""
_TXN_INDEX_TAG = (1, 0, 1)
"""One tagged field, of number 0, of one byte."""


@dataclass(frozen=True, slots=True)
class _Values:
    """Values end to end, with zeros behind the last one."""

    buffer: Bytes
    starts: Ints
    lengths: Ints

    @classmethod
    def of(cls, values: Sequence[bytes]) -> _Values:
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        starts = np.cumsum(lengths) - lengths
        return cls(np.frombuffer(b"".join(values) + bytes(_PADDING), np.uint8), starts, lengths)

    def byte(self, at: Ints) -> Ints:
        """One byte of each; past the end it is another value's, and no length fits then."""
        found: Ints = self.buffer[np.minimum(at, len(self.buffer) - 1)].astype(np.int64)
        return found

    def rows(self, at: Ints, width: int) -> Bytes:
        """``width`` bytes of each, as rows."""
        windows = np.lib.stride_tricks.sliding_window_view(self.buffer, width)
        found: Bytes = windows[at]
        return found


_PADDING = 64


@dataclass(frozen=True, slots=True)
class _Heads:
    """What stands before the fields of each value, and whether it is as it should be."""

    kind: Ints
    body: Ints
    """Where the topic id begins."""
    tail: Ints
    """Bytes from there on."""
    regular: Flags

    @classmethod
    def of(cls, values: _Values) -> _Heads:
        at = values.starts
        frame, kind, version, first, second = (values.byte(at + n) for n in range(5))
        two = first > _MANY
        name = np.where(two, (first & _MANY) | (second << 7), first) - 1
        name_at = at + 4 + two
        head = 4 + two + name
        regular = (
            (frame == _FRAME) & (version == _VERSION) & (kind <= PARTITION_DELETE)
            & (name > 0) & ~(two & (second > _MANY))
            & (values.lengths - head >= _TOPIC_AT_LEAST)
        )  # fmt: skip
        rows = np.flatnonzero(regular)
        if len(rows):
            # Names of topics are ASCII; what is not is the judge's to read.
            cuts = np.stack((name_at[rows], name_at[rows] + name[rows]), axis=1).ravel()
            regular[rows] = np.bitwise_or.reduceat(values.buffer, cuts)[::2] <= _MANY
        return cls(kind, at + head, values.lengths - head, regular)


def columns_of(
    place: int,
    offsets: Sequence[int],
    values: Sequence[bytes | None],
    topics: frozenset[bytes] | None = None,
) -> pa.RecordBatch:
    """Records of one metadata partition, ascending, as rows of :class:`MetadataRecord`.

    ``topics``: ids (16 bytes) of those that are wanted; records of others are dropped before they
    are decoded. ``None``: all of them. Values of ``None`` say nothing; what cannot be read, or is
    of no known kind, stays, as :func:`spark.common.metadata_records.decoded` tells it.
    """
    there = [n for n, value in enumerate(values) if value is not None]
    found = [value for value in values if value is not None]
    positions = np.fromiter(offsets, np.int64, len(offsets))[there]
    columns = _Columns(len(found))
    if not found:
        return columns.batch(place, positions, np.zeros(0, dtype=np.int64))
    packed = _Values.of(found)
    heads = _Heads.of(packed)
    odd, foreign = ~heads.regular, np.zeros(len(found), dtype=bool)
    rows = np.flatnonzero(heads.regular)
    if topics is not None and len(rows):
        foreign[rows] = ~_is_one_of(packed.rows(heads.body[rows], 16), topics)
        rows = rows[~foreign[rows]]
    for group, layout in _layouts(packed, heads, rows):
        if layout is None:
            odd[group] = True
        else:
            table = packed.rows(heads.body[group], layout.dtype.itemsize).view(layout.dtype)[:, 0]
            good = layout.fits(table)
            odd[group[~good]] = True
            columns.fill(group[good], table[good], layout)
    batch = columns.batch(place, positions, np.flatnonzero(~odd & ~foreign))
    if not odd.any():
        return batch
    judged = [
        record
        for row in np.flatnonzero(odd)
        if (record := decoded(place, int(positions[row]), found[row], topics)) is not None
    ]
    together = pa.concat_batches([batch, to_batch(MetadataRecord, judged)])
    return together.take(pc.sort_indices(together["record_offset"]))


def _is_one_of(ids: Bytes, topics: frozenset[bytes]) -> Flags:
    array = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(ids), [None, pa.py_buffer(ids.tobytes())]
    )
    wanted = pa.array(sorted(topics), pa.binary(16))
    found: Flags = pc.is_in(array, value_set=wanted).to_numpy(zero_copy_only=False)
    return found


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where each field of a value of this shape lies, from its topic id on."""

    kind: int
    epochs: int
    custom: int
    """The byte that says how long the custom metadata is: 0 none, else one more than its bytes."""
    has_txn_tag: bool
    dtype: np.dtype[np.void]

    def fits(self, table: Structs) -> Flags:
        """Which rows have in each place that is no value what a known broker writes there."""
        good: Flags = table["tag_0"] == 0
        good &= (table["state"] >= 0) & (table["state"] <= _LAST_STATE[self.kind])
        if self.kind != PARTITION_DELETE:
            good &= table["tag_1"] == 0
        if self.kind == SEGMENT and self.epochs:
            good &= (table["epochs"]["tag"] == 0).all(axis=1)
            epochs = table["epochs"]["epoch"]
            good &= (epochs[:, 1:] >= epochs[:, :-1]).all(axis=1)
        if not self.has_txn_tag:
            good &= table["tags"] == 0
            return good
        for n, byte in enumerate(_TXN_INDEX_TAG):
            good &= table["tags"][:, n] == byte
        return good


def _layouts(values: _Values, heads: _Heads, rows: Ints) -> list[tuple[Ints, _Layout | None]]:
    """``rows`` by their layout; without one where there is none of that length."""
    kind, body, tail = heads.kind[rows], heads.body[rows], heads.tail[rows]
    count = np.where(kind == SEGMENT, values.byte(body + _COUNT_AT), 1)
    epochs = count - 1
    custom_at = np.where(kind == SEGMENT, 79 + 13 * epochs, _CUSTOM_OF_UPDATE_AT)
    custom = np.where(kind == PARTITION_DELETE, 0, values.byte(body + custom_at))
    key = ((kind * 256 + count) * 256 + custom) * (1 << 24) + np.minimum(tail, (1 << 24) - 1)
    order = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.concatenate(([True], np.diff(key[order]) != 0))[: len(key)])
    return [
        (
            rows[some],
            _layout(int(kind[some[0]]), int(count[some[0]]), int(custom[some[0]]),
                    int(tail[some[0]])),
        )
        for some in np.split(order, begins[1:])
        if len(some)
    ]  # fmt: skip


@lru_cache(maxsize=4096)
def _layout(kind: int, count: int, custom: int, length: int) -> _Layout | None:
    if not 1 <= count <= _MANY or custom > _MANY:
        return None
    notes = [("custom", f"V{custom - 1}")] if custom > 1 else []
    extra = [("custom_length", "u1"), *notes, ("state", "i1")]
    fields: list[Any] = [*_LOG]
    if kind == PARTITION_DELETE:
        fields += [*_CHANGED, ("state", "i1")]
    elif kind == UPDATE:
        fields += [*_OF_SEGMENT, *_CHANGED, *extra]
    else:
        of_epochs = ("epochs", np.dtype(_EPOCH), (count - 1,))
        fields += [*_OF_SEGMENT, *_RANGE, ("count", "u1"), of_epochs, ("size", ">i4"), *extra]
    for has_txn_tag in (False, True) if kind == SEGMENT else (False,):
        tags = ("tags", "u1", (4,)) if has_txn_tag else ("tags", "u1")
        dtype = np.dtype([*fields, tags])
        if dtype.itemsize == length:
            return _Layout(kind, count - 1, custom, has_txn_tag, dtype)
    return None


class _Columns:
    """The fields of values by row; -1 stands for one that the value's kind does not have."""

    _INTS = ("kind", "partition", "start", "end", "size", "state", "newest", "stamp")

    def __init__(self, rows: int) -> None:
        self._ints = {name: np.zeros(rows, dtype=np.int64) for name in self._INTS}
        self._topic_id, self._segment_id = (np.zeros((rows, 16), np.uint8) for _ in range(2))
        self._no_txn_index = np.zeros(rows, dtype=bool)
        self._epochs: list[tuple[Ints, Structs]] = []

    def fill(self, rows: Ints, table: Structs, layout: _Layout) -> None:
        self._ints["kind"][rows] = layout.kind
        names = set(layout.dtype.names or ())
        for name in ("partition", "start", "end", "size", "state", "newest", "stamp"):
            if name in names:
                self._ints[name][rows] = table[name]
        self._topic_id[rows] = _as_bytes(table["topic_id"])
        if layout.kind != PARTITION_DELETE:
            self._segment_id[rows] = _as_bytes(table["segment_id"])
        if layout.has_txn_tag:
            self._no_txn_index[rows] = table["tags"][:, 3] != 0
        if layout.kind == SEGMENT and layout.epochs:
            self._epochs.append((rows, table["epochs"]))

    def batch(self, place: int, positions: Ints, rows: Ints) -> pa.RecordBatch:
        """``rows`` as rows of :class:`MetadataRecord`."""
        kind = self._ints["kind"][rows]
        is_segment = kind == SEGMENT
        no_segment, no_id = ~is_segment, kind == PARTITION_DELETE
        epochs, epoch_starts = self._lists(rows, no_segment)

        def ints(name: str, missing: Flags | None = None) -> pa.Array:
            return pa.array(self._ints[name][rows], pa.int64(), mask=missing)

        columns = {
            "metadata_partition": pa.array(np.full(len(rows), place, dtype=np.int64)),
            "record_offset": pa.array(positions[rows]),
            "kind": ints("kind"),
            "topic_id": _ids(self._topic_id[rows], None),
            "partition": ints("partition"),
            "segment_id": _ids(self._segment_id[rows], no_id),
            "start_offset": ints("start", no_segment),
            "end_offset": ints("end", no_segment),
            "size_bytes": ints("size", no_segment),
            "state": ints("state"),
            "txn_index_empty": pa.array(self._no_txn_index[rows], mask=no_segment),
            "epochs": epochs,
            "epoch_starts": epoch_starts,
            "max_timestamp": ints("newest", no_segment),
            "event_timestamp": ints("stamp"),
        }
        return pa.RecordBatch.from_pydict(columns, schema=arrow_schema(MetadataRecord))

    def _lists(self, rows: Ints, missing: Flags) -> tuple[pa.Array, pa.Array]:
        lengths = np.zeros(len(self._topic_id), dtype=np.int64)
        for some, table in self._epochs:
            lengths[some] = table.shape[1]
        kept = lengths[rows]
        ends = np.cumsum(kept)
        begins = np.zeros(len(lengths), dtype=np.int64)
        begins[rows] = ends - kept
        numbers, starts = (np.zeros(int(kept.sum()), dtype=np.int64) for _ in range(2))
        for some, table in self._epochs:
            at = begins[some][:, None] + np.arange(table.shape[1])
            numbers[at], starts[at] = table["epoch"], table["start"]
        offsets = np.concatenate(([0], ends)).astype(np.int32)
        mask = pa.array(missing) if len(rows) else None
        lists = (
            pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), mask=mask)
            for values in (numbers, starts)
        )
        first, second = lists
        return first, second


def _as_bytes(ids: Structs) -> Bytes:
    return np.frombuffer(ids.tobytes(), np.uint8).reshape(-1, 16)


def _ids(ids: Bytes, missing: Flags | None) -> pa.Array:
    """Rows of 16 bytes as values."""
    nulls, count = None, 0
    if missing is not None and missing.any():
        nulls = pa.array(~missing).buffers()[1]
        count = int(missing.sum())
    array = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(ids), [nulls, pa.py_buffer(ids.tobytes())], count
    )
    return array.cast(pa.binary())
