"""One tail reader of ``__remote_log_metadata`` for the whole worker process.

It folds only the topics that some migration watches, so its memory is bounded by their segments.
A topic that is watched anew makes it read the metadata topic again from its start, once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from uuid import UUID

import structlog
from aiokafka.record import MemoryRecords
from kio.schema.errors import ErrorCode

from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import RemoteLogIndex, RemoteSegment
from tideline.kafka import remote_log_metadata as codec
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.log_reader import LogReader
from tideline.kafka.observer import DEBUG_CONSUMER, KafkaObserver, OffsetSpec, TopicLayout

log = structlog.get_logger()


@dataclass(slots=True)
class _Progress:
    index: RemoteLogIndex = field(default_factory=RemoteLogIndex)
    positions: dict[int, int] = field(default_factory=dict)
    watched: set[UUID] = field(default_factory=set)
    malformed: int = 0


class RemoteLogFollower:
    """Answers what remote segments a partition has, as of a moment after the call."""

    def __init__(self, cluster: KafkaCluster, timeout_ms: int = 10_000) -> None:
        self._observer = KafkaObserver(cluster, timeout_ms)
        self._reader = LogReader(cluster, timeout_ms)
        self._state = _Progress()
        self._lock = asyncio.Lock()

    @property
    def anomalies(self) -> int:
        """Records that no legal history contains, or that do not parse."""
        return self._state.index.anomalies + self._state.malformed

    async def segments(self, wanted: TopicIdPartition) -> tuple[RemoteSegment, ...]:
        """The partition's segments in every state. Reads up to the metadata topic's present end
        first. Raises :class:`KafkaError` or :class:`KafkaUnavailable`."""
        await self.refresh(wanted.topic_id)
        return self._state.index.of(wanted)

    async def topic_segments(self, topic_id: UUID) -> tuple[RemoteSegment, ...]:
        await self.refresh(topic_id)
        return tuple(self._state.index.topic_segments(topic_id))

    def forget(self, topic_id: UUID) -> None:
        """Nobody watches the topic any more."""
        self._state.watched.discard(topic_id)
        for known in [k for k in self._state.index.segments if k.topic_id == topic_id]:
            del self._state.index.segments[known]

    async def refresh(self, topic_id: UUID) -> None:
        """Fold everything that the metadata topic holds now."""
        async with self._lock:
            if topic_id not in self._state.watched:
                self._state = _Progress(watched=self._state.watched | {topic_id})
            layout = await self._observer.topic(codec.TOPIC)
            if layout is None:
                raise KafkaError(
                    ErrorCode.unknown_topic_or_partition,
                    f"{codec.TOPIC}: tiered storage has never been used on this cluster",
                )
            await asyncio.gather(*(self._catch_up(layout, p) for p in layout.partitions))

    async def _catch_up(self, layout: TopicLayout, partition: int) -> None:
        where = layout.partitions[partition]
        position = self._state.positions.get(partition)
        if position is None:
            earliest = await self._observer.offset(
                codec.TOPIC,
                partition,
                OffsetSpec.EARLIEST,
                node=where.leader,
                replica_id=DEBUG_CONSUMER,
            )
            position = earliest.offset
        while True:
            piece = await self._reader.fetch(codec.TOPIC, partition, position, node=where.leader)
            position = max(position, self._fold(piece.data, position))
            self._state.positions[partition] = position
            if position >= piece.high_watermark or not piece.data:
                return

    def _fold(self, data: bytes, position: int) -> int:
        """Apply every record at or past ``position``; returns the next position."""
        records = MemoryRecords(data)
        following = position
        while (batch := records.next_batch()) is not None:
            following = batch.next_offset
            for record in batch:
                if record.offset < position or record.value is None:
                    continue
                try:
                    event = codec.decode(bytes(record.value))
                except codec.MalformedMetadata as error:
                    self._state.malformed += 1
                    log.warning(
                        "remote_log_metadata_malformed", offset=record.offset, why=str(error)
                    )
                    continue
                if event is not None and event.log.topic_id in self._state.watched:
                    self._state.index.apply(event)
        return int(following)
