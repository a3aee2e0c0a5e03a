"""``__remote_log_metadata`` as rows: a Python Data Source with one reader per topic partition.

The range of offsets of each partition is noted on the driver before anything is planned
(:func:`extent`), so that every attempt of every task reads the same records. A row is one record
of any kind; the order of records is (``metadata_partition``, ``record_offset``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as LibrdkafkaError
from kio.schema.errors import ErrorCode
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from spark.coverage.packing import PACKED_EVENTS, pack_events
from tideline.domain.remote_log import (
    PartitionDelete,
    RemoteLogEvent,
    RemoteSegment,
    SegmentUpdate,
)
from tideline.kafka import remote_log_metadata as codec
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.settings import KafkaSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "tideline_remote_log"
MALFORMED = -1
"""``kind`` of a record that no known broker writes; the fold counts it as an anomaly."""
ROWS_AT_ONCE = 10_000
GONE = (LibrdkafkaError._AUTO_OFFSET_RESET, LibrdkafkaError.OFFSET_OUT_OF_RANGE)
GATHER_S = 0.05
QUIET_TIMEOUTS = 3
"""A partition that sends nothing for so many request timeouts is away."""

# Nullable throughout: a source's columns are so for Spark, which compares the schemas.
ARROW = pa.schema(
    [
        pa.field("metadata_partition", pa.int32(), nullable=True),
        pa.field("record_offset", pa.int64(), nullable=True),
        pa.field("kind", pa.int8(), nullable=True),
        pa.field("topic_id", pa.binary(), nullable=True),
        pa.field("partition", pa.int32(), nullable=True),
        pa.field("segment_id", pa.binary(), nullable=True),
        pa.field("start_offset", pa.int64(), nullable=True),
        pa.field("end_offset", pa.int64(), nullable=True),
        pa.field("size_bytes", pa.int64(), nullable=True),
        pa.field("state", pa.int8(), nullable=True),
        pa.field("txn_index_empty", pa.bool_(), nullable=True),
        pa.field("epochs", pa.list_(pa.int32()), nullable=True),
        pa.field("epoch_starts", pa.list_(pa.int64()), nullable=True),
        pa.field("broker_id", pa.int32(), nullable=True),
        pa.field("max_timestamp", pa.int64(), nullable=True),
        pa.field("event_timestamp", pa.int64(), nullable=True),
    ]
)
SCHEMA = """metadata_partition int, record_offset bigint, kind tinyint, topic_id binary,
partition int, segment_id binary, start_offset bigint, end_offset bigint, size_bytes bigint,
state tinyint, txn_index_empty boolean, epochs array<int>, epoch_starts array<bigint>,
broker_id int, max_timestamp bigint, event_timestamp bigint"""
"""``kind``: the record's api key (0 segment, 1 update, 2 partition delete) or :data:`MALFORMED`.
Ids are their 16 bytes; offsets are inclusive; times are ms."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Records ``[start, end)`` of one partition of the metadata topic."""

    partition: int
    start: int
    end: int


def extent(settings: KafkaSettings) -> list[Extent]:
    """What the metadata topic holds now, by partition.

    Raises :class:`KafkaUnavailable`; :class:`KafkaError` if the topic does not exist.
    """
    timeout = settings.kafka_request_timeout_ms / 1000
    consumer = _consumer(_bootstrap(settings), settings.kafka_request_timeout_ms)
    try:
        found = consumer.list_topics(codec.TOPIC, timeout=timeout).topics[codec.TOPIC]
        if found.error is not None or not found.partitions:
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition,
                f"{codec.TOPIC}: tiered storage has never been used on this cluster",
            )
        return [
            Extent(
                number,
                *consumer.get_watermark_offsets(TopicPartition(codec.TOPIC, number), timeout),
            )
            for number in sorted(found.partitions)
        ]
    except KafkaException as error:
        raise KafkaUnavailable(f"offsets of {codec.TOPIC}: {error}") from error
    finally:
        consumer.close()


def events(
    spark: SparkSession,
    settings: KafkaSettings,
    extents: Sequence[Extent],
    *,
    packed: bool = False,
) -> DataFrame:
    """The records of ``extents``, decoded; columns: :data:`SCHEMA`.

    ``packed``: as :func:`spark.coverage.packing.pack_events` makes of them.
    """
    spark.dataSource.register(RemoteLogSource)
    ranges = [[e.partition, e.start, e.end] for e in extents if e.end > e.start]
    if not ranges:
        return spark.createDataFrame([], PACKED_EVENTS if packed else SCHEMA)
    return (
        spark.read.format(NAME)
        .option("packed", packed)
        .option("bootstrap", _bootstrap(settings))
        .option("timeout_ms", settings.kafka_request_timeout_ms)
        .option("ranges", json.dumps(ranges))
        .load()
    )


class RemoteLogSource(DataSource):
    """The format :data:`NAME`. Options: ``bootstrap``, ``timeout_ms``, ``packed`` and ``ranges``, a
    JSON list of [partition, first offset, end offset (exclusive)]."""

    @classmethod
    def name(cls) -> str:
        return NAME

    @property
    def _packed(self) -> bool:
        return str(self.options.get("packed", "false")).lower() == "true"

    def schema(self) -> str:
        return PACKED_EVENTS if self._packed else SCHEMA

    def reader(self, schema: object) -> RemoteLogReader:
        return RemoteLogReader(
            str(self.options["bootstrap"]),
            int(self.options["timeout_ms"]),
            [Extent(*entry) for entry in json.loads(self.options["ranges"])],
            self._packed,
        )


@dataclass
class MetadataPartition(InputPartition):
    """One reader's work."""

    extent: Extent


class RemoteLogReader(DataSourceReader):
    """Reads the extents, one task each."""

    def __init__(
        self, bootstrap: str, timeout_ms: int, extents: Sequence[Extent], packed: bool = False
    ) -> None:
        self._bootstrap, self._timeout_ms = bootstrap, timeout_ms
        self._extents, self._packed = list(extents), packed

    def partitions(self) -> Sequence[InputPartition]:
        return [MetadataPartition(e) for e in self._extents]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, MetadataPartition)
        wanted = partition.extent
        position, rows = wanted.start, Rows()
        consumer = _consumer(self._bootstrap, self._timeout_ms)
        try:
            consumer.assign([TopicPartition(codec.TOPIC, wanted.partition, wanted.start)])
            while position < wanted.end:
                for message in self._some(consumer, wanted, position):
                    if message.offset() >= wanted.end:
                        position = wanted.end
                        break
                    position = message.offset() + 1
                    rows.add(wanted.partition, message.offset(), message.value())
                if len(rows) >= ROWS_AT_ONCE:
                    yield self._taken(rows)
            if len(rows):
                yield self._taken(rows)
        finally:
            consumer.close()

    def _taken(self, rows: Rows) -> pa.RecordBatch:
        batch = rows.take()
        return pack_events(batch) if self._packed else batch

    def _some(self, consumer: Consumer, wanted: Extent, position: int) -> list[Any]:
        """At least one message. An error that a later request may not have is waited out.

        Raises :class:`KafkaUnavailable`, :class:`KafkaError`.
        """
        why = "nothing came"
        for _ in range(QUIET_TIMEOUTS):
            # A consume() waits until it has all that it may take: ask for what has come.
            first = consumer.poll(self._timeout_ms / 1000)
            more = min(ROWS_AT_ONCE, wanted.end - position) - 1
            received = [first] if first is not None else []
            received += consumer.consume(more, GATHER_S) if received and more > 0 else []
            messages = []
            for message in received:
                if (error := message.error()) is None:
                    messages.append(message)
                elif error.code() in GONE:
                    raise KafkaError(
                        ErrorCode.offset_out_of_range,
                        f"{codec.TOPIC}-{wanted.partition} at {position}: its records are gone",
                    )
                else:
                    why = error.str()
            if messages:
                return messages
        raise KafkaUnavailable(
            f"{codec.TOPIC}-{wanted.partition}: {why}, from offset {position} on, "
            f"of [{wanted.start}, {wanted.end})"
        )


class Rows:
    """Decoded records, by column."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {field.name: [] for field in ARROW}

    def __len__(self) -> int:
        return len(self._columns["kind"])

    def add(self, metadata_partition: int, offset: int, value: bytes | None) -> None:
        """Decode one record. Records of a newer Kafka that this fold does not need are left out."""
        if value is None:
            return
        try:
            event = codec.decode(value)
        except codec.MalformedMetadata:
            self._append({"kind": MALFORMED}, metadata_partition, offset)
            return
        if event is not None:
            self._append(row_of(event), metadata_partition, offset)

    def _append(self, row: dict[str, Any], metadata_partition: int, offset: int) -> None:
        row["metadata_partition"], row["record_offset"] = metadata_partition, offset
        for name, column in self._columns.items():
            column.append(row.get(name))

    def take(self) -> pa.RecordBatch:
        """What was added since the last time."""
        batch = pa.RecordBatch.from_pydict(self._columns, schema=ARROW)
        self._columns = {field.name: [] for field in ARROW}
        return batch


def row_of(event: RemoteLogEvent) -> dict[str, Any]:
    """An event's columns, without its place."""
    row: dict[str, Any] = {
        "topic_id": event.log.topic_id.bytes,
        "partition": event.log.partition,
        "state": int(event.state),
        "event_timestamp": event.event_timestamp,
    }
    match event:
        case RemoteSegment():
            row |= {
                "kind": codec.SEGMENT,
                "segment_id": event.segment_id.bytes,
                "start_offset": event.start_offset,
                "end_offset": event.end_offset,
                "size_bytes": event.size_bytes,
                "txn_index_empty": event.txn_index_empty,
                "epochs": [e.epoch for e in event.leader_epochs],
                "epoch_starts": [e.start_offset for e in event.leader_epochs],
                "broker_id": event.broker_id,
                "max_timestamp": event.max_timestamp,
            }
        case SegmentUpdate():
            row |= {
                "kind": codec.UPDATE,
                "segment_id": event.segment_id.bytes,
                "broker_id": event.broker_id,
            }
        case PartitionDelete():
            row |= {"kind": codec.PARTITION_DELETE}
    return row


def _bootstrap(settings: KafkaSettings) -> str:
    return ",".join(f"{host}:{port}" for host, port in settings.kafka_bootstrap)


def _consumer(bootstrap: str, timeout_ms: int) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tideline-jobs",  # asked for by the library; nothing is committed
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
            "socket.timeout.ms": timeout_ms,
            "queued.max.messages.kbytes": 16_384,
            "log_level": 2,
        }
    )
