"""Whom clients are told to ask for tracked partitions: in Metadata and DescribeTopicPartitions, and
in the hint of a Fetch to a nearer replica (KIP-392).

The rule is :mod:`tideline.domain.leader_choice`. Of an answer only ``leader`` changes, and the
error that there is none; replicas, ISR and the leader epoch stay Kafka's (seed 000), so that
clients neither take the answer for an older one nor for news.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from uuid import UUID

import structlog
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId
from prometheus_client import Counter

from tideline.background import cancel_and_wait, keep
from tideline.domain.ids import TopicIdPartition
from tideline.domain.leader_choice import (
    NamedLeader,
    Placement,
    Why,
    leader_for,
    may_be_led_elsewhere,
    nearer_replica,
)
from tideline.domain.request_handling import RouteKind
from tideline.errors import TidelineError
from tideline.gateway.context import ApiKey
from tideline.gateway.metrics import (
    SUFFIX_BYTES,
    TRANSFORMER_FALLBACK,
    TRANSFORMER_NEARER,
    TRANSFORMER_ROUTED_AROUND,
)
from tideline.gateway.tracking.peers import Peers
from tideline.gateway.tracking.view import TrackingView
from tideline.gateway.zones import ClientZones
from tideline.kafka.client import KafkaCluster
from tideline.kafka.decoding import AT_ONCE_PARTITIONS

log = structlog.get_logger()
READS_FOLLOWERS_SINCE = 8
"""Version of Metadata that came with the Fetch that followers answer (11; Kafka 2.3)."""
PATIENCE_S = 0.5
"""How long a fetch waits to hear where its partition is; without that it is served here."""
KNOWN_FOR_S, UNKNOWN_FOR_S = 60.0, 5.0
"""How long a placement is gone by, and when Kafka is asked again after it has not said."""
NOBODY_LEADS = frozenset({ErrorCode.leader_not_available, ErrorCode.listener_not_found})
_COUNTERS = {
    Why.ZONE: TRANSFORMER_NEARER,
    Why.ROUTED_AROUND: TRANSFORMER_ROUTED_AROUND,
    Why.FALLBACK: TRANSFORMER_FALLBACK,
}


@cache
def _suffix_bytes(direction: str, where: str) -> Counter:
    """Looked up once: each request of the suffix counts."""
    return SUFFIX_BYTES.labels(direction, where)


@dataclass(frozen=True, slots=True)
class Client:
    """What a request tells of who asks."""

    client_id: str | None
    reads_followers: bool

    @classmethod
    def of(cls, client_id: str | None, api_key: int, version: int) -> Client:
        new = api_key == ApiKey.DESCRIBE_TOPIC_PARTITIONS or version >= READS_FOLLOWERS_SINCE
        return cls(client_id, new)


class LeaderNaming:
    """Rewrites leaders, and remembers where Kafka has the partitions that it looked at."""

    def __init__(
        self,
        tracking: TrackingView,
        peers: Peers,
        cluster: KafkaCluster,
        *,
        node: int,
        enabled: bool,
    ) -> None:
        self._tracking = tracking
        self.peers = peers
        self.zones = ClientZones(peers)
        self._cluster = cluster
        self._node = node
        self._enabled = enabled
        self._placements: dict[TopicIdPartition, Placement] = {}
        self._ask_again_at: dict[UUID, float] = {}
        """By topic: when its placements are asked for anew, on the event loop's clock."""
        self._away: dict[TopicIdPartition, Why] = {}
        """Partitions whose leader does not live, by what was logged of them last."""
        self._tasks: list[asyncio.Task[None]] = []
        tracking.changed.add(self._routes_changed)

    def start(self) -> None:
        if self._enabled or self.peers.always:
            self.peers.start()
        self._tasks.append(keep(self._follow_zones(), "zones"))

    async def close(self) -> None:
        await cancel_and_wait(*self._tasks)
        await self.peers.close()

    def is_due(self) -> bool:
        """Whether an answer may have to be looked into."""
        tracking = self._tracking
        if not self._enabled or tracking.stopped is not None:
            return False
        return tracking.has_suffixes() and self.peers.known

    async def rewritten(self, answer: Any, client: Client) -> Any:
        """The answer of either API, itself if nothing changes. Others have their turn in between:
        an answer may name all partitions of a cluster."""
        self._note_brokers(answer)
        if not self.is_due() or not self.peers.live:
            return answer
        topics, looked = [], 0
        zone = self.zones.of(client.client_id)
        for topic in answer.topics:
            topics.append(self._topic(topic, client, zone))
            looked += len(topic.partitions)
            if looked > AT_ONCE_PARTITIONS:
                looked = 0
                await asyncio.sleep(0)
        if all(new is old for new, old in zip(topics, answer.topics, strict=True)):
            return answer
        return replace(answer, topics=tuple(topics))

    async def nearer(self, at: TopicIdPartition, zone: str) -> int | None:
        """The replica of a partition with B0 to which a consumer in ``zone`` is sent on; ``None``:
        it is served here. Kafka is asked where the partition is, once in a while."""
        if not zone or zone == self.peers.zone or not self.is_due():
            return None
        if not may_be_led_elsewhere(self._tracking.partition(at.topic_id, at.partition)):
            return None
        await self._learn(at.topic_id)
        placement = self._placements.get(at)
        route = self._tracking.partition(at.topic_id, at.partition)
        if placement is None:
            return None
        return nearer_replica(at, route, placement, self.peers.live, zone, here=self._node)

    async def _learn(self, topic_id: UUID) -> None:
        """Where Kafka has the topic's partitions, as far as it says so at once."""
        now = asyncio.get_running_loop().time()
        topic = self._tracking.topic_by_id(topic_id)
        if topic is None or now < self._ask_again_at.get(topic_id, 0.0):
            return
        self._ask_again_at[topic_id] = now + UNKNOWN_FOR_S
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = await self._cluster.described([topic.name])
        except (TidelineError, TimeoutError) as error:
            log.info("transformer.placement_not_known", topic=topic.name, why=str(error))
            return
        self._note_brokers(answer)
        for found in answer.topics:
            if found.topic_id == topic_id:
                self._note_placements(topic_id, found.partitions)

    async def _follow_zones(self) -> None:
        """Which brokers and racks there are, asked of Kafka also while no client asks here."""
        while True:
            wait_s = KNOWN_FOR_S
            try:
                self._note_brokers(await self._cluster.described([]))
            except TidelineError:
                wait_s = UNKNOWN_FOR_S
            await asyncio.sleep(wait_s)

    def _note_brokers(self, answer: Any) -> None:
        brokers = getattr(answer, "brokers", ())
        if brokers and hasattr(brokers[0], "rack"):
            self.peers.brokers_are({int(b.node_id): b.rack for b in brokers})

    def _note_placements(self, topic_id: UUID, rows: Iterable[Any]) -> None:
        self._ask_again_at[topic_id] = asyncio.get_running_loop().time() + KNOWN_FOR_S
        for row in rows:
            at = TopicIdPartition(topic_id, int(row.partition_index))
            if self._tracking.partition(topic_id, at.partition).kind is RouteKind.SUFFIX:
                self._placements[at] = _placement(row)

    def count(self, direction: str, size: int, zone: str | None) -> None:
        """Note ``size`` bytes of the suffix, ``produced`` by or ``fetched`` by a client in
        ``zone``."""
        if size:
            here = self.peers.zone
            known = bool(zone) and here is not None
            where = ("same" if zone == here else "other") if known else "unknown"
            _suffix_bytes(direction, where).inc(size)

    def _topic(self, topic: Any, client: Client, zone: str | None) -> Any:
        topic_id = self._id_of(topic)
        if topic_id is None:
            return topic
        self._note_placements(topic_id, topic.partitions)
        noted: dict[int, _Noted] = {}
        rows = tuple(self._row(topic_id, row, client, zone, noted) for row in topic.partitions)
        _log(str(topic.name), noted)
        if all(new is old for new, old in zip(rows, topic.partitions, strict=True)):
            return topic
        return replace(topic, partitions=rows)

    def _id_of(self, topic: Any) -> UUID | None:
        """The id of a topic that is tracked; of a version without ids the one of its name."""
        if getattr(topic, "topic_id", None) is not None:
            known = self._tracking.topic_by_id(topic.topic_id)
        else:
            known = self._tracking.topic_by_name(topic.name) if topic.name is not None else None
        return known.topic_id if known is not None else None

    def _row(
        self,
        topic_id: UUID,
        row: Any,
        client: Client,
        zone: str | None,
        noted: dict[int, _Noted],
    ) -> Any:
        at = TopicIdPartition(topic_id, int(row.partition_index))
        route = self._tracking.partition(topic_id, at.partition)
        if not may_be_led_elsewhere(route):
            return row
        live = self.peers.live
        placement = _placement(row)
        named = leader_for(at, route, placement, live, zone, reads_followers=client.reads_followers)
        if (counter := _COUNTERS.get(named.why)) is not None:
            counter.inc()
        if named.why in (Why.ROUTED_AROUND, Why.FALLBACK):
            if self._away.get(at) is not named.why:
                self._away[at] = named.why
                offline = frozenset(node for node in placement.replicas if node not in live)
                noted[at.partition] = _Noted(named, offline)
        elif placement.leader in live and self._away.pop(at, None) is not None:
            noted[at.partition] = _Noted(named, frozenset())
        if named.node == placement.leader:
            return row
        code = ErrorCode.none if row.error_code in NOBODY_LEADS else row.error_code
        return replace(row, leader_id=BrokerId(named.node), error_code=code)

    def _routes_changed(self, logs: Iterable[TopicIdPartition]) -> None:
        for at in logs:
            if self._tracking.partition(at.topic_id, at.partition).kind is not RouteKind.SUFFIX:
                self._placements.pop(at, None)
                self._away.pop(at, None)
                self._ask_again_at.pop(at.topic_id, None)


def _placement(row: Any) -> Placement:
    nodes = tuple(map(int, row.replica_nodes)), tuple(map(int, row.isr_nodes))
    return Placement(int(row.leader_id), *nodes)


@dataclass(frozen=True, slots=True)
class _Noted:
    """What is logged of a partition."""

    named: NamedLeader
    offline: frozenset[int]
    """Its replicas beside which no gateway lives, or whose broker does not."""


def _log(topic: str, noted: Mapping[int, _Noted]) -> None:
    """Once per change and topic, not per partition: a gateway that dies may be named for many."""
    by_why: dict[Why, dict[int, _Noted]] = {}
    for partition, one in noted.items():
        by_why.setdefault(one.named.why, {})[partition] = one
    for why, partitions in by_why.items():
        leaders = {partition: one.named.node for partition, one in partitions.items()}
        offline = sorted(frozenset().union(*(one.offline for one in partitions.values())))
        about = {"topic": topic, "offline": offline, "routed_to": leaders}
        if why is Why.FALLBACK:
            log.warning("transformer.all_replicas_offline", **about)
        elif why is Why.ROUTED_AROUND:
            log.info("transformer.offline_replica_routed_around", **about)
        else:
            log.info("transformer.leader_is_back", topic=topic, leaders=leaders)
