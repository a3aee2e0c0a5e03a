"""Where the replicas of diskless topics go when their number is the cluster's
(``diskless.managed.rf.enabled``): CreateTopics and CreatePartitions are given an assignment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import structlog
from kio.schema.create_topics.v7.request import CreatableReplicaAssignment, CreatableTopic
from kio.schema.create_topics.v7.response import CreatableTopicResult
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId
from kio.static.primitive import i16, i32

from tideline.domain.kafka_release import UPGRADE
from tideline.domain.placement import (
    place,
    refusal_of_assignment,
    refusal_of_factor,
)
from tideline.errors import TidelineError
from tideline.gateway.messages import nested
from tideline.kafka.client import KafkaCluster
from tideline.kafka.cluster_layout import ClusterLayout, cluster_layout
from tideline.kafka.errors import UnsupportedVersion

BY_DEFAULT = -1
"""Partitions, replicas: as many as the broker's default; beside an assignment: as it says."""
MOST_PARTITIONS = 10_000
"""What a controller creates with one request (``ReplicationControlManager``)."""

log = structlog.get_logger()
Validate = Callable[[CreatableTopic], Awaitable[CreatableTopicResult]]


class PlacementRefused(Exception):
    """Replicas of a diskless topic cannot be placed as it was asked."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class ReplicaPlacing:
    """Places what comes into being, and nothing else: replicas that exist stay where they are."""

    cluster: KafkaCluster
    gateways: Collection[int]
    """Node ids of the brokers beside which a gateway stands."""

    async def birth(self, topic: CreatableTopic, validate: Validate) -> CreatableTopic:
        """``topic`` with an assignment of one replica in each rack. ``validate`` asks Kafka
        whether it would create one.

        What Kafka will refuse anyway is left without an assignment. Raises
        :class:`PlacementRefused`.
        """
        if topic.assignments:
            raise PlacementRefused(
                ErrorCode.invalid_replica_assignment, refusal_of_assignment(topic.name)
            )
        if (reason := refusal_of_factor(topic.name, topic.replication_factor)) is not None:
            raise PlacementRefused(ErrorCode.invalid_replication_factor, reason)
        layout = await self._look()
        partitions = int(topic.num_partitions)
        if partitions == BY_DEFAULT:
            alive = {b.rack for b in layout.brokers.values() if b.gateway and b.alive}
            topic = replace(topic, replication_factor=i16(max(len(alive), 1)))
            would = await validate(topic)
            if would.error_code is not ErrorCode.none:
                return topic
            partitions = int(would.num_partitions)
        if not 0 < partitions <= MOST_PARTITIONS:
            return topic
        placed = await _placed(topic.name, layout, partitions, None)
        return replace(
            topic,
            num_partitions=i32(BY_DEFAULT),
            replication_factor=i16(BY_DEFAULT),
            assignments=tuple(
                CreatableReplicaAssignment(
                    partition_index=i32(n), broker_ids=tuple(map(BrokerId, replicas))
                )
                for n, replicas in enumerate(placed)
            ),
        )

    async def growth(self, asked: Any) -> Any:
        """``asked`` of a CreatePartitions, of any version, with an assignment for what is new.

        New partitions have as many replicas as the topic's first one (Kafka refuses any other
        number), in as many racks. Raises :class:`PlacementRefused`.
        """
        if asked.assignments is not None:
            raise PlacementRefused(
                ErrorCode.invalid_replica_assignment, refusal_of_assignment(asked.name)
            )
        layout = await self._look()
        topic = layout.topics.get(asked.name)
        if topic is None or 0 not in topic.partitions:
            raise PlacementRefused(
                ErrorCode.request_timed_out,
                f"topic {asked.name} is not known to broker and gateway alike yet; try again",
            )
        new = asked.count - len(topic.partitions)
        if not 0 < new <= MOST_PARTITIONS:
            return asked
        factor = len(topic.partitions[0].replicas)
        schema: Any = type(asked)
        kind = nested(schema, "assignments")
        placed = await _placed(asked.name, layout, new, factor)
        return replace(
            asked,
            assignments=tuple(kind(broker_ids=tuple(map(BrokerId, r))) for r in placed),
        )

    async def _look(self) -> ClusterLayout:
        try:
            return await cluster_layout(self.cluster, self.gateways)
        except UnsupportedVersion as error:
            raise PlacementRefused(
                ErrorCode.unsupported_version,
                f"racks and replicas of the brokers cannot be known: {error}; {UPGRADE}",
            ) from None
        except TidelineError as error:
            log.warning("placement.not_decided", why=str(error))
            raise PlacementRefused(
                ErrorCode.request_timed_out,
                "racks and replicas of the brokers are not known now: try again",
            ) from None


async def _placed(
    topic: str, layout: ClusterLayout, partitions: int, factor: int | None
) -> list[tuple[int, ...]]:
    """In a thread: 10,000 partitions take more than half a second, in which this gateway would
    neither serve nor renew its lease."""
    return await asyncio.to_thread(_place, topic, layout, partitions, factor)


def _place(
    topic: str, layout: ClusterLayout, partitions: int, factor: int | None
) -> list[tuple[int, ...]]:
    try:
        placed = place(layout.brokers.values(), layout.load, partitions, factor)
    except ValueError as error:
        raise PlacementRefused(
            ErrorCode.invalid_replication_factor,
            f"topic {topic}: {error}; start more brokers, each with its gateway, or take some of "
            "the topic's replicas away first",
        ) from None
    if len(layout.racks) == 1:
        log.warning("replicas_in_one_rack", topic=topic, brokers=len(layout.brokers))
    return placed
