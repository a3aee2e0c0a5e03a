"""What is little of each of many partitions of the metadata topic is read by one consumer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError as LibrdkafkaError
from confluent_kafka import TopicPartition

from spark.common.metadata_topic import Extent, RecordReader
from tests.unit.spark.test_kept_folds import Message
from tests.unit.spark.test_kept_verdicts import At
from tideline.kafka.errors import KafkaError, KafkaUnavailable


@dataclass
class Failed:
    """An event in a message's place."""

    code: int
    place: int | None = None

    def partition(self) -> int | None:
        return self.place

    def error(self) -> LibrdkafkaError:
        return LibrdkafkaError(self.code)


@dataclass(frozen=True)
class Come(At):
    def error(self) -> None:
        return None


@dataclass
class Consumer:
    """Hands out ``events`` one by one, of partitions that are assigned."""

    events: Iterator[Any]
    assigned: dict[int, int] = field(default_factory=dict)
    is_closed: bool = False

    def assign(self, wanted: list[TopicPartition]) -> None:
        self.assigned = {one.partition: one.offset for one in wanted}

    def incremental_unassign(self, some: list[TopicPartition]) -> None:
        for one in some:
            del self.assigned[one.partition]

    def poll(self, timeout_s: float) -> Any:
        return next(self.events, None)

    def consume(self, most: int, timeout_s: float) -> list[Any]:
        return []

    def close(self) -> None:
        self.is_closed = True


def read(
    monkeypatch: pytest.MonkeyPatch, *events: Any, timeout_ms: int = 10_000
) -> tuple[dict[int, list[int]], Consumer]:
    consumer = Consumer(iter(events))
    monkeypatch.setattr(RecordReader, "_consumer", lambda _: consumer)
    reader = RecordReader(SimpleNamespace(kafka_request_timeout_ms=timeout_ms))  # type: ignore[arg-type]
    try:
        found = reader.few([Extent(0, 4, 6), Extent(1, 2, 2), Extent(7, 9, 10)])
    finally:
        assert consumer.is_closed
    return {place: [m.offset() for m in some] for place, some in found.items()}, consumer


def come(place: int, offset: int) -> Come:
    return Come(place, Message(offset, b""))


def test_each_partition_is_read_to_its_end_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [come(0, 4), come(7, 9), come(7, 10), Failed(LibrdkafkaError._TRANSPORT), come(0, 6)]
    found, consumer = read(monkeypatch, *events)
    assert found == {0: [4], 7: [9]}, "records between two others may be missing"
    assert consumer.assigned == {}


def test_records_that_are_gone_and_brokers_that_are_away_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(KafkaError, match="-7: its records are gone"):
        read(monkeypatch, come(0, 4), Failed(LibrdkafkaError._AUTO_OFFSET_RESET, 7))
    with pytest.raises(KafkaUnavailable, match=r"-7: nothing came, .* of \[9, 10\)"):
        read(monkeypatch, come(0, 4), come(0, 5), timeout_ms=1)
    with pytest.raises(KafkaUnavailable, match=r"-7: .*transport.* of \[4, 6\) of partition 0"):
        read(monkeypatch, Failed(LibrdkafkaError._TRANSPORT, 7), timeout_ms=1)


def test_errors_of_many_partitions_at_once_are_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [Failed(LibrdkafkaError._TRANSPORT, place) for place in (7, 0, 7, 0, 7, 0)]
    found, _ = read(monkeypatch, *errors, come(0, 4), come(0, 5), come(7, 9))
    assert found == {0: [4, 5], 7: [9]}
