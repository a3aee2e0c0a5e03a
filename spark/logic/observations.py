"""Everything that was observed of a partition, brought together by one shuffle.

Each row of the inputs becomes a fixed-size record, and a task's records of one partition travel as
one binary value: the shuffle moves a few rows per partition instead of millions, and no more than
one partition is unpacked at a time. Sources may hand over packed rows, so that millions of records
never become rows of the JVM. What a field means depends on ``kind``:

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

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark.logic.remote_log import Events, Ints, Ragged
from tideline.domain.ids import topic_id_to_base64

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
PACKED_EVENTS = "topic_id binary, partition int, records binary, epochs binary"
UNKNOWN_PARTITION = -1
"""``partition`` of records that cannot be decoded."""
_BLOBS = [pa.field("records", pa.binary()), pa.field("epochs", pa.binary())]
PACKED_ARROW = pa.schema([pa.field("log_id", pa.int64()), *_BLOBS])
PACKED_EVENTS_ARROW = pa.schema(
    [pa.field("topic_id", pa.binary()), pa.field("partition", pa.int32()), *_BLOBS]
)
EVENT_FIELDS = {
    "metadata_partition": "place",
    "record_offset": "position",
    "start_offset": "first",
    "end_offset": "last",
    "size_bytes": "size",
    "txn_index_empty": "flag",
    "event_timestamp": "stamp",
}
OBJECT_FIELDS = {
    "start_offset": "first",
    "log_bytes": "size",
    "kinds": "state",
    "last_modified": "stamp",
}


def observations(
    logs: DataFrame, events: DataFrame, merged: DataFrame, objects: DataFrame
) -> DataFrame:
    """One packed frame of all of them; columns: :data:`PACKED`.

    ``logs``: log_id, topic_id, partition, log_start, boundary, suffix_start, merge_frontier,
    epochs, epoch_starts; only their partitions are kept. ``events``, ``merged``, ``objects``: as
    :mod:`spark.sources` makes them, in rows or packed already.
    """
    from pyspark.sql import functions as F

    keys = F.broadcast(logs.select("log_id", "topic_id", "partition"))
    of_events = (
        _packed(events, pack_events, PACKED_EVENTS)
        .join(keys, ["topic_id", "partition"], "left")
        .where(F.col("log_id").isNotNull() | (F.col("partition") == UNKNOWN_PARTITION))
        .select(F.coalesce("log_id", F.lit(NO_LOG)).alias("log_id"), "records", "epochs")
    )
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
    of_merged = merged.join(keys.select("log_id"), "log_id", "left_semi").select(
        "log_id",
        F.lit(MERGED).cast("tinyint").alias("kind"),
        "segment_id",
        F.col("base_offset").alias("first"),
        F.col("last_offset").alias("last"),
        F.col("size_bytes").alias("size"),
        (F.col("state") == FINISHED_MERGE).cast("int").alias("state"),
    )
    return (
        of_events.unionAll(_packed(of_logs, pack, PACKED))
        .unionAll(_packed(of_merged, pack, PACKED))
        .unionAll(_packed(objects, pack_objects, PACKED))
    )


def _packed(
    frame: DataFrame, packing: Callable[[pa.RecordBatch], pa.RecordBatch], schema: str
) -> DataFrame:
    if "records" in frame.columns:
        return frame

    def pack_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield packing(batch)

    return frame.mapInArrow(pack_all, schema)


def pack_events(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of :data:`spark.sources.remote_log.ARROW` as one row per partition."""
    high, low = id_halves(batch["topic_id"])
    partition = _numbers(batch["partition"])
    order = np.lexsort((partition, low, high))
    high, low, partition = high[order], low[order], partition[order]
    begins = _begins(high, low, partition)
    ids = np.stack((high[begins], low[begins]), axis=1).astype(">u8").tobytes()
    named = batch.rename_columns([EVENT_FIELDS.get(name, name) for name in batch.schema.names])
    keys = {
        "topic_id": [ids[at : at + 16] for at in range(0, len(ids), 16)],
        "partition": partition[begins],
    }
    return pa.RecordBatch.from_pydict(
        keys | _blobs(named, order, begins), schema=PACKED_EVENTS_ARROW
    )


def pack_objects(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of :data:`spark.sources.inventory.ARROW` as one row per log."""
    kind = pa.array(np.full(batch.num_rows, OBJECT, np.int8))
    named = batch.rename_columns([OBJECT_FIELDS.get(name, name) for name in batch.schema.names])
    return pack(named.append_column("kind", kind))


def pack(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``log_id`` and fields of records, one row each, as one row per log. Rows keep their order;
    a field that has no column, or no value, is -1 (ids: 0; epochs: none)."""
    log = _numbers(batch["log_id"])
    order = np.argsort(log, kind="stable")
    begins = _begins(log[order])
    keys = {"log_id": log[order][begins]}
    return pa.RecordBatch.from_pydict(keys | _blobs(batch, order, begins), schema=PACKED_ARROW)


def _begins(*keys: npt.NDArray[np.generic]) -> Ints:
    """Where a run of equal keys begins."""
    changes = np.zeros(len(keys[0]), dtype=bool)
    changes[:1] = True
    for key in keys:
        changes[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(changes)


def _blobs(batch: pa.RecordBatch, order: Ints, begins: Ints) -> dict[str, pa.Array]:
    """The rows in ``order`` as records, cut where ``begins`` says."""
    names = batch.schema.names
    records = np.zeros(batch.num_rows, dtype=RECORD)
    for name in NUMBERS:
        records[name] = _numbers(batch[name]) if name in names else -1
    if "segment_id" in names:
        records["id_high"], records["id_low"] = id_halves(batch["segment_id"])
    if "epochs" in names:
        epochs, starts = _ragged(batch["epochs"]), _ragged(batch["epoch_starts"])
    else:
        epochs = starts = Ragged(np.zeros(0, np.int64), np.zeros(batch.num_rows + 1, np.int64))
    records["epoch_count"] = epochs.offsets[1:] - epochs.offsets[:-1]
    records, epochs, starts = records[order], epochs.take(order), starts.take(order)
    entries = np.empty(len(epochs.values), dtype=EPOCH)
    entries["epoch"], entries["start"] = epochs.values, starts.values
    ends = np.concatenate((begins[1:], [len(order)]))
    at = epochs.offsets * EPOCH.itemsize
    raw, raw_epochs = memoryview(records.tobytes()), memoryview(entries.tobytes())
    return {
        "records": _pieces(raw, begins * RECORD.itemsize, ends * RECORD.itemsize),
        "epochs": _pieces(raw_epochs, at[begins], at[ends]),
    }


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
