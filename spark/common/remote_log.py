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
from uuid import UUID

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as LibrdkafkaError
from kio.schema.errors import ErrorCode
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from spark.common.packing import PackedEvents, pack_events
from spark.common.rows import spark_schema, to_batch
from tideline.domain.remote_log import (
    RemoteLogEvent,
    RemoteSegment,
    SegmentUpdate,
)
from tideline.kafka import remote_log_metadata as codec
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.security import UNSECURED, KafkaSecurity
from tideline.settings import KafkaSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NAME = "tideline_remote_log"
MALFORMED = -1
"""``kind`` of a record that no known broker writes; the fold counts it as an anomaly."""
UNKNOWN = -2
"""``kind`` of a record of a newer Kafka. The fold does not need it; who deletes must know what it
says, and judges nothing."""
ROWS_AT_ONCE = 10_000
GONE = (LibrdkafkaError._AUTO_OFFSET_RESET, LibrdkafkaError.OFFSET_OUT_OF_RANGE)
GATHER_S = 0.05
QUIET_TIMEOUTS = 3
"""A partition that sends nothing for so many request timeouts is away."""


@dataclass(slots=True)
class MetadataRecord:
    """One record. Nullable throughout, as a source's columns are for Spark."""

    metadata_partition: int | None
    record_offset: int | None
    kind: int | None
    """The record's api key (0 segment, 1 update, 2 partition delete), :data:`MALFORMED` or
    :data:`UNKNOWN`."""
    topic_id: UUID | None = None
    partition: int | None = None
    segment_id: UUID | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    """Inclusive."""
    size_bytes: int | None = None
    state: int | None = None
    txn_index_empty: bool | None = None
    epochs: tuple[int, ...] | None = None
    epoch_starts: tuple[int, ...] | None = None
    max_timestamp: int | None = None
    """ms."""
    event_timestamp: int | None = None
    """ms; when the broker wrote the record."""


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
    consumer = _consumer(
        _bootstrap(settings), settings.kafka_request_timeout_ms, KafkaSecurity.of(settings)
    )
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
    """The records of ``extents``, decoded: rows of :class:`MetadataRecord`.

    ``packed``: as :func:`spark.common.packing.pack_events` makes of them, without those of an
    unknown kind.
    """
    spark.dataSource.register(_source(KafkaSecurity.of(settings)))
    ranges = [[e.partition, e.start, e.end] for e in extents if e.end > e.start]
    if not ranges:
        return spark.createDataFrame([], _schema(packed))
    return (
        spark.read.format(NAME)
        .option("packed", packed)
        .option("bootstrap", _bootstrap(settings))
        .option("timeout_ms", settings.kafka_request_timeout_ms)
        .option("ranges", json.dumps(ranges))
        .load()
    )


def _source(security: KafkaSecurity) -> type[RemoteLogSource]:
    """One that logs in. The password is in the class, which travels by value to whoever reads, and
    not in an option: Spark shows those of a plan to everybody."""

    class Source(RemoteLogSource):
        _security = security

    return Source


class RemoteLogSource(DataSource):
    """The format :data:`NAME`. Options: ``bootstrap``, ``timeout_ms``, ``packed`` and ``ranges``, a
    JSON list of [partition, first offset, end offset (exclusive)]."""

    _security = UNSECURED

    @classmethod
    def name(cls) -> str:
        return NAME

    @property
    def _packed(self) -> bool:
        return str(self.options.get("packed", "false")).lower() == "true"

    def schema(self) -> StructType:
        return _schema(self._packed)

    def reader(self, schema: object) -> MetadataReader:
        return MetadataReader(
            str(self.options["bootstrap"]),
            int(self.options["timeout_ms"]),
            [Extent(*entry) for entry in json.loads(self.options["ranges"])],
            self._packed,
            self._security,
        )


@dataclass
class MetadataPartition(InputPartition):
    extent: Extent


class MetadataReader(DataSourceReader):
    """Reads the extents, one task each."""

    def __init__(
        self,
        bootstrap: str,
        timeout_ms: int,
        extents: Sequence[Extent],
        packed: bool = False,
        security: KafkaSecurity = UNSECURED,
    ) -> None:
        self._security = security
        self._bootstrap, self._timeout_ms = bootstrap, timeout_ms
        self._extents, self._packed = list(extents), packed

    def partitions(self) -> Sequence[InputPartition]:
        return [MetadataPartition(e) for e in self._extents]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, MetadataPartition)
        wanted = partition.extent
        position, records = wanted.start, list[MetadataRecord]()
        consumer = _consumer(self._bootstrap, self._timeout_ms, self._security)
        try:
            consumer.assign([TopicPartition(codec.TOPIC, wanted.partition, wanted.start)])
            while position < wanted.end:
                for message in self._some(consumer, wanted, position):
                    if message.offset() >= wanted.end:
                        position = wanted.end
                        break
                    position = message.offset() + 1
                    found = decoded(wanted.partition, message.offset(), message.value())
                    if found is not None and (found.kind != UNKNOWN or not self._packed):
                        records.append(found)
                if len(records) >= ROWS_AT_ONCE:
                    yield self._batch(records)
                    records = []
            if records:
                yield self._batch(records)
        finally:
            consumer.close()

    def _batch(self, records: Sequence[MetadataRecord]) -> pa.RecordBatch:
        batch = to_batch(MetadataRecord, records)
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


def decoded(metadata_partition: int, offset: int, value: bytes | None) -> MetadataRecord | None:
    """``None`` for a record without a value."""
    if value is None:
        return None
    try:
        event = codec.decode(value)
    except codec.MalformedMetadata:
        return MetadataRecord(metadata_partition, offset, MALFORMED)
    if event is None:
        return MetadataRecord(metadata_partition, offset, UNKNOWN)
    return record_of(event, metadata_partition, offset)


def record_of(event: RemoteLogEvent, metadata_partition: int, offset: int) -> MetadataRecord:
    record = MetadataRecord(
        metadata_partition,
        offset,
        codec.PARTITION_DELETE,
        event.log.topic_id,
        event.log.partition,
        state=int(event.state),
        event_timestamp=event.event_timestamp,
    )
    match event:
        case RemoteSegment():
            record.kind, record.segment_id = codec.SEGMENT, event.segment_id
            record.start_offset, record.end_offset = event.start_offset, event.end_offset
            record.size_bytes, record.max_timestamp = event.size_bytes, event.max_timestamp
            record.txn_index_empty = event.txn_index_empty
            record.epochs = tuple(e.epoch for e in event.leader_epochs)
            record.epoch_starts = tuple(e.start_offset for e in event.leader_epochs)
        case SegmentUpdate():
            record.kind, record.segment_id = codec.UPDATE, event.segment_id
    return record


def _schema(packed: bool) -> StructType:
    return spark_schema(PackedEvents if packed else MetadataRecord)


def _bootstrap(settings: KafkaSettings) -> str:
    return ",".join(f"{host}:{port}" for host, port in settings.kafka_bootstrap)


def _consumer(bootstrap: str, timeout_ms: int, security: KafkaSecurity) -> Consumer:
    return Consumer(
        {
            **security.librdkafka,
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
