"""The gateway's own questions about tracked partitions to brokers, first of all the paired one."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tideline.domain.ids import TopicPartition
from tideline.errors import TidelineError
from tideline.kafka.client import KafkaCluster
from tideline.kafka.observer import KafkaObserver, OffsetSpec

TIMEOUT_MS = 2_000


class PairedBroker:
    """Asks the broker that a client is joined to; ``None`` means that it could not say (not the
    leader, or no answer)."""

    def __init__(
        self,
        cluster: KafkaCluster,
        broker_id: int,
        stood_in_for: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """``stood_in_for``: the brokers that clients are joined to here, beside the paired one."""
        self._cluster = cluster
        self._observer = KafkaObserver(cluster, TIMEOUT_MS)
        self._broker_id = broker_id
        self._stood_in_for = stood_in_for

    async def high_watermark(self, at: TopicPartition) -> int | None:
        """Next offset that consumers do not see yet, if this broker leads the partition, or one
        that is stood in for."""
        for node in dict.fromkeys((self._broker_id, *self._stood_in_for())):
            found = await self._offset(at, OffsetSpec.LATEST, node)
            if found is not None:
                return found
        return None

    async def log_start(self, at: TopicPartition, node: int) -> int | None:
        """First offset (inclusive) that the log still has, if the broker ``node`` leads it."""
        return await self._offset(at, OffsetSpec.EARLIEST, node)

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
