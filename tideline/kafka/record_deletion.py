"""DeleteRecords for many partitions: one request per leader.

The request names topics, not topic ids. So the id is asked for right before, and a topic that was
deleted and created again under its name is left alone (schedules.md, 19).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from kio.schema.delete_records.v2 import request as dr
from kio.schema.delete_records.v2.response import DeleteRecordsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from tideline.domain.ids import TopicPartition
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.layout import TopicLayout
from tideline.kafka.observer import KafkaObserver, milliseconds

AT_ONCE = 32
"""Topics that are asked for side by side."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """Delete what lies below ``before_offset`` (exclusive) of one partition."""

    topic: str
    topic_id: UUID
    partition: int
    before_offset: int

    @property
    def name(self) -> TopicPartition:
        """The partition as Kafka calls it."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing was deleted, or why it is not known whether it was."""

    reason: str
    gone: bool = False
    """The topic is another one by now, or none: nothing is left to do."""


class RecordDeletion:
    """Sends DeleteRecords to the brokers directly. Repeating it does no harm: a log's start never
    moves back."""

    def __init__(self, cluster: KafkaCluster, timeout_ms: int = 10_000) -> None:
        self._cluster = cluster
        self._observer = KafkaObserver(cluster, timeout_ms)
        self._timeout_ms = timeout_ms

    async def delete(self, wanted: Sequence[Deletion]) -> dict[TopicPartition, int | Refusal]:
        """The log start of each partition afterwards, on all of its live replicas.

        Raises :class:`KafkaUnavailable` when no broker answers at all; one leader that does not
        answer refuses its own partitions only.
        """
        layouts = await self._layouts({d.topic for d in wanted})
        answers: dict[TopicPartition, int | Refusal] = {}
        by_leader: dict[int, list[Deletion]] = defaultdict(list)
        for deletion in wanted:
            leader = _leader(layouts[deletion.topic], deletion)
            if isinstance(leader, Refusal):
                answers[deletion.name] = leader
            else:
                by_leader[leader].append(deletion)
        for found in await asyncio.gather(
            *(self._delete_at(leader, some) for leader, some in by_leader.items())
        ):
            answers |= found
        return answers

    async def _layouts(self, topics: Iterable[str]) -> Mapping[str, TopicLayout | Refusal | None]:
        places = asyncio.Semaphore(AT_ONCE)

        async def one(topic: str) -> TopicLayout | Refusal | None:
            async with places:
                try:
                    return await self._observer.topic(topic)
                except KafkaError as error:
                    return Refusal(str(error))

        names = list(topics)
        found = await asyncio.gather(*(one(name) for name in names))
        return dict(zip(names, found, strict=True))

    async def _delete_at(
        self, leader: int, wanted: Sequence[Deletion]
    ) -> dict[TopicPartition, int | Refusal]:
        by_topic: dict[str, list[Deletion]] = defaultdict(list)
        for deletion in wanted:
            by_topic[deletion.topic].append(deletion)
        request = dr.DeleteRecordsRequest(
            topics=tuple(
                dr.DeleteRecordsTopic(
                    name=TopicName(topic),
                    partitions=tuple(
                        dr.DeleteRecordsPartition(
                            partition_index=i32(d.partition), offset=i64(d.before_offset)
                        )
                        for d in some
                    ),
                )
                for topic, some in by_topic.items()
            ),
            timeout=i32Timedelta.parse(milliseconds(self._timeout_ms)),
        )
        try:
            connection = await self._cluster.node(leader)
            # The broker itself waits up to the timeout for the replicas.
            response = await connection.send(request, timeout_ms=2 * self._timeout_ms)
        except (KafkaUnavailable, KafkaError) as error:
            return {d.name: Refusal(str(error)) for d in wanted}
        assert isinstance(response, DeleteRecordsResponse)
        return {
            TopicPartition(str(topic.name), int(p.partition_index)): (
                int(p.low_watermark)
                if p.error_code is ErrorCode.none
                else Refusal(f"DeleteRecords: Kafka answered {p.error_code.name.upper()}")
            )
            for topic in response.topics
            for p in topic.partitions
        }


def _leader(layout: TopicLayout | Refusal | None, wanted: Deletion) -> int | Refusal:
    if isinstance(layout, Refusal):
        return layout
    if layout is None or layout.topic_id != wanted.topic_id:
        return Refusal("Kafka has no such topic any more", gone=True)
    partition = layout.partitions.get(wanted.partition)
    if partition is None or partition.leader < 0:
        return Refusal("the partition has no leader")
    return partition.leader
