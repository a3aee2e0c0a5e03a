"""Everything that was observed of a partition, brought together by one shuffle.

Each row of the inputs becomes a fixed-size record, and a task's records of one partition travel as
one binary value: the shuffle moves a few rows per partition instead of millions, and no more than
one partition is unpacked at a time. What a field means depends on ``kind``:

| field | metadata record (0, 1, 2) | :data:`LOG` | :data:`MERGED` | :data:`OBJECT` |
| --- | --- | --- | --- | --- |
| place, position | its partition and offset | | | |
| first, last | offsets (inclusive) | log start, B0 | offsets (inclusive) | start offset |
| size | bytes of the log | suffix start | bytes of the log | bytes of .log, -1: none |
| state | the segment's | | 1: finished | bit mask of the other objects |
| flag | 1: no transaction index | | | |
| stamp | event time (ms) | merge frontier | | last modified (ms) |
| epochs, epoch_starts | the segment's | the log's lineage | | |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark.logic.remote_log import PARTITION_DELETE, SEGMENT, UPDATE, Events, Ints, Ragged
from tideline.domain.ids import topic_id_to_base64

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LOG, MERGED, OBJECT = 10, 11, 12
"""Kinds beside the record kinds of the metadata topic."""
NO_LOG = -1
"""``log_id`` of records that cannot be decoded: they belong to no partition."""
FINISHED_MERGE = "COPY_SEGMENT_FINISHED"

NUMBERS = {
    "kind": "<i1",
    "flag": "<i1",
    "state": "<i4",
    "place": "<i4",
    "position": "<i8",
    "first": "<i8",
    "last": "<i8",
    "size": "<i8",
    "stamp": "<i8",
}
RECORD = np.dtype([*NUMBERS.items(), ("id_high", "<u8"), ("id_low", "<u8"), ("epoch_count", "<i4")])
EPOCH = np.dtype([("epoch", "<i4"), ("start", "<i8")])
PACKED = "log_id bigint, records binary, epochs binary"
PACKED_ARROW = pa.schema(
    [("log_id", pa.int64()), ("records", pa.binary()), ("epochs", pa.binary())]
)


def observations(
    logs: DataFrame, events: DataFrame, merged: DataFrame, objects: DataFrame
) -> DataFrame:
    """One packed frame of all of them; columns: :data:`PACKED`.

    ``logs``: log_id, topic_id, partition, log_start, boundary, suffix_start, merge_frontier,
    epochs, epoch_starts; only their partitions are kept. ``events``, ``merged``, ``objects``: as
    :mod:`spark.sources` makes them.
    """
    from pyspark.sql import functions as F

    keys = F.broadcast(logs.select("log_id", "topic_id", "partition"))
    known = events.join(keys, ["topic_id", "partition"], "left").where(
        F.col("log_id").isNotNull() | ~F.col("kind").isin(SEGMENT, UPDATE, PARTITION_DELETE)
    )
    of_events = _packed(
        known,
        log_id=F.coalesce(F.col("log_id"), F.lit(NO_LOG)),
        kind=F.col("kind"),
        flag=F.col("txn_index_empty").cast("tinyint"),
        state=F.col("state"),
        place=F.col("metadata_partition"),
        position=F.col("record_offset"),
        segment_id=F.col("segment_id"),
        first=F.col("start_offset"),
        last=F.col("end_offset"),
        size=F.col("size_bytes"),
        stamp=F.col("event_timestamp"),
        epochs=F.col("epochs"),
        epoch_starts=F.col("epoch_starts"),
    )
    of_logs = _packed(
        logs,
        log_id=F.col("log_id"),
        kind=F.lit(LOG).cast("tinyint"),
        first=F.col("log_start"),
        last=F.col("boundary"),
        size=F.col("suffix_start"),
        stamp=F.col("merge_frontier"),
        epochs=F.col("epochs"),
        epoch_starts=F.col("epoch_starts"),
    )
    of_merged = _packed(
        merged.join(keys, "log_id", "left_semi"),
        log_id=F.col("log_id"),
        kind=F.lit(MERGED).cast("tinyint"),
        segment_id=F.col("segment_id"),
        first=F.col("base_offset"),
        last=F.col("last_offset"),
        size=F.col("size_bytes"),
        state=(F.col("state") == FINISHED_MERGE).cast("int"),
    )
    of_objects = _packed(
        objects,
        log_id=F.col("log_id"),
        kind=F.lit(OBJECT).cast("tinyint"),
        segment_id=F.col("segment_id"),
        first=F.col("start_offset"),
        size=F.col("log_bytes"),
        state=F.col("kinds"),
        stamp=F.col("last_modified"),
    )
    return of_events.unionAll(of_logs).unionAll(of_merged).unionAll(of_objects)


def _packed(frame: DataFrame, **columns: Column) -> DataFrame:
    def pack_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield pack(batch)

    chosen = frame.select(*(column.alias(name) for name, column in columns.items()))
    return chosen.mapInArrow(pack_all, PACKED)


def pack(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``log_id`` and fields of records, one row each, as one row per log. Rows keep their order;
    a field that has no column, or no value, is -1 (ids: 0; epochs: none)."""
    log = _numbers(batch["log_id"])
    records = np.zeros(batch.num_rows, dtype=RECORD)
    names = batch.schema.names
    for name in NUMBERS:
        records[name] = _numbers(batch[name]) if name in names else -1
    if "segment_id" in names:
        records["id_high"], records["id_low"] = id_halves(batch["segment_id"])
    if "epochs" in names:
        epochs, starts = _ragged(batch["epochs"]), _ragged(batch["epoch_starts"])
    else:
        epochs = starts = Ragged(np.zeros(0, np.int64), np.zeros(batch.num_rows + 1, np.int64))
    records["epoch_count"] = epochs.offsets[1:] - epochs.offsets[:-1]
    order = np.argsort(log, kind="stable")
    log, records, epochs, starts = (
        log[order],
        records[order],
        epochs.take(order),
        starts.take(order),
    )
    entries = np.empty(len(epochs.values), dtype=EPOCH)
    entries["epoch"], entries["start"] = epochs.values, starts.values
    begins = np.flatnonzero(np.concatenate(([True], log[1:] != log[:-1])))
    ends = np.concatenate((begins[1:], [len(log)]))
    raw, raw_epochs = memoryview(records.tobytes()), memoryview(entries.tobytes())
    return pa.RecordBatch.from_pydict(
        {
            "log_id": log[begins],
            "records": _pieces(raw, begins * RECORD.itemsize, ends * RECORD.itemsize),
            "epochs": _pieces(
                raw_epochs,
                epochs.offsets[begins] * EPOCH.itemsize,
                epochs.offsets[ends] * EPOCH.itemsize,
            ),
        },
        schema=PACKED_ARROW,
    )


def _pieces(raw: memoryview, starts: Ints, ends: Ints) -> pa.Array:
    offsets = np.concatenate((starts, ends[-1:])).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(raw)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(starts), buffers)


def unpack(table: pa.Table) -> Events:
    """Every record of ``table``, in its order."""
    raw = b"".join(table["records"].to_pylist())
    records = np.frombuffer(raw, dtype=RECORD)
    entries = np.frombuffer(b"".join(table["epochs"].to_pylist()), dtype=EPOCH)
    offsets = np.concatenate(([0], np.cumsum(records["epoch_count"], dtype=np.int64)))

    def number(name: str) -> Ints:
        return records[name].astype(np.int64)

    return Events(
        place=number("place"),
        position=number("position"),
        kind=number("kind"),
        id_high=records["id_high"].astype(np.uint64),
        id_low=records["id_low"].astype(np.uint64),
        start=number("first"),
        end=number("last"),
        size=number("size"),
        state=number("state"),
        txn_index_empty=records["flag"] == 1,
        stamp=number("stamp"),
        epochs=Ragged(entries["epoch"].astype(np.int64), offsets),
        epoch_starts=Ragged(entries["start"].astype(np.int64), offsets),
    )


def id_halves(array: pa.Array) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """16-byte ids as their halves; a missing one is zero."""
    fixed = array.fill_null(bytes(16)).cast(pa.binary(16))
    raw = np.frombuffer(fixed.buffers()[1] or b"", dtype=">u8")
    halves = raw[2 * fixed.offset : 2 * (fixed.offset + len(fixed))].astype(np.uint64)
    return halves[::2], halves[1::2]


def _numbers(array: pa.Array) -> Ints:
    filled = array.cast(pa.int64())
    filled = filled.fill_null(-1) if filled.null_count else filled
    found: Ints = filled.to_numpy(zero_copy_only=False)
    return found


def _ragged(array: pa.Array) -> Ragged:
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return Ragged(array.flatten().cast(pa.int64()).to_numpy(zero_copy_only=False), offsets)


def segment_name(events: Events, row: int) -> str:
    """``<20 digits of the start offset>-<segment id>``: the stem of the segment's object keys."""
    return stem(int(events.start[row]), int(events.id_high[row]), int(events.id_low[row]))


def stem(start: int, high: int, low: int) -> str:
    """As :func:`segment_name`, from its parts."""
    return f"{start:020d}-{topic_id_to_base64(UUID(int=high << 64 | low))}"
