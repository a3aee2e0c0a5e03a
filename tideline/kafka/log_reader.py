"""Reads raw record batches from a partition's leader, in bounded pieces."""

from __future__ import annotations

from dataclasses import dataclass

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import request as fr
from kio.schema.fetch.v12.response import FetchResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import CONSUMER, STALE_EPOCH_ERRORS, LeaderMoved, milliseconds

FETCH_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FetchedPiece:
    """One answer. The first batch may begin before the offset asked; the last may be cut."""

    data: bytes
    high_watermark: int
    log_start: int


class LogReader:
    """Sessionless fetches that never wait for data."""

    def __init__(self, cluster: KafkaCluster, timeout_ms: int = 10_000) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        node: int,
        leader_epoch: int = -1,
        max_bytes: int = FETCH_BYTES,
    ) -> FetchedPiece:
        """Batches from the one that holds ``offset`` on, at most about ``max_bytes``.

        Raises :class:`LeaderMoved` if ``leader_epoch`` is not the broker's, :class:`KafkaError`
        for every other refusal.
        """
        request = fr.FetchRequest(
            replica_id=BrokerId(CONSUMER),
            max_wait=i32Timedelta.parse(milliseconds(0)),
            min_bytes=i32(0),
            max_bytes=i32(max_bytes),
            isolation_level=i8(0),
            topics=(
                fr.FetchTopic(
                    topic=TopicName(topic),
                    partitions=(
                        fr.FetchPartition(
                            partition=i32(partition),
                            current_leader_epoch=i32(leader_epoch),
                            fetch_offset=i64(offset),
                            partition_max_bytes=i32(max_bytes),
                        ),
                    ),
                ),
            ),
            forgotten_topics_data=(),
        )
        connection = await self._cluster.node(node)
        response = await connection.send(request, timeout_ms=self._timeout_ms)
        assert isinstance(response, FetchResponse)
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code, f"fetch of {topic}-{partition}")
        found = response.responses[0].partitions[0]
        if found.error_code is not ErrorCode.none:
            kind = LeaderMoved if found.error_code in STALE_EPOCH_ERRORS else KafkaError
            raise kind(found.error_code, f"fetch of {topic}-{partition} at {offset}")
        return FetchedPiece(
            bytes(found.records or b""), int(found.high_watermark), int(found.log_start_offset)
        )
