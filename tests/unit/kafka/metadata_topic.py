"""``__remote_log_metadata`` in memory, and who follows it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID, uuid4

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import EpochStart, RemoteSegment, SegmentState
from tideline.kafka.log_reader import FetchedPiece
from tideline.kafka.observer import OffsetAnswer, PartitionLayout, TopicLayout
from tideline.kafka.remote_log_reader import RemoteLogFollower


def segment(log: TopicIdPartition) -> RemoteSegment:
    return RemoteSegment(
        log=log,
        topic="orders",
        segment_id=uuid4(),
        start_offset=0,
        end_offset=9,
        size_bytes=10,
        leader_epochs=(EpochStart(0, 0),),
        state=SegmentState.COPY_SEGMENT_STARTED,
        max_timestamp=1,
        txn_index_empty=True,
    )


@dataclass
class MetadataTopic:
    """Two partitions; a fetch answers one batch."""

    batches: dict[int, list[bytes]] = field(default_factory=lambda: {0: [], 1: []})
    fetched: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How often each partition and offset."""
    before_fetch: Any = None
    layouts: int = 0

    def add(self, partition: int, value: bytes | None) -> None:
        batches = self.batches[partition]
        builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 16)
        assert builder.append(0, 1, None, value, []) is not None
        raw = bytearray(builder.build())
        raw[:8] = len(batches).to_bytes(8, "big")
        batches.append(bytes(raw))

    def follower(self) -> RemoteLogFollower:
        """Who reads it, without a broker."""
        found = RemoteLogFollower(cast(Any, None))
        found._observer, found._reader = cast(Any, self), cast(Any, self)
        return found

    async def topic(self, name: str) -> TopicLayout:
        self.layouts += 1
        where = PartitionLayout(0, 1, 0, (1,), (1,))
        return TopicLayout(name, UUID(int=9), False, dict.fromkeys(self.batches, where))

    async def offset(self, *_: object, **__: object) -> OffsetAnswer:
        return OffsetAnswer(0, -1, 0)

    async def fetch(self, topic: str, partition: int, offset: int, *, node: int) -> FetchedPiece:
        if self.before_fetch is not None:
            await self.before_fetch(partition, offset)
        self.fetched[partition, offset] += 1
        batches = self.batches[partition]
        data = batches[offset] if offset < len(batches) else b""
        return FetchedPiece(data, len(batches), 0)
