"""``__remote_log_metadata`` as rows: a Python Data Source with one reader per topic partition.

The range of offsets of each partition is noted on the driver before anything is planned
(:func:`extent`), so that every attempt of every task reads the same records. A row is one record
of any kind; the order of records is (``metadata_partition``, ``record_offset``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as LibrdkafkaError
from kio.schema.errors import ErrorCode
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from spark.common.metadata_columns import columns_of
from spark.common.metadata_records import MetadataRecord
from spark.common.packing import PackedEvents, pack_events
from spark.common.rows import spark_schema
from tideline.kafka import remote_log_metadata as codec
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.security import UNSECURED, KafkaSecurity
from tideline.settings import KafkaSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NAME = "tideline_remote_log"
RECORDS_AT_ONCE = 50_000
"""Decoded at once: about five megabytes of values."""
GONE = (LibrdkafkaError._AUTO_OFFSET_RESET, LibrdkafkaError.OFFSET_OUT_OF_RANGE)
GATHER_S = 0.05
QUIET_TIMEOUTS = 3
"""A partition that sends nothing for so many request timeouts is away."""


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
    topics: Iterable[UUID] | None = None,
    packed: bool = False,
) -> DataFrame:
    """The records of ``extents``, decoded: rows of :class:`MetadataRecord`.

    ``topics``: records of others are dropped before they are decoded; ``None``: all of them. What
    cannot be read, or is of no known kind, is always among them. ``packed``: as
    :func:`spark.common.packing.pack_events` makes of them.
    """
    wanted = None if topics is None else frozenset(topic.bytes for topic in topics)
    spark.dataSource.register(_source(KafkaSecurity.of(settings), wanted))
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


def _source(security: KafkaSecurity, topics: frozenset[bytes] | None) -> type[RemoteLogSource]:
    """One that logs in. The password is in the class, which travels by value to whoever reads, and
    not in an option: Spark shows those of a plan to everybody. So are the topics, which are many.
    """

    class Source(RemoteLogSource):
        _security = security
        _topics = topics

    return Source


class RemoteLogSource(DataSource):
    """The format :data:`NAME`. Options: ``bootstrap``, ``timeout_ms``, ``packed`` and ``ranges``, a
    JSON list of [partition, first offset, end offset (exclusive)]."""

    _security = UNSECURED
    _topics: frozenset[bytes] | None = None

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
            self._topics,
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
        topics: frozenset[bytes] | None = None,
    ) -> None:
        self._security, self._topics = security, topics
        self._bootstrap, self._timeout_ms = bootstrap, timeout_ms
        self._extents, self._packed = list(extents), packed

    def partitions(self) -> Sequence[InputPartition]:
        return [MetadataPartition(e) for e in self._extents]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, MetadataPartition)
        wanted = partition.extent
        position, offsets, values = wanted.start, list[int](), list[bytes | None]()
        consumer = _consumer(self._bootstrap, self._timeout_ms, self._security)
        try:
            consumer.assign([TopicPartition(codec.TOPIC, wanted.partition, wanted.start)])
            while position < wanted.end:
                messages = self._some(consumer, wanted, position)
                position = int(messages[-1].offset()) + 1
                if position > wanted.end:
                    messages = [m for m in messages if m.offset() < wanted.end]
                offsets += [message.offset() for message in messages]
                values += [message.value() for message in messages]
                if len(values) >= RECORDS_AT_ONCE or position >= wanted.end:
                    yield self._batch(wanted.partition, offsets, values)
                    offsets, values = [], []
        finally:
            consumer.close()

    def _batch(
        self, place: int, offsets: Sequence[int], values: Sequence[bytes | None]
    ) -> pa.RecordBatch:
        batch = columns_of(place, offsets, values, self._topics)
        return pack_events(batch) if self._packed else batch

    def _some(self, consumer: Consumer, wanted: Extent, position: int) -> list[Any]:
        """At least one message. An error that a later request may not have is waited out.

        Raises :class:`KafkaUnavailable`, :class:`KafkaError`.
        """
        why = "nothing came"
        for _ in range(QUIET_TIMEOUTS):
            # A consume() waits until it has all that it may take: ask for what has come.
            first = consumer.poll(self._timeout_ms / 1000)
            more = min(RECORDS_AT_ONCE, wanted.end - position) - 1
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
