"""``__remote_log_metadata`` as a topic: how far its partitions reach, and their raw records.

The range of offsets of each partition is noted on the driver before anything is planned, so that
every attempt of every task reads the same records.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import KafkaError as LibrdkafkaError
from kio.schema.errors import ErrorCode

from spark.common.consumer import QUIET_TIMEOUTS, reader_config, what_came
from spark.common.snapshots import Identity
from tideline.kafka import remote_log_metadata as codec
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.observer import CONSUMER, KafkaObserver, OffsetSpec, TopicLayout, refusal
from tideline.settings import KafkaSettings

RECORDS_AT_ONCE = 50_000
"""Decoded at once: about five megabytes of values."""
GONE = (LibrdkafkaError._AUTO_OFFSET_RESET, LibrdkafkaError.OFFSET_OUT_OF_RANGE)
GATHER_S = 0.05


@dataclass(frozen=True, slots=True)
class Extent:
    """Records ``[start, end)`` of one partition of the metadata topic."""

    partition: int
    start: int
    end: int


def look(settings: KafkaSettings) -> tuple[Identity, list[Extent]]:
    """Whose topic it is, and what it holds now, by partition.

    Raises :class:`KafkaUnavailable`; :class:`KafkaError` if there is no such topic.
    """
    return asyncio.run(_look(settings))


def identity(settings: KafkaSettings) -> Identity:
    """Raises as :func:`look`."""
    return asyncio.run(_identity(settings))


def extents(settings: KafkaSettings) -> list[Extent]:
    """Raises as :func:`look`."""
    return look(settings)[1]


async def _identity(settings: KafkaSettings) -> Identity:
    async with KafkaCluster.of(settings, "tideline-jobs") as cluster:
        observer = KafkaObserver(cluster, settings.kafka_request_timeout_ms)
        return _identity_of(await cluster.cluster_id(), await _topic(observer))


async def _look(settings: KafkaSettings) -> tuple[Identity, list[Extent]]:
    async with KafkaCluster.of(settings, "tideline-jobs") as cluster:
        cluster_id = await cluster.cluster_id()
        observer = KafkaObserver(cluster, settings.kafka_request_timeout_ms)
        found = await _topic(observer)
        starts = await _offsets(observer, found, OffsetSpec.EARLIEST)
        ends = await _offsets(observer, found, OffsetSpec.LATEST)
    return _identity_of(cluster_id, found), [
        Extent(number, starts[number], ends[number]) for number in sorted(found.partitions)
    ]


async def _topic(observer: KafkaObserver) -> TopicLayout:
    found = await observer.topic(codec.TOPIC)
    if found is None or not found.partitions:
        raise KafkaError(
            ErrorCode.unknown_topic_or_partition,
            f"{codec.TOPIC}: tiered storage has never been used on this cluster",
        )
    return found


def _identity_of(cluster_id: str, found: TopicLayout) -> Identity:
    return Identity(cluster_id, found.topic_id, len(found.partitions))


async def _offsets(observer: KafkaObserver, topic: TopicLayout, spec: OffsetSpec) -> dict[int, int]:
    by_leader: dict[int, list[int]] = defaultdict(list)
    for layout in topic.partitions.values():
        if layout.leader < 0:
            raise KafkaUnavailable(f"{codec.TOPIC}-{layout.partition} has no leader")
        by_leader[layout.leader].append(layout.partition)
    found: dict[int, int] = {}
    for leader, partitions in by_leader.items():
        answers = await observer.offsets(
            codec.TOPIC, partitions, spec, node=leader, replica_id=CONSUMER
        )
        for partition, answer in answers.items():
            if isinstance(answer, ErrorCode):
                error = refusal(answer, f"offset {spec.name} of {codec.TOPIC}-{partition}")
                raise KafkaUnavailable(str(error)) if answer.retriable else error
            found[partition] = answer.offset
    return found


@dataclass(frozen=True, slots=True)
class RecordReader:
    """Reads records of the topic. Travels to executors as its settings do."""

    settings: KafkaSettings

    @property
    def timeout_ms(self) -> int:
        return self.settings.kafka_request_timeout_ms

    def messages(self, wanted: Extent) -> Iterator[list[Any]]:
        """Messages of ``wanted`` in their order, at most :data:`RECORDS_AT_ONCE` at a time; no
        empty list. Raises :class:`KafkaUnavailable`, :class:`KafkaError`."""
        position = wanted.start
        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(codec.TOPIC, wanted.partition, wanted.start)])
            while position < wanted.end:
                most = min(RECORDS_AT_ONCE, wanted.end - position)
                messages = self._some(consumer, wanted, position, most)
                position = int(messages[-1].offset()) + 1
                if position > wanted.end:
                    messages = [m for m in messages if m.offset() < wanted.end]
                if messages:
                    yield messages
        finally:
            consumer.close()

    def few(self, wanted: Sequence[Extent]) -> dict[int, list[Any]]:
        """All messages of ``wanted`` by partition, in their order and at once: one consumer asks
        for what is little of each of many. Raises as :meth:`messages`."""
        left = {one.partition: one for one in wanted if one.end > one.start}
        found: dict[int, list[Any]] = {partition: [] for partition in left}
        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(codec.TOPIC, p, one.start) for p, one in left.items()])
            while left:
                waited_for = next(iter(left.values()))
                for message in self._some(consumer, waited_for, waited_for.start, RECORDS_AT_ONCE):
                    place, offset = message.partition(), int(message.offset())
                    if place not in left:
                        continue
                    if offset < left[place].end:
                        found[place].append(message)
                    if offset + 1 >= left[place].end:
                        del left[place]
                        consumer.incremental_unassign([TopicPartition(codec.TOPIC, place)])
        finally:
            consumer.close()
        return found

    def _some(self, consumer: Consumer, wanted: Extent, position: int, most: int) -> list[Any]:
        """At least one message. An error that a later request may not have is waited out.
        ``wanted``, ``position``: what is waited for."""
        why = f"{codec.TOPIC}-{wanted.partition}: nothing came"
        timeout_s = self.timeout_ms / 1000
        deadline = time.monotonic() + QUIET_TIMEOUTS * timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            messages = []
            for message in what_came(consumer, min(left_s, timeout_s), most, GATHER_S):
                if (error := message.error()) is None:
                    messages.append(message)
                    continue
                # Of any that is assigned; of none: a broker's.
                place = message.partition()
                failed = f"{codec.TOPIC}-{wanted.partition if place is None else place}"
                if error.code() in GONE:
                    raise KafkaError(
                        ErrorCode.offset_out_of_range,
                        f"{failed}: its records are gone: {error.str()}",
                    )
                why = f"{failed}: {error.str()}"
            if messages:
                return messages
        raise KafkaUnavailable(
            f"{why}, waiting for offset {position} on, of [{wanted.start}, {wanted.end}) "
            f"of partition {wanted.partition}"
        )

    def _consumer(self) -> Consumer:
        brokers = (f"{host}:{port}" for host, port in self.settings.kafka_bootstrap)
        config = reader_config(self.settings, brokers)
        return Consumer(config | {"socket.timeout.ms": self.timeout_ms})
