"""The gateway's own questions about tracked partitions to brokers, first of all the paired one."""

from __future__ import annotations

from tideline.domain.ids import TopicPartition
from tideline.errors import TidelineError
from tideline.kafka.client import KafkaCluster
from tideline.kafka.observer import KafkaObserver, OffsetSpec

TIMEOUT_MS = 2_000


class PairedBroker:
    """Asks one broker; ``None`` means that it could not say (not the leader, or no answer)."""

    def __init__(self, cluster: KafkaCluster, broker_id: int) -> None:
        self._cluster = cluster
        self._observer = KafkaObserver(cluster, TIMEOUT_MS)
        self._broker_id = broker_id

    async def high_watermark(self, at: TopicPartition) -> int | None:
        """Next offset that consumers do not see yet, if this broker leads the partition."""
        return await self._offset(at, OffsetSpec.LATEST, self._broker_id)

    async def log_start(self, at: TopicPartition) -> int | None:
        """First offset (inclusive) that the log still has, if this broker leads it."""
        return await self._offset(at, OffsetSpec.EARLIEST, self._broker_id)

    async def log_start_of_leader(self, at: TopicPartition) -> int | None:
        """The same, whoever leads it."""
        try:
            leader = await self._cluster.leader_id(at.topic, at.partition)
        except TidelineError:
            return None
        return await self._offset(at, OffsetSpec.EARLIEST, leader)

    async def _offset(self, at: TopicPartition, spec: OffsetSpec, node: int) -> int | None:
        try:
            answer = await self._observer.offset(at.topic, at.partition, spec, node=node)
        except TidelineError:
            return None
        return answer.offset
