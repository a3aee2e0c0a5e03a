"""What the Admin trigger must know of a topic before it says yes, observed through the brokers and
Postgres.

The workflow's own rules judge it (:mod:`tideline.domain.preflight`). What cannot be seen in time,
or not from here (remote segments and their objects), is left to the workflow, which waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_fixed

from tideline import __version__
from tideline.background import cancel_and_wait, spawn
from tideline.control_plane import ControlPlane
from tideline.control_plane.lease_observer import LeaseObserver
from tideline.control_plane.model import in_force, unaccounted_reason
from tideline.domain.preflight import (
    INTERNAL_TOPICS,
    TIERING_SWITCH,
    GatewayHealth,
    PartitionHealth,
    PreflightObservation,
    judge,
)
from tideline.domain.topic_configs import COPY_DISABLE
from tideline.errors import RefusedError, TidelineError
from tideline.gateway.tracking.lease import boot_clock
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import KafkaObserver, TopicLayout
from tideline.kafka.partition_health import partition_health
from tideline.kafka.topic_observer import TopicObserver

T = TypeVar("T")
_Gateways = tuple[tuple[GatewayHealth, ...], tuple[str, ...]]
"""The registered ones, and why replaced processes may still run."""

TIMEOUT_MS = 5_000
METADATA_LAG_S = 3.0
PATIENCE_S = 5.0
"""Of one request, for all that may be left undecided; longer than a lease of the default by more
than Kafka takes to judge the request first, so that a gateway that died is found."""
LOOK_AGAIN_S = 0.1
SEEN_FOR_S = 5.0
"""A request may name many topics, and their gateways are the same."""


class Eligibility:
    """Asks for a topic what the preflight asks, as far as it is known within the patience."""

    def __init__(self, cluster: KafkaCluster, control_plane: ControlPlane) -> None:
        self._cluster = cluster
        self._control_plane = control_plane
        self._observer = KafkaObserver(cluster, TIMEOUT_MS)
        self._topics = TopicObserver(cluster, TIMEOUT_MS)
        self._leases = LeaseObserver(control_plane, lambda: boot_clock() * 1000)
        self._seen: tuple[float, _Gateways] | None = None

    async def topic_id(self, topic: str, changes: Mapping[str, str | None], ends: float) -> UUID:
        """The id of a topic that nothing known by ``ends``, on the loop's clock, keeps from
        migrating once ``changes`` (configs of the same request) hold.

        Asks again for a few seconds while a broker does not know a new topic. Raises
        :class:`RefusedError` naming value, rule and remedy, and a :class:`TidelineError` of the
        part that did not say what the topic is, or who attests that its brokers are closed.
        """
        # Before anything else is asked: only a lease's time from now on tells who is silent.
        gateways = spawn(_by(ends, self._gateways()), "gateways-alive")
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception(
                    lambda error: isinstance(error, KafkaError) and error.retriable
                ),
                stop=stop_after_delay(METADATA_LAG_S),
                wait=wait_fixed(LOOK_AGAIN_S),
                reraise=True,
            ):
                with attempt:
                    layout, observed = await self._observed(topic, changes, gateways, ends)
        finally:
            await cancel_and_wait(gateways)
        report = judge(observed)
        if layout is None or report.refused:
            raise RefusedError(f"topic {topic} cannot become diskless: {report.told()}")
        return layout.topic_id

    async def _observed(
        self,
        topic: str,
        changes: Mapping[str, str | None],
        watched: asyncio.Task[_Gateways | None],
        ends: float,
    ) -> tuple[TopicLayout | None, PreflightObservation]:
        cluster_id = await self._cluster.cluster_id()
        layout = await self._observer.topic(topic)
        if layout is None:
            internal = topic in INTERNAL_TOPICS
            return None, PreflightObservation(topic=topic, topic_id=None, internal=internal)
        found = await self._topics.configs(topic)
        configs = {key: entry.value for key, entry in found.items() if entry.value is not None}
        configs |= {key: value for key, value in changes.items() if value is not None}
        nodes = sorted(await self._cluster.nodes())
        attested = in_force(await self._control_plane.attestations(cluster_id))
        partitions, groups, acls, switches, durability, gateways = await asyncio.gather(
            self._partitions(layout, configs, ends),
            _by(ends, self._topics.groups_on(topic)),
            _by(ends, self._topics.acls(topic)),
            _by(ends, self._switches(nodes)),
            _by(ends, self._control_plane.check_synchronous_commit()),
            watched,
        )
        return layout, PreflightObservation(
            topic=topic,
            topic_id=layout.topic_id.hex,
            internal=layout.internal,
            configs=configs,
            partitions=partitions,
            share_groups=None if groups is None else groups[0],
            tiering_enabled_on_brokers=None if switches is None else all(switches),
            remote_objects=None,
            claimed_not_there=None,
            transactional_ids=None,
            acls=acls,
            brokers=tuple(nodes),
            synchronous_commit=None if durability is None else durability.synchronous_commit,
            gateways=None if gateways is None else gateways[0],
            unaccounted=() if gateways is None else gateways[1],
            attested=attested,
            cluster_id=cluster_id,
            tideline_version=__version__,
        )

    async def _partitions(
        self, layout: TopicLayout, configs: Mapping[str, str], ends: float
    ) -> tuple[PartitionHealth, ...]:
        """Looks again while a partition has no leader, and leadership may only be moving.

        Where its log ends matters only to a topic that is not copied to remote storage: of that
        one a leader that does not answer is an error.
        """
        copied = (
            configs.get("remote.storage.enable", "false").lower() == "true"
            and configs.get(COPY_DISABLE, "false").lower() != "true"
        )
        while True:
            found = await _by(ends, partition_health(self._observer, self._topics, layout))
            over = asyncio.get_running_loop().time() + LOOK_AGAIN_S > ends
            if found is not None and (over or all(p.leader >= 0 for p in found)):
                return found
            if found is None and over:
                break
            await asyncio.sleep(LOOK_AGAIN_S)
            layout = await self._observer.topic(layout.name) or layout
        if not copied:
            raise KafkaError(ErrorCode.leader_not_available, f"the leaders of {layout.name}")
        return tuple(
            PartitionHealth(row.partition, row.leader, row.replicas, row.in_sync, 0, 0)
            for row in layout.partitions.values()
        )

    async def _switches(self, nodes: list[int]) -> list[bool]:
        found = await asyncio.gather(
            *(self._topics.broker_config(n, TIERING_SWITCH) for n in nodes)
        )
        return [switch == "true" for switch in found]

    async def _gateways(self) -> _Gateways:
        if self._seen is None or boot_clock() - self._seen[0] > SEEN_FOR_S:
            health = self._leases.health(await self._leases.watched())
            unaccounted = await self._control_plane.unaccounted_incarnations()
            self._seen = boot_clock(), (health, tuple(map(unaccounted_reason, unaccounted)))
        return self._seen[1]


async def _by(ends: float, part: Awaitable[T]) -> T | None:
    """``None``: it was not learned by ``ends``, on the loop's clock."""
    try:
        async with asyncio.timeout_at(ends):
            return await part
    except (TidelineError, TimeoutError):
        return None
