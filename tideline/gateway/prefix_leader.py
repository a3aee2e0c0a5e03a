"""What only Kafka's leader answers of a prefix, for clients that were led to another gateway.

A broker serves fetches of a replica that follows; ListOffsets, epochs and deletions it refuses
there. So the paired broker is asked first, on the client's own connection: it says what the client
may not do. What it refuses for no other reason than its role is asked of who leads
(:meth:`tideline.domain.answers.Handling.is_for_the_leader`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import structlog
from kio.static.protocol import RequestPayload

from tideline.domain.ids import TopicPartition
from tideline.errors import TidelineError
from tideline.gateway.context import ApiKey
from tideline.kafka.client import KafkaCluster

log = structlog.get_logger()
PATIENCE_MS = 3_000
"""Of one question; clients are more patient."""
_ITS_OWN_RIGHTS = frozenset({29, 31})
"""TOPIC_ and CLUSTER_AUTHORIZATION_FAILED: what this gateway may not do, not what the client may
not."""


@dataclass(frozen=True, slots=True)
class PrefixLeaders:
    """Questions to the leaders of prefixes, over the gateway's own connections."""

    cluster: KafkaCluster

    async def leading(self, partitions: Iterable[TopicPartition]) -> dict[int, set[TopicPartition]]:
        """The partitions by their leaders; without those that have none."""
        found: dict[int, set[TopicPartition]] = {}
        for at in partitions:
            try:
                leader = await self.cluster.leader_id(at.topic, at.partition)
            except TidelineError as error:
                log.info("prefix.no_leader", partition=str(at), why=str(error))
                continue
            found.setdefault(leader, set()).add(at)
        return found

    async def ask(self, leader: int, message: RequestPayload) -> Any:
        """One broker's answer, or ``None``: it gave none. A search by time may wait for remote
        storage, and in the end for nothing: no other question waits behind it."""
        try:
            connection = await self.cluster.node(leader, apart=_searches(message))
            return await connection.send(message, timeout_ms=PATIENCE_MS)
        except TidelineError as error:
            log.info("prefix.leader_does_not_answer", leader=leader, why=str(error))
            return None


def _searches(message: Any) -> bool:
    """Whether records are looked for by time, which may lie in remote storage."""
    if int(message.__api_key__) != ApiKey.LIST_OFFSETS:
        return False
    return any(int(row.timestamp) >= 0 for topic in message.topics for row in topic.partitions)


def may_be_told(code: int) -> bool:
    """Whether a leader's word is about the partition."""
    return code not in _ITS_OWN_RIGHTS
