"""One tail reader of ``__remote_log_metadata`` for the whole worker process.

It folds only the topics that some migration watches, so its memory is bounded by their segments.
A topic that is watched anew is read for from the start, once, beside the others: whoever is
watched already, perhaps inside its write pause, neither waits for it nor is read again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import structlog
from aiokafka.record import MemoryRecords
from kio.schema.errors import ErrorCode

from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import RemoteLogIndex, RemoteSegment
from tideline.kafka import remote_log_metadata as codec
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError, KafkaUnavailable, MetadataNotUnderstood
from tideline.kafka.log_reader import LogReader
from tideline.kafka.observer import DEBUG_CONSUMER, KafkaObserver, OffsetSpec, TopicLayout

log = structlog.get_logger()

FORGOTTEN_AFTER_MS = 30 * 60_000.0
"""A topic that nobody asked for during this is forgotten when another one joins: it has migrated,
or another worker goes on with it."""


@dataclass(frozen=True, slots=True, order=True)
class _First:
    """The first record that is not understood."""

    partition: int
    offset: int
    why: str


@dataclass(slots=True)
class _Fold:
    """What the metadata topic says of ``watched`` up to ``positions`` (exclusive, by partition)."""

    watched: set[UUID] = field(default_factory=set)
    index: RemoteLogIndex = field(default_factory=RemoteLogIndex)
    positions: dict[int, int] = field(default_factory=dict)
    not_understood: dict[UUID | None, _First] = field(default_factory=dict)
    """By the topic that it concerns; ``None``: whichever."""

    def apply(self, partition: int, data: bytes, position: int, upto: int | None) -> int:
        """Apply every record at or past ``position`` and below ``upto``; the next position."""
        records = MemoryRecords(data)
        following = position
        while (batch := records.next_batch()) is not None:
            if upto is not None and batch.base_offset >= upto:
                break
            following = int(batch.next_offset)
            for record in batch:
                if record.offset >= position and record.value is not None:
                    self._apply(partition, record.offset, bytes(record.value))
        return following

    def _apply(self, partition: int, offset: int, value: bytes) -> None:
        try:
            event = codec.decode(value)
        except codec.NotUnderstood as error:
            if error.topic_id is None or error.topic_id in self.watched:
                self._note(error.topic_id, _First(partition, offset, str(error)))
            return
        if event.log.topic_id in self.watched:
            self.index.apply(event)

    def _note(self, topic_id: UUID | None, found: _First) -> None:
        known = self.not_understood.get(topic_id)
        if known is None or found < known:
            self.not_understood[topic_id] = found
            log.warning(
                "remote_log_metadata_not_understood",
                partition=found.partition, offset=found.offset, why=found.why,
            )  # fmt: skip

    def must_be_understood(self, topic_id: UUID) -> None:
        """Raises :class:`MetadataNotUnderstood` where one that is not may concern the topic."""
        found = [self.not_understood[k] for k in (None, topic_id) if k in self.not_understood]
        if found:
            first = min(found)
            concerned = None if None in self.not_understood else topic_id
            raise MetadataNotUnderstood(
                first.partition, first.offset, why=first.why, topic_id=concerned
            )

    def take(self, other: _Fold) -> None:
        """What ``other`` has of its topics, up to the same positions."""
        self.watched |= other.watched
        self.index.segments |= other.index.segments
        self.index.finished_once |= other.index.finished_once
        self.index.anomalies += other.index.anomalies
        self.not_understood = other.not_understood | self.not_understood

    def forget(self, topic_id: UUID) -> None:
        self.watched.discard(topic_id)
        self.not_understood.pop(topic_id, None)
        for kept in (self.index.segments, self.index.finished_once):
            for known in [k for k in kept if k.topic_id == topic_id]:
                del kept[known]


@dataclass(slots=True)
class _Newcomer:
    """A topic that is being read for from the start, perhaps by one attempt after another."""

    fold: _Fold
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class RemoteLogFollower:
    """Answers what remote segments a partition has, as of a moment after the call.

    Whatever reads the topic raises :class:`MetadataNotUnderstood` where a record may concern the
    topic that is asked for and this Tideline does not know what it says, as coverage does: it might
    be that a segment is gone. :class:`KafkaError`, :class:`KafkaUnavailable` as Kafka answers.
    """

    def __init__(self, cluster: KafkaCluster, timeout_ms: int = 10_000) -> None:
        self._observer = KafkaObserver(cluster, timeout_ms)
        self._reader = LogReader(cluster, timeout_ms)
        self._state = _Fold()
        self._lock = asyncio.Lock()
        self._begun = self._done = 0
        """Readings up to the end, by number; a done one that began after a call answers it."""
        self._newcomers: dict[UUID, _Newcomer] = {}
        self._asked_ms: dict[UUID, float] = {}
        self._clock_ms: Callable[[], float] = lambda: time.monotonic() * 1000

    @property
    def anomalies(self) -> int:
        """Records that no legal history contains."""
        return self._state.index.anomalies

    async def segments(self, wanted: TopicIdPartition) -> tuple[RemoteSegment, ...]:
        """The partition's segments in every state. Reads up to the metadata topic's present end
        first."""
        await self.refresh(wanted.topic_id)
        return self._state.index.of(wanted)

    def known(self, wanted: TopicIdPartition) -> tuple[RemoteSegment, ...]:
        """The partition's segments as of the last :meth:`refresh` of its topic."""
        return self._state.index.of(wanted)

    async def finished_once(self, wanted: TopicIdPartition) -> Mapping[int, int]:
        """By leader epoch the highest offset (inclusive) that was ever in remote storage."""
        await self.refresh(wanted.topic_id)
        return dict(self._state.index.finished_once.get(wanted, {}))

    async def topic_segments(self, topic_id: UUID) -> tuple[RemoteSegment, ...]:
        await self.refresh(topic_id)
        return tuple(self._state.index.topic_segments(topic_id))

    async def once(self, topic_ids: Collection[UUID]) -> RemoteLogIndex:
        """These topics' segments as of now, read from the start; nothing of it is kept."""
        fold = _Fold(set(topic_ids))
        await self._read(fold, await self._layout())
        for topic_id in topic_ids:
            fold.must_be_understood(topic_id)
        return fold.index

    def forget(self, topic_id: UUID) -> None:
        """Nobody watches the topic any more."""
        self._newcomers.pop(topic_id, None)
        self._asked_ms.pop(topic_id, None)
        self._state.forget(topic_id)

    async def refresh(self, topic_id: UUID) -> None:
        """Fold everything that the metadata topic holds now of the topics that are watched, this
        one among them."""
        self._asked_ms[topic_id] = self._clock_ms()
        if topic_id not in self._state.watched:
            await self._join(topic_id)
        else:
            await self._go_on()
        self._state.must_be_understood(topic_id)

    async def _go_on(self) -> None:
        """Read what is new up to the present end, or wait for who does."""
        wanted = self._begun + 1
        async with self._lock:
            if self._done >= wanted:
                return
            self._begun += 1
            number = self._begun
            await self._read(self._state, await self._layout())
            self._done = number

    async def _join(self, topic_id: UUID) -> None:
        """Read for a topic from the start, without making the others wait, then go on together."""
        newcomer = self._newcomers.setdefault(topic_id, _Newcomer(_Fold({topic_id})))
        async with newcomer.lock:
            if topic_id in self._state.watched:
                return
            await self._read(newcomer.fold, await self._layout())
            async with self._lock:
                self._forget_idle()
                if not self._state.watched:
                    self._state = newcomer.fold
                else:
                    await self._meet(newcomer.fold)
                    self._state.take(newcomer.fold)
            self._newcomers.pop(topic_id, None)

    async def _meet(self, fold: _Fold) -> None:
        """Bring the shared state and ``fold`` to the same positions, each record applied once."""
        layout = await self._layout()
        await self._read(self._state, layout)
        await self._read(fold, layout, self._state.positions)
        await self._read(self._state, layout, fold.positions)
        if fold.positions != self._state.positions:
            raise KafkaUnavailable(f"{codec.TOPIC}: its end moved back meanwhile; try again")

    def _forget_idle(self) -> None:
        now = self._clock_ms()
        for topic_id in list(self._state.watched):
            if now - self._asked_ms.get(topic_id, 0) > FORGOTTEN_AFTER_MS:
                self.forget(topic_id)

    async def _layout(self) -> TopicLayout:
        layout = await self._observer.topic(codec.TOPIC)
        if layout is None:
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition,
                f"{codec.TOPIC}: tiered storage has never been used on this cluster",
            )
        return layout

    async def _read(
        self, fold: _Fold, layout: TopicLayout, upto: Mapping[int, int] | None = None
    ) -> None:
        """Every partition up to its present end, or up to an offset (exclusive) that was one."""
        await asyncio.gather(
            *(
                self._catch_up(fold, layout, p, None if upto is None else upto.get(p, 0))
                for p in layout.partitions
            )
        )

    async def _catch_up(
        self, fold: _Fold, layout: TopicLayout, partition: int, upto: int | None
    ) -> None:
        where = layout.partitions[partition]
        position = fold.positions.get(partition)
        if position is None:
            earliest = await self._observer.offset(
                codec.TOPIC,
                partition,
                OffsetSpec.EARLIEST,
                node=where.leader,
                replica_id=DEBUG_CONSUMER,
            )
            position = fold.positions[partition] = earliest.offset
        while upto is None or position < upto:
            piece = await self._reader.fetch(codec.TOPIC, partition, position, node=where.leader)
            position = max(position, fold.apply(partition, piece.data, position, upto))
            fold.positions[partition] = position
            if position >= piece.high_watermark or not piece.data:
                return
