"""What gateways serve of a range of offsets, by a stock consumer."""

from __future__ import annotations

from collections.abc import Generator, Sequence
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

from spark.common.consumer import QUIET_TIMEOUTS, reader_config, what_came
from spark.table.rows import MOST_MS
from tideline.domain.table import Isolation
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.record_columns import Headers
from tideline.settings import JobsSettings

AT_ONCE = 5_000
GATHER_S = 0.02


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
    """One consumer, for one range after another. Commits nothing."""

    def __init__(self, settings: JobsSettings, bootstrap: Sequence[str]) -> None:
        self._timeout_s = settings.kafka_request_timeout_ms / 1000
        self._config = reader_config(settings, bootstrap) | {
            "client.id": "tideline-verify",
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
            quiet, why = 0, "nothing came"
            while quiet < QUIET_TIMEOUTS:
                came = what_came(consumer, self._timeout_s, AT_ONCE, GATHER_S)
                if not came:
                    quiet += 1
                for message in came:
                    if (error := message.error()) is None:
                        if _offset(message) >= end:
                            return
                        quiet = 0
                        yield _record(message)
                    elif error.code() == LibrdkafkaError._PARTITION_EOF:
                        return
                    elif error.code() in (
                        LibrdkafkaError.OFFSET_OUT_OF_RANGE,
                        LibrdkafkaError._AUTO_OFFSET_RESET,
                    ):
                        raise NotServed(error.str())
                    else:
                        quiet, why = quiet + 1, error.str()
        finally:
            consumer.unassign()
        raise KafkaUnavailable(f"gateways: {topic}-{partition} in [{start}, {end}): {why}")

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
    headers = message.headers()
    return Record(
        _offset(message),
        -1 if kind == TIMESTAMP_NOT_AVAILABLE else max(-MOST_MS, min(timestamp, MOST_MS)),
        int(kind == TIMESTAMP_LOG_APPEND_TIME),
        message.key(),
        message.value(),
        list(headers) if headers else None,  # type: ignore[arg-type]
        message.leader_epoch(),  # type: ignore[arg-type]
    )
