"""Which brokers a cluster has, in which racks, and which replicas are on them: what placement is
decided by."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.describe_cluster.v2.response import DescribeClusterResponse
from kio.schema.errors import ErrorCode

from tideline.domain.placement import Broker, Load, Replicas, racks_of
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import KafkaObserver, TopicLayout

NAMED_AT_ONCE = 50
"""Topics that are named in one request: its answer must not hold the process up."""


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """Brokers and replicas as one broker knows them."""

    brokers: Mapping[int, Broker]
    topics: Mapping[str, TopicLayout]

    @property
    def racks(self) -> frozenset[str | None]:
        return racks_of(self.brokers.values())

    @property
    def load(self) -> Load:
        """A new one; who places adds to it."""
        return Load.of(self._replica_lists())

    def _replica_lists(self) -> Iterator[Replicas]:
        for topic in self.topics.values():
            for partition in topic.partitions.values():
                yield partition.replicas


async def cluster_layout(
    cluster: KafkaCluster, gateways: Collection[int], names: Sequence[str] | None = None
) -> ClusterLayout:
    """Every registered broker, fenced ones too, and these topics (``None``: all), asked now.

    ``gateways``: node ids of the brokers beside which a gateway stands. Raises
    :class:`KafkaUnavailable`, :class:`KafkaError`, :class:`UnsupportedVersion`.
    """
    brokers, topics = await asyncio.gather(_brokers(cluster, gateways), _topics(cluster, names))
    return ClusterLayout(brokers, topics)


async def _topics(cluster: KafkaCluster, names: Sequence[str] | None) -> Mapping[str, TopicLayout]:
    observer = KafkaObserver(cluster)
    if names is None:
        return await observer.all_topics()
    found: dict[str, TopicLayout | None] = {}
    for first in range(0, len(names), NAMED_AT_ONCE):
        found |= await observer.topics(names[first : first + NAMED_AT_ONCE])
    return {name: layout for name, layout in found.items() if layout is not None}


async def _brokers(cluster: KafkaCluster, gateways: Collection[int]) -> dict[int, Broker]:
    connection = await cluster.any()
    answer = await connection.send(
        DescribeClusterRequest(
            include_cluster_authorized_operations=False, include_fenced_brokers=True
        )
    )
    assert isinstance(answer, DescribeClusterResponse)
    if answer.error_code is not ErrorCode.none:
        raise KafkaError(answer.error_code, f"brokers of the cluster: {answer.error_message}")
    return {
        node: Broker(node, b.rack, alive=not b.is_fenced, gateway=node in gateways)
        for b in answer.brokers
        for node in [int(b.broker_id)]
    }
