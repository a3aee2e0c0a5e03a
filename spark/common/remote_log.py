"""``__remote_log_metadata`` as frames, read by the executors, a task for each of its partitions.
What is new since verdicts were kept a driver reads (:mod:`spark.coverage.kept`).

:func:`events` are the records one by one, all of them read: who deletes objects looks at them.
:func:`folded` is what they come to, log by log: it goes on from a kept snapshot and reads what came
since (:mod:`spark.common.snapshots` says when it may).
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
from kio.schema.errors import ErrorCode
from pyspark.accumulators import Accumulator, AccumulatorParam

from spark.common import code, metadata_topic
from spark.common.kept_fold import KeptFold, Key
from spark.common.metadata_columns import columns_of
from spark.common.metadata_records import MetadataRecord
from spark.common.metadata_topic import Extent, RecordReader
from spark.common.packing import PackedEvents, pack_events
from spark.common.rows import spark_schema
from spark.common.snapshots import LastRecord, Snapshot, SnapshotStore, Unusable
from tideline.domain.foreign_text import in_one_line
from tideline.kafka import remote_log_metadata as codec
from tideline.kafka.errors import KafkaError
from tideline.object_store.client import (
    ObjectStoreClient,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
)
from tideline.settings import JobsSettings, KafkaSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STORE_ERRORS = (ObjectStoreRefused, ObjectStoreUnavailable)
FOLDED_AT_ONCE = 250_000
"""Records that are folded together: some 30 MB."""
WRITTEN_FROM = 1_000
"""New records from which on a fold is kept anew, if they are a twentieth of it: fewer are read
again by the next run, which costs less than to write all."""
KEPT_BY_NEW = 20


def events(
    spark: SparkSession,
    settings: KafkaSettings,
    extents: Sequence[Extent],
    topics: Iterable[UUID],
) -> DataFrame:
    """Every record of ``extents`` about ``topics``, and what cannot be read or is of no known kind:
    rows of :class:`MetadataRecord`."""
    wanted = frozenset(topic.bytes for topic in topics)
    reader = RowReader(RecordReader(settings), tuple(extents), wanted)
    return frame_of(spark, MetadataRecord, reader)


@dataclass(frozen=True, slots=True)
class FoldOfPlace:
    """What the fold of one partition of the metadata topic was made of."""

    partition: int
    whole_at: int
    """ms; when the partition was last read from its start."""
    last: LastRecord | None
    """The newest record in it; ``None`` where the broker does not say its leader epoch."""
    folded_by: str
    """:data:`spark.common.code.DIGEST` of who folded it."""


class _AllTold(AccumulatorParam[frozenset[FoldOfPlace]]):
    def zero(self, value: frozenset[FoldOfPlace]) -> frozenset[FoldOfPlace]:
        return frozenset()

    def addInPlace(
        self, value1: frozenset[FoldOfPlace], value2: frozenset[FoldOfPlace]
    ) -> frozenset[FoldOfPlace]:
        return value1 | value2


@dataclass(frozen=True, slots=True)
class Plan:
    """What :func:`folded` will read."""

    snapshots: SnapshotStore
    keys: dict[int, list[str]]
    """Of the snapshots, by partition, as they were before the extents were noted: none of them has
    seen more."""
    extents: tuple[Extent, ...]
    can_keep: bool

    @property
    def records(self) -> int:
        return sum(one.end - one.start for one in self.extents)

    @property
    def new_records(self) -> int:
        """Those that no snapshot has seen. One that turns out to be unusable makes them more."""
        seen = {place: SnapshotStore.end_of(keys[0]) for place, keys in self.keys.items()}
        return sum(one.end - max(one.start, seen.get(one.partition, 0)) for one in self.extents)


def plan(settings: JobsSettings) -> Plan:
    """Raises :class:`KafkaUnavailable`; :class:`KafkaError` if there is no such topic."""
    store = ObjectStoreClient(settings)
    snapshots = SnapshotStore(
        store, settings.s3_bucket, settings.diskless_prefix, metadata_topic.identity(settings)
    )
    try:
        keys, can_keep = snapshots.keys(), True
    except STORE_ERRORS as error:
        # Snapshots save work; without them all of it is done.
        _say(f"snapshots of {codec.TOPIC} are not used: {error}")
        keys, can_keep = {}, False
    return Plan(snapshots, keys, tuple(metadata_topic.extents(settings)), can_keep)


def folded(
    spark: SparkSession,
    settings: JobsSettings,
    found: Plan | None,
    topics: Iterable[UUID],
    *,
    keep: bool = True,
    logs: Iterable[tuple[UUID, int]] | None = None,
    told: Accumulator[frozenset[FoldOfPlace]] | None = None,
) -> DataFrame:
    """The remote logs of ``topics``: rows of :class:`PackedEvents`, with what no record of a known
    kind is; none without a plan. ``keep``: write snapshots for the next run. ``logs``: only these
    partitions of the topics. ``told`` (:func:`folds_told`): hears what each fold was made of."""
    if found is None:
        return spark.createDataFrame([], spark_schema(PackedEvents))
    now_ms = time.time_ns() // 1_000_000
    reader = FoldReader(
        RecordReader(settings),
        found,
        frozenset(topic.bytes for topic in topics),
        now_ms,
        now_ms - settings.coverage_audit_ms,
        keep and found.can_keep,
        None if logs is None else frozenset((topic.bytes, number) for topic, number in logs),
        told,
    )
    return frame_of(spark, PackedEvents, reader)


def folds_told(spark: SparkSession) -> Accumulator[frozenset[FoldOfPlace]]:
    """Empty. A task that is tried again tells twice: what it tells then may differ."""
    return spark.sparkContext.accumulator(frozenset(), _AllTold())


def frame_of(spark: SparkSession, row: type, reader: Reader) -> DataFrame:
    """A task for each partition that has records. The reader, with the password in it, travels by
    value to whoever reads.

    No Python Data Source: Spark plans those with the executors' Python on the driver's machine,
    which need not have it where they do (``./environment/bin/python``).
    """
    schema = spark_schema(row)
    wanted = [one for one in reader.extents if one.end > one.start]
    if not wanted:
        return spark.createDataFrame([], schema)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from reader.read(wanted[number])

    return spark.range(0, len(wanted), 1, len(wanted)).mapInArrow(read, schema)


class Reader(ABC):
    """Rows out of the records of a partition."""

    def __init__(self, records: RecordReader, extents: Sequence[Extent]) -> None:
        self._records, self.extents = records, tuple(extents)

    @abstractmethod
    def read(self, extent: Extent) -> Iterator[pa.RecordBatch]: ...


class RowReader(Reader):
    """Reads records one by one."""

    def __init__(
        self, records: RecordReader, extents: Sequence[Extent], topics: frozenset[bytes]
    ) -> None:
        super().__init__(records, extents)
        self._topics = topics

    def read(self, extent: Extent) -> Iterator[pa.RecordBatch]:
        for messages in self._records.messages(extent):
            offsets = [message.offset() for message in messages]
            values = [message.value() for message in messages]
            yield columns_of(extent.partition, offsets, values, self._topics)


class FoldReader(Reader):
    """Folds records, from a snapshot on where there is one."""

    def __init__(
        self,
        records: RecordReader,
        found: Plan,
        topics: frozenset[bytes],
        now_ms: int,
        whole_since: int,
        keep: bool,
        logs: frozenset[Key] | None = None,
        told: Accumulator[frozenset[FoldOfPlace]] | None = None,
    ) -> None:
        super().__init__(records, found.extents)
        self._logs, self._told = logs, told
        self._snapshots, self._keys, self._topics = found.snapshots, found.keys, topics
        self._now_ms, self._whole_since, self._keep = now_ms, whole_since, keep

    def read(self, extent: Extent) -> Iterator[pa.RecordBatch]:
        made = self._from_snapshot(extent) or self._from_start(extent)
        if self._keep and made.is_worth_keeping and made.last is not None:
            self._write(extent, made, made.last)
        if self._told is not None:
            found = FoldOfPlace(extent.partition, made.whole_at, made.last, code.DIGEST)
            self._told.add(frozenset([found]))
        yield made.fold.packed(self._topics, self._logs)

    def _from_snapshot(self, extent: Extent) -> _Made | None:
        keys = self._keys.get(extent.partition, ())
        for found in self._snapshots.newest(keys):
            try:
                if isinstance(found, Unusable):
                    raise found
                found.check(
                    self._snapshots.identity, extent.partition, extent.start, extent.end,
                    self._whole_since, self._now_ms,
                )  # fmt: skip
                return self._gone_on(found, extent)
            except Unusable as why:
                _say(f"{codec.TOPIC}-{extent.partition}: a snapshot is not used: {why}")
        return None

    def _gone_on(self, found: Snapshot, extent: Extent) -> _Made:
        """Raises :class:`Unusable` before it has folded anything."""
        made = _Made(found.fold, found.last, found.whole_at)
        rest = replace(extent, start=found.last.offset)
        try:
            self._read(made, rest, checked=found.last)
        except KafkaError as error:
            if error.code is ErrorCode.offset_out_of_range and not made.records:
                raise Unusable(str(error)) from error
            raise
        return made

    def _from_start(self, extent: Extent) -> _Made:
        made = _Made(KeptFold(extent.partition), None, self._now_ms, is_whole=True)
        self._read(made, extent)
        return made

    def _read(self, made: _Made, extent: Extent, checked: LastRecord | None = None) -> None:
        """Fold ``extent``; its first record must be ``checked``, and is not folded again."""
        batches, rows, upto = list[pa.RecordBatch](), 0, -1
        for found in self._records.messages(extent):
            messages = found
            if checked is not None:
                if last_record(found[0]) != checked:
                    raise Unusable("the last record that it has seen is not there any more")
                checked, messages = None, found[1:]
            if not messages:
                continue
            offsets = [message.offset() for message in messages]
            values = [message.value() for message in messages]
            batches.append(pack_events(columns_of(extent.partition, offsets, values)))
            rows, upto = rows + len(messages), offsets[-1]
            made.last, made.records = last_record(messages[-1]), made.records + len(messages)
            if rows >= FOLDED_AT_ONCE:
                made.fold.take(pa.Table.from_batches(batches), upto)
                batches, rows = [], 0
        if batches:
            made.fold.take(pa.Table.from_batches(batches), upto)
        if checked is not None:
            raise Unusable("the last record that it has seen is not there any more")

    def _write(self, extent: Extent, made: _Made, last: LastRecord) -> None:
        snapshot = Snapshot(
            self._snapshots.identity, extent.start, extent.end, last, made.whole_at, made.fold
        )
        try:
            self._snapshots.write(snapshot, self._now_ms, self._keys.get(extent.partition, ()))
        except STORE_ERRORS as error:
            _say(f"{codec.TOPIC}-{extent.partition}: no snapshot is kept: {error}")


@dataclass(slots=True)
class _Made:
    """A fold, and how it came to be."""

    fold: KeptFold
    last: LastRecord | None
    """``None``: there is none, or the broker does not say in which leader epoch it was written."""
    whole_at: int
    is_whole: bool = False
    records: int = 0
    """That were read now."""

    @property
    def is_worth_keeping(self) -> bool:
        enough = max(WRITTEN_FROM, self.fold.rows // KEPT_BY_NEW)
        return self.fold.can_be_kept and (self.is_whole or self.records >= enough)


def _say(text: str) -> None:
    """All that a task can tell is its executor's log."""
    print(in_one_line(text), file=sys.stderr, flush=True)


def last_record(message: object) -> LastRecord | None:
    """``message``: of confluent-kafka. ``None`` without a leader epoch."""
    found: Any = message
    epoch = found.leader_epoch()
    if epoch is None or epoch < 0:
        return None
    return LastRecord.of(found.offset(), epoch, found.timestamp()[1], found.value())
