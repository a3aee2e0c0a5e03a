"""The gateway's own questions about tracked partitions to the paired broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v7.request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kio.schema.list_offsets.v7.response import ListOffsetsResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i64

from tideline.domain.ids import TopicPartition
from tideline.errors import TidelineError
from tideline.kafka.client import KafkaConnection

LATEST, EARLIEST = -1, -2
CONSUMER = BrokerId(-1)
TIMEOUT_MS = 2_000


class PairedBroker:
    """Asks one broker; ``None`` means that it could not say (not the leader, or no answer)."""

    def __init__(self, connect: Callable[[], Awaitable[KafkaConnection]]) -> None:
        self._connect = connect

    async def high_watermark(self, at: TopicPartition) -> int | None:
        """Next offset that consumers do not see yet, if this broker leads the partition."""
        return await self._offset(at, LATEST)

    async def log_start(self, at: TopicPartition) -> int | None:
        """First offset (inclusive) that the log still has, if this broker leads it."""
        return await self._offset(at, EARLIEST)

    async def _offset(self, at: TopicPartition, timestamp: int) -> int | None:
        asked = ListOffsetsPartition(
            partition_index=i32(at.partition),
            current_leader_epoch=i32(-1),
            timestamp=i64(timestamp),
        )
        request = ListOffsetsRequest(
            replica_id=CONSUMER,
            isolation_level=i8(0),
            topics=(ListOffsetsTopic(name=TopicName(at.topic), partitions=(asked,)),),
        )
        try:
            connection = await self._connect()
            answer = cast(
                ListOffsetsResponse, await connection.send(request, timeout_ms=TIMEOUT_MS)
            )
        except TidelineError:
            return None
        found = answer.topics[0].partitions[0]
        return int(found.offset) if found.error_code is ErrorCode.none else None
