"""Observations of many partitions as fixed-size records, grouped by partition.

A task's records of one partition travel as one binary value per form, so that millions of records
never become rows of the JVM. What a field means depends on ``kind``, or on the form:

| field | metadata record (0, 1, 2) | :data:`LOG` | :data:`MERGED` | form :data:`LISTED` |
| --- | --- | --- | --- | --- |
| place, position | its partition and offset | | | |
| first, last | offsets (inclusive) | log start, B0 | offsets (inclusive) | start offset |
| size | bytes of the log | suffix start | bytes of the log | bytes of .log, -1: none |
| state | the segment's | | 1: finished | bit mask of the other objects |
| flag | 1: no transaction index | | | |
| stamp | event time (ms) | merge frontier | | last modified (ms) |
| newest | largest timestamp of its records (ms) | | | |
| epochs, epoch_starts | the segment's | the log's lineage | | |

:data:`spark.common.fold.FOLDED` has ``size`` anomalies; :data:`SEEN` a digest as its id, and when a
look was had in ``stamp`` (ms).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark.common.fold import PARTITION_DELETE, UPDATE, Events, Flags, Ids, Ints, Ragged
from spark.common.rows import arrow_schema, spark_schema
from tideline.domain.coverage import AIVEN_KINDS, OWN_KINDS
from tideline.domain.ids import topic_id_to_base64
from tideline.kafka.errors import MetadataNotUnderstood

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOG, MERGED, SEEN = 10, 11, 12
"""Kinds beside those of the fold."""
UNKNOWN_PARTITION = -1
"""``partition`` of records that cannot be decoded."""
NO_LOG = -1
"""``log_id`` of records that cannot be decoded: they belong to no partition."""

_ID = [("id_high", "<u8"), ("id_low", "<u8")]
_PLACE = [("kind", "<i1"), ("state", "<i4"), ("place", "<i4"), ("position", "<i8")]
_RANGE = [("first", "<i8"), ("last", "<i8"), ("size", "<i8")]
_TIMES = [("stamp", "<i8"), ("newest", "<i8")]
WHOLE = np.dtype([*_PLACE, *_RANGE, ("flag", "<i1"), *_TIMES, *_ID, ("epochs", "<i4")])
"""Every field; ``epochs`` counts the entries of :data:`EPOCH` that belong to it."""
CHANGE = np.dtype([*_PLACE, ("stamp", "<i8"), *_ID])
"""What a change of state says: half of all metadata records, in half of the bytes."""
LISTED = np.dtype([("first", "<i8"), ("size", "<i8"), ("state", "<i4"), ("stamp", "<i8"), *_ID])
"""An object group of the bucket."""
FORMS = (WHOLE, CHANGE, LISTED)
PLACE = len(FORMS)
"""A form without records: text in their place, where the log's objects lie."""
EPOCH = np.dtype([("epoch", "<i4"), ("start", "<i8")])
KIND_BITS = {kind: 1 << n for n, kind in enumerate((*sorted(OWN_KINDS), "txnindex"))}
KIND_BITS |= {kind: 64 << n for n, kind in enumerate(sorted(AIVEN_KINDS))}
"""A segment's objects beside its log, as a bit mask."""
EVENT_FIELDS = {
    "metadata_partition": "place",
    "record_offset": "position",
    "start_offset": "first",
    "end_offset": "last",
    "size_bytes": "size",
    "txn_index_empty": "flag",
    "event_timestamp": "stamp",
    "max_timestamp": "newest",
}
OBJECT_FIELDS = {
    "start_offset": "first",
    "log_bytes": "size",
    "kinds": "state",
    "last_modified": "stamp",
}


@dataclass(frozen=True, slots=True)
class Packed:
    """Records of one log that have one form."""

    log_id: int
    form: int
    """Index in :data:`FORMS`."""
    records: bytes
    epochs: bytes
    """Of :data:`EPOCH`, for all records one after the other."""


@dataclass(frozen=True, slots=True)
class PackedEvents:
    """As :class:`Packed`, while the log is not known by its number yet."""

    topic_id: UUID
    partition: int
    form: int
    records: bytes
    epochs: bytes


@dataclass(frozen=True, slots=True)
class Objects:
    """What the bucket has of each segment. ``log_bytes`` is -1 without a ``.log`` object."""

    id_high: Ids
    id_low: Ids
    start: Ints
    log_bytes: Ints
    kinds: Ints
    modified: Ints

    def __len__(self) -> int:
        return len(self.kinds)


def kind_bits(kinds: Iterable[str]) -> int:
    """A bit mask of suffixes; those of no segment count nothing."""
    return sum(KIND_BITS.get(kind, 0) for kind in set(kinds))


def pack_events(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of :class:`spark.common.metadata_records.MetadataRecord` as one row per partition and
    form."""
    named = _renamed(batch, EVENT_FIELDS)
    topic_id = batch["topic_id"].fill_null(bytes(16))
    partition = batch["partition"].fill_null(UNKNOWN_PARTITION)
    order, groups = _grouped(topic_id, partition)
    kind = _numbers(batch["kind"])[order]
    changes = (kind == UPDATE) | (kind == PARTITION_DELETE)
    parts = []
    for dtype, rows in ((WHOLE, ~changes), (CHANGE, changes)):
        firsts, blobs = _blobs(named, dtype, order[rows], groups[rows])
        parts.append(
            pa.RecordBatch.from_pydict(
                {"topic_id": topic_id.take(firsts), "partition": partition.take(firsts)} | blobs,
                schema=arrow_schema(PackedEvents),
            )
        )
    return pa.concat_batches(parts)


def pack_objects(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of :class:`spark.coverage.tasks.ListedSegment` as one row per log."""
    return _packed_by_log(_renamed(batch, OBJECT_FIELDS), LISTED)


def pack(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``log_id`` and fields of records, one row each, as one row per log. Rows keep their order;
    a field that has no column, or no value, is -1 (ids: 0; epochs: none)."""
    return _packed_by_log(batch, WHOLE)


def _packed_by_log(batch: pa.RecordBatch, dtype: np.dtype[np.void]) -> pa.RecordBatch:
    firsts, blobs = _blobs(batch, dtype, *_grouped(batch["log_id"]))
    return pa.RecordBatch.from_pydict(
        {"log_id": batch["log_id"].take(firsts)} | blobs, schema=arrow_schema(Packed)
    )


def _renamed(batch: pa.RecordBatch, names: dict[str, str]) -> pa.RecordBatch:
    return batch.rename_columns([names.get(name, name) for name in batch.schema.names])


def _grouped(*keys: pa.Array) -> tuple[Ints, Ints]:
    """(rows with those of equal keys side by side and in their order, the group of each)."""
    groups = np.zeros(len(keys[0]), dtype=np.int64)
    for key in keys:
        values = key.dictionary_encode()
        groups = groups * len(values.dictionary) + values.indices.to_numpy(zero_copy_only=False)
    if len(groups) and groups.max() < 1 << 16:
        # numpy sorts two bytes by their digits: many times faster than by comparing.
        groups = groups.astype(np.uint16)
    order: Ints = np.argsort(groups, kind="stable")
    return order, groups[order]


def _blobs(
    batch: pa.RecordBatch,
    dtype: np.dtype[np.void],
    order: Ints,
    groups: npt.NDArray[np.generic],
) -> tuple[pa.Array, dict[str, pa.Array]]:
    """(the first row of each group, the rows in ``order`` as records of ``dtype`` by group)."""
    begins = np.flatnonzero(np.concatenate(([True], groups[1:] != groups[:-1]))[: len(groups)])
    names = set(batch.schema.names)
    records = np.empty(len(order), dtype=dtype)
    for name in dtype.names or ():
        if name not in ("id_high", "id_low", "epochs"):
            records[name] = _numbers(batch[name])[order] if name in names else -1
    if "segment_id" in names:
        high, low = id_halves(batch["segment_id"])
        records["id_high"], records["id_low"] = high[order], low[order]
    else:
        records["id_high"] = records["id_low"] = 0
    entries, offsets = np.empty(0, dtype=EPOCH), np.zeros(len(order) + 1, dtype=np.int64)
    if dtype is WHOLE:
        if "epochs" in names:
            entries, offsets = _epochs(batch, order)
        records["epochs"] = offsets[1:] - offsets[:-1]
    ends = np.concatenate((begins[1:], [len(order)])) if len(begins) else begins
    return pa.array(order[begins]), {
        "form": pa.array(np.full(len(begins), FORMS.index(dtype), np.int64)),
        "records": _pieces(records, begins, ends),
        "epochs": _pieces(entries, offsets[begins], offsets[ends]),
    }


def _epochs(batch: pa.RecordBatch, order: Ints) -> tuple[npt.NDArray[np.void], Ints]:
    rows = pa.array(order)
    epochs, starts = batch["epochs"].take(rows), batch["epoch_starts"].take(rows)
    lengths = pc.fill_null(pc.list_value_length(epochs), 0).to_numpy(zero_copy_only=False)
    entries = np.empty(int(lengths.sum()), dtype=EPOCH)
    entries["epoch"] = epochs.flatten().to_numpy(zero_copy_only=False)
    entries["start"] = starts.flatten().to_numpy(zero_copy_only=False)
    return entries, np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def _pieces(values: npt.NDArray[np.void], starts: Ints, ends: Ints) -> pa.Array:
    """The bytes of ``values``, cut."""
    cuts = np.concatenate((starts, ends[-1:])) if len(starts) else np.zeros(1, dtype=np.int64)
    offsets = (cuts * values.itemsize).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(values.tobytes())]
    return pa.BinaryArray.from_buffers(pa.binary(), len(starts), buffers)


def packed_events(events: DataFrame, logs: DataFrame) -> DataFrame:
    """Metadata records as :class:`Packed`: of the partitions of ``logs`` (log_id, topic_id,
    partition), and those that cannot be decoded, as :data:`NO_LOG`."""
    from pyspark.sql import functions as F

    keys = F.broadcast(logs.select("log_id", "topic_id", "partition"))
    return (
        in_packs(events, pack_events, PackedEvents)
        .join(keys, ["topic_id", "partition"], "left")
        .where(F.col("log_id").isNotNull() | (F.col("partition") == UNKNOWN_PARTITION))
        .select(F.coalesce("log_id", F.lit(NO_LOG)).alias("log_id"), "form", "records", "epochs")
    )


def in_packs(
    frame: DataFrame, packing: Callable[[pa.RecordBatch], pa.RecordBatch], to: type = Packed
) -> DataFrame:
    """``frame`` in rows of ``to``, if it is not packed already."""
    if "records" in frame.columns:
        return frame

    def pack_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield packing(batch)

    return frame.mapInArrow(pack_all, spark_schema(to))


def by_log(
    together: DataFrame,
    work: Callable[[Iterator[pa.Table]], Iterator[pa.RecordBatch]],
    to: type,
    tasks: int = 0,
) -> DataFrame:
    """What ``work`` makes of the rows of each log of ``together`` (:class:`Packed`), as rows of
    ``to``. ``tasks``: 0, where Spark may choose by their size.

    No ``groupBy``: that makes a stream of Arrow of each group, which costs more than a log that has
    not changed. Here logs come one after the other, so that no more than one need be unpacked.
    """

    def act(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return work(tables_of(batches))

    placed = together.repartition(tasks, "log_id") if tasks else together.repartition("log_id")
    return placed.sortWithinPartitions("log_id").mapInArrow(act, spark_schema(to))


def tables_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Rows of which those of one log are side by side, log by log."""
    begun: list[pa.RecordBatch] = []
    for batch in batches:
        logs = batch["log_id"].to_numpy(zero_copy_only=False)
        if not len(logs):
            continue
        if begun and begun[-1]["log_id"][0].as_py() != logs[0]:
            yield pa.Table.from_batches(begun)
            begun = []
        cuts = [0, *(np.flatnonzero(logs[1:] != logs[:-1]) + 1), len(logs)]
        *whole, last = (batch.slice(a, b - a) for a, b in itertools.pairwise(cuts))
        for part in whole:
            yield pa.Table.from_batches([*begun, part])
            begun = []
        begun.append(last)
    if begun:
        yield pa.Table.from_batches(begun)


def unpack(table: pa.Table) -> tuple[Events, Objects]:
    """Every record of ``table``."""
    return unpacked(*(table[name].to_pylist() for name in ("form", "records", "epochs")))


def unpacked(
    forms: Sequence[int], blobs: Sequence[bytes], epochs: Sequence[bytes]
) -> tuple[Events, Objects]:
    """As :func:`unpack`, from the columns."""
    whole, changes, listed = (
        np.frombuffer(b"".join(b for b, f in zip(blobs, forms, strict=True) if f == form), dtype)
        for form, dtype in enumerate(FORMS)
    )
    entries = np.frombuffer(b"".join(epochs), dtype=EPOCH)
    offsets = np.full(len(whole) + len(changes) + 1, len(entries), dtype=np.int64)
    offsets[0] = 0
    np.cumsum(whole["epochs"], out=offsets[1 : len(whole) + 1])

    def number(name: str) -> Ints:
        values = np.full(len(offsets) - 1, -1, dtype=np.int64)
        values[: len(whole)] = whole[name]
        if name in (CHANGE.names or ()):
            values[len(whole) :] = changes[name]
        return values

    flags: Flags = number("flag") == 1
    events = Events(
        place=number("place"),
        position=number("position"),
        kind=number("kind"),
        id_high=np.concatenate((whole["id_high"], changes["id_high"])),
        id_low=np.concatenate((whole["id_low"], changes["id_low"])),
        start=number("first"),
        end=number("last"),
        size=number("size"),
        state=number("state"),
        txn_index_empty=flags,
        stamp=number("stamp"),
        newest=number("newest"),
        epochs=Ragged(entries["epoch"].astype(np.int64), offsets),
        epoch_starts=Ragged(entries["start"].astype(np.int64), offsets),
    )
    return events, Objects(
        id_high=listed["id_high"].copy(),
        id_low=listed["id_low"].copy(),
        start=listed["first"].copy(),
        log_bytes=listed["size"].copy(),
        kinds=listed["state"].astype(np.int64),
        modified=listed["stamp"].copy(),
    )


def id_halves(array: pa.Array) -> tuple[Ids, Ids]:
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


def place_of(table: pa.Table) -> str:
    """Where the log's objects lie; empty when nobody said it."""
    found = [
        text
        for form, text in zip(table["form"].to_pylist(), table["records"].to_pylist(), strict=True)
        if form == PLACE
    ]
    return found[0].decode() if found else ""


def must_be_understood(events: Events) -> None:
    """``events``: of :data:`NO_LOG`. Raises :class:`MetadataNotUnderstood` if there are any."""
    if not len(events):
        return
    raise MetadataNotUnderstood(int(events.place[0]), int(events.position[0]), count=len(events))


def segment_name(events: Events, row: int) -> str:
    """``<20 digits of the start offset>-<segment id>``: the stem of the segment's object keys."""
    return stem(int(events.start[row]), int(events.id_high[row]), int(events.id_low[row]))


def stem(start: int, high: int, low: int) -> str:
    """As :func:`segment_name`, from its parts."""
    return f"{start:020d}-{topic_id_to_base64(UUID(int=high << 64 | low))}"
