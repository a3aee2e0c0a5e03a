"""What gateways serve of a range of offsets, by a stock consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from operator import methodcaller
from typing import NamedTuple

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka import KafkaError as LibrdkafkaError
from kio.schema.errors import ErrorCode

from spark.common.consumer import QUIET_TIMEOUTS, reader_config, what_came
from spark.table.rows import LOG_APPEND_TIME, MAX_UNPACKED, MOST_MS
from tideline.domain.table import Isolation
from tideline.domain.topic_configs import LOG_APPEND_TIME as OF_APPEND
from tideline.kafka.batches import BatchHeader, InvalidBatch, iter_fetched, verify_crc
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.log_reader import FetchedPiece, LogReader
from tideline.kafka.record_columns import Headers, RecordColumns, append_records
from tideline.kafka.records import InvalidRecords, UnpackedTooLarge, unpacked
from tideline.kafka.security import KafkaSecurity
from tideline.settings import JobsSettings

CLIENT_ID = "tideline-verify"
AT_ONCE = 5_000
GATHER_S = 0.02
NOT_UTF_8: Headers = [("(a key that is no UTF-8)", None)]
"""Of a record whose headers librdkafka's Python does not hand out: brokers check no header key."""
_HEADERS = methodcaller("headers")
"""Of a message. At such a key the library returns a broken list and leaves the error behind: called
like this Python looks for that (SystemError); written as a call it does not once it has often come
by, and the error is raised by whatever comes next."""
_UNREADABLE = (
    LibrdkafkaError._BAD_MSG,
    LibrdkafkaError._BAD_COMPRESSION,
    LibrdkafkaError.INVALID_MSG,
)
"""What librdkafka says of a batch that it cannot read, whoever else can."""


class Record(NamedTuple):
    """A record as a consumer is handed it, or as a row of the table has it."""

    offset: int
    timestamp: int
    """ms; -1: none."""
    timestamp_type: int
    """0: the producer's, 1: of the append."""
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    leader_epoch: int


class NotServed(Exception):
    """The gateways say that the offset is out of range; the message is theirs."""


class Gateways:
    """One consumer, for one range after another. Commits nothing.

    librdkafka reads less than Kafka's own clients take: header keys that are UTF-8, and of gzip the
    first member (RFC 1952, 2.2). So what it says is no verdict on the gateways by itself:
    :meth:`again` reads a record in the very batch that they serve.
    """

    def __init__(self, settings: JobsSettings, bootstrap: Sequence[str]) -> None:
        self._settings, self._bootstrap = settings, bootstrap
        self._again: tuple[object, Mapping[int, Record]] = (None, {})
        self._timeout_s = settings.kafka_request_timeout_ms / 1000
        self._config = reader_config(settings, bootstrap) | {
            "client.id": CLIENT_ID,
            "check.crcs": True,
            "enable.partition.eof": True,
        }
        self._consumers: dict[Isolation, Consumer] = {}

    def close(self) -> None:
        while self._consumers:
            self._consumers.popitem()[1].close()

    def log_start(self, topic: str, partition: int) -> int:
        """The first offset that is served. Raises :class:`KafkaUnavailable`."""
        consumer = self._consumer(Isolation.READ_UNCOMMITTED)
        place = TopicPartition(topic, partition)
        try:
            return int(consumer.get_watermark_offsets(place, timeout=self._timeout_s)[0])
        except KafkaException as error:
            raise KafkaUnavailable(f"gateways: offsets of {topic}-{partition}: {error}") from error

    def records(
        self, topic: str, partition: int, start: int, end: int, isolation: Isolation
    ) -> Generator[Record, None, None]:
        """Those with offsets in ``[start, end)``, in the order in which they come.

        Raises :class:`NotServed`, and :class:`KafkaUnavailable` when nothing comes.
        """
        consumer = self._consumer(isolation)
        consumer.assign([TopicPartition(topic, partition, start)])
        try:
            quiet, why, due = 0, "nothing came", start
            while quiet < QUIET_TIMEOUTS:
                came = what_came(consumer, self._timeout_s, AT_ONCE, GATHER_S)
                if not came:
                    quiet += 1
                for message in came:
                    if (error := message.error()) is None:
                        if _offset(message) >= end:
                            return
                        quiet, due = 0, _offset(message) + 1
                        yield _record(message)
                    elif error.code() == LibrdkafkaError._PARTITION_EOF:
                        return
                    elif error.code() in (
                        LibrdkafkaError.OFFSET_OUT_OF_RANGE,
                        LibrdkafkaError._AUTO_OFFSET_RESET,
                    ):
                        raise NotServed(error.str())
                    elif error.code() in _UNREADABLE:
                        due = self._header(topic, partition, due)[1].last_offset + 1
                        if due >= end:
                            return
                        consumer.assign([TopicPartition(topic, partition, due)])
                        break  # what has come is read once more
                    else:
                        quiet, why = quiet + 1, error.str()
        finally:
            consumer.unassign()
        raise KafkaUnavailable(f"gateways: {topic}-{partition} in [{start}, {end}): {why}")

    def again(self, topic: str, partition: int, offset: int, isolation: Isolation) -> Record | None:
        """The record as it stands in the batch that gateways serve, by the decoder that reads
        stored ones. ``None``: it is not there, or cannot be read. Raises as :meth:`records`."""
        asked = topic, partition, isolation
        if self._again[0] != asked or offset not in self._again[1]:
            piece, header = self._header(topic, partition, offset, isolation)
            self._again = asked, _decoded(piece, header)
        return self._again[1].get(offset)

    def _header(
        self,
        topic: str,
        partition: int,
        offset: int,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> tuple[FetchedPiece, BatchHeader]:
        """The first batch that is served at ``offset`` or behind it."""
        where = f"gateways: {topic}-{partition} at {offset}"
        try:
            piece = asyncio.run(self._fetched(topic, partition, offset, isolation))
            header = next(iter_fetched(piece.data), None)
        except InvalidBatch as error:
            raise NotServed(f"{where}: {error}") from error
        except KafkaError as error:
            if error.code is ErrorCode.offset_out_of_range:
                raise NotServed(str(error)) from error
            raise KafkaUnavailable(f"{where}: {error}") from error
        if header is None:
            raise NotServed(f"{where}: no whole batch")
        return piece, header

    async def _fetched(
        self, topic: str, partition: int, offset: int, isolation: Isolation
    ) -> FetchedPiece:
        """One batch: at least one is served, whatever its size (KIP-74)."""
        addresses = [one.rpartition(":") for one in self._bootstrap]
        timeout_ms = self._settings.kafka_request_timeout_ms
        async with KafkaCluster(
            [(host.strip("[]"), int(port)) for host, _, port in addresses],
            client_id=CLIENT_ID,
            timeout_ms=timeout_ms,
            security=KafkaSecurity.of(self._settings),
        ) as cluster:
            return await LogReader(cluster, timeout_ms).fetch(
                topic, partition, offset, node=await cluster.leader_id(topic, partition),
                max_bytes=1, committed=isolation is Isolation.READ_COMMITTED,
            )  # fmt: skip

    def _consumer(self, isolation: Isolation) -> Consumer:
        if isolation not in self._consumers:
            config = {**self._config, "isolation.level": isolation.value}
            self._consumers[isolation] = Consumer(config)
        return self._consumers[isolation]


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def _record(message: Message) -> Record:
    kind, timestamp = message.timestamp()
    try:
        headers = _HEADERS(message)
    except (SystemError, UnicodeDecodeError):
        headers = NOT_UTF_8
    return Record(
        _offset(message),
        -1 if kind == TIMESTAMP_NOT_AVAILABLE else _bounded(timestamp),
        int(kind == TIMESTAMP_LOG_APPEND_TIME),
        message.key(),
        message.value(),
        list(headers) if headers else None,
        message.leader_epoch(),  # type: ignore[arg-type]
    )


def _bounded(timestamp: int) -> int:
    """ms, as a row of the table can have it."""
    return max(-MOST_MS, min(timestamp, MOST_MS))


def _decoded(piece: FetchedPiece, header: BatchHeader) -> dict[int, Record]:
    """The records of the first batch by offset; none if it is damaged, or a consumer passes over
    it."""
    aborted = header.is_transactional and any(
        producer == header.producer_id and first <= header.base_offset
        for producer, first in piece.aborted
    )
    if aborted or header.is_control or not verify_crc(piece.data, header):
        return {}
    append_time = header.max_timestamp if header.timestamp_type == OF_APPEND else None
    columns = RecordColumns()
    try:
        append_records(
            columns, bytes(unpacked(piece.data, header, MAX_UNPACKED)), header,
            base_offset=header.base_offset, start=header.base_offset, end=header.last_offset + 1,
            append_time=append_time,
        )  # fmt: skip
    except (InvalidBatch, InvalidRecords, UnpackedTooLarge):
        return {}
    kind = 0 if append_time is None else LOG_APPEND_TIME
    return {
        offset: Record(
            offset, _bounded(timestamp), kind, key, value, headers, header.partition_leader_epoch
        )
        for offset, timestamp, key, value, headers in zip(
            columns.offsets, columns.timestamps, columns.keys, columns.values, columns.headers,
            strict=True,
        )
    }  # fmt: skip
