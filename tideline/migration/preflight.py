"""Observe everything that the preflight's checks judge, once. Changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tideline import __version__
from tideline.control_plane.model import GatewayRegistration, in_force, unaccounted_reason
from tideline.domain.broker_offers import offers_of
from tideline.domain.coverage import object_problem, txn_indexes_told_from
from tideline.domain.ids import TopicIdPartition
from tideline.domain.messages import PartitionRef
from tideline.domain.options import MigrationOptions
from tideline.domain.preflight import (
    TIERING_SWITCH,
    GroupMember,
    PreflightObservation,
    PreflightReport,
    RemoteObjects,
    judge,
)
from tideline.domain.remote_log import RemoteSegment, SegmentState, stuck_copies
from tideline.errors import TidelineError
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.observer import TopicLayout
from tideline.kafka.partition_health import partition_health
from tideline.kafka.remote_log_metadata import TOPIC as REMOTE_LOG_METADATA
from tideline.migration.connections import WorkerServices
from tideline.migration.prefix import claimed_prefix
from tideline.migration.side_by_side import side_by_side

T = TypeVar("T")

STUCK_AFTER_MS = 15 * 60_000
"""A copy that began this long ago and never finished counts as stuck."""


def _nobody_waits() -> None:
    """For a caller that need not be told that the preflight goes on."""


async def run_preflight(
    services: WorkerServices,
    topic: str,
    options: MigrationOptions | None = None,
    alive: Callable[[], None] = _nobody_waits,
) -> PreflightReport:
    """Every check of ``topic``, for a dry run and for the workflow alike; ``alive`` is called
    between the observations.

    A part that does not answer becomes a check that is refused; only Kafka itself must answer.
    Raises :class:`KafkaUnavailable` when it does not.
    """
    return judge(await observe(services, topic, options or MigrationOptions(), alive))


async def observe(
    services: WorkerServices,
    topic: str,
    options: MigrationOptions,
    alive: Callable[[], None] = _nobody_waits,
) -> PreflightObservation:
    """One observation of the topic, the cluster, Postgres and the object store."""
    layout = await services.observer.topic(topic)
    if layout is None:
        return PreflightObservation(topic=topic, topic_id=None)
    alive()
    nodes = sorted(await services.cluster.nodes())
    configs = {
        key: entry.value or "" for key, entry in (await services.topics.configs(topic)).items()
    }
    partitions = await partition_health(services.observer, services.topics, layout)
    alive()
    (
        registrations,
        durability,
        tracked,
        groups,
        switches,
        bucket_error,
    ) = await asyncio.gather(
        _or_none(services.leases.watched(alive)),
        _or_none(services.control_plane.check_synchronous_commit()),
        _or_none(services.control_plane.tracked_topic(topic)),
        _or_none(services.topics.groups_on(topic)),
        _or_none(
            asyncio.gather(*(services.topics.broker_config(n, TIERING_SWITCH) for n in nodes))
        ),
        services.inventory.check(),
    )
    alive()
    level = await _or_none(services.topics.metadata_version())
    offered = await _or_none(services.topics.configs_of_brokers())
    attested = await _or_none(_attested(services))
    unaccounted = await _or_none(services.control_plane.unaccounted_incarnations())
    metadata_error, stuck, objects = await _remote_metadata(services, layout, configs, alive)
    claimed = await _or_none(_claimed_not_there(services, layout, configs, alive))
    acls, transactional = await asyncio.gather(
        _or_none(services.topics.acls(topic)),
        _or_none(_transactional_ids(services, layout, alive)),
    )
    held = tracked.overrides if tracked is not None else {}
    return PreflightObservation(
        topic=topic,
        topic_id=layout.topic_id.hex,
        internal=layout.internal or topic == REMOTE_LOG_METADATA,
        configs=configs,
        partitions=partitions,
        share_groups=None if groups is None else groups[0],
        tiering_enabled_on_brokers=None if switches is None else all(s == "true" for s in switches),
        remote_metadata_error=metadata_error,
        stuck_copies=stuck,
        bucket_error=bucket_error,
        remote_objects=objects,
        claimed_not_there=claimed,
        transactional_ids=transactional,
        acls=acls,
        brokers=tuple(nodes),
        metadata_version=level,
        offers=None if offered is None else offers_of(offered),
        synchronous_commit=None if durability is None else durability.synchronous_commit,
        standbys_not_waited_for=() if durability is None else tuple(durability.not_waited_for),
        gateways=None if registrations is None else services.leases.health(registrations),
        unaccounted=tuple(unaccounted_reason(g) for g in unaccounted or ()),
        outside_members=None if groups is None else _outside(groups[1], registrations or ()),
        attested=None if attested is None else attested[1],
        cluster_id="" if attested is None else attested[0],
        tiering_default_age_ms=services.settings.tiering_default_age_ms,
        already=tracked.status.value if tracked is not None and held else None,
        tideline_version=__version__,
    )


async def _attested(services: WorkerServices) -> tuple[str, str]:
    """The cluster's id, and who attests that its brokers are closed to clients."""
    cluster_id = await services.cluster.cluster_id()
    return cluster_id, in_force(await services.control_plane.attestations(cluster_id))


async def _or_none(part: Awaitable[T]) -> T | None:
    try:
        return await part
    except TidelineError:
        return None


async def _remote_metadata(
    services: WorkerServices,
    layout: TopicLayout,
    configs: dict[str, str],
    alive: Callable[[], None],
) -> tuple[str | None, int, RemoteObjects | None]:
    """Why the metadata cannot be read, the stuck copies, and the objects of the finished ones."""
    if configs.get("remote.storage.enable") != "true":
        return None, 0, RemoteObjects(0)
    try:
        segments = await services.remote_log.topic_segments(layout.topic_id)
    except TidelineError as error:
        return str(error), 0, None
    alive()
    objects = await _or_none(_remote_objects(services, layout, segments, alive))
    return None, len(stuck_copies(segments, int(time.time() * 1000), STUCK_AFTER_MS)), objects


async def _remote_objects(
    services: WorkerServices,
    layout: TopicLayout,
    segments: Sequence[RemoteSegment],
    alive: Callable[[], None],
) -> RemoteObjects:
    """Compare every finished segment with the bucket. One that retention takes meanwhile is no
    fault: what looks bad is looked for in the metadata once more."""
    finished = {s for s in segments if s.state is SegmentState.COPY_SEGMENT_FINISHED}
    by_log: dict[TopicIdPartition, list[RemoteSegment]] = {}
    for segment in finished:
        by_log.setdefault(segment.log, []).append(segment)

    async def compare(log: TopicIdPartition) -> dict[RemoteSegment, str]:
        objects = await services.inventory.objects(layout.name, log)
        alive()
        told_from = txn_indexes_told_from(by_log[log])
        return {
            segment: problem
            for segment in by_log[log]
            if (problem := object_problem(segment, objects.get(segment.segment_id), told_from))
        }

    bad = {s: p for found in await side_by_side(compare, by_log) for s, p in found.items()}
    if bad:
        still = set(await services.remote_log.topic_segments(layout.topic_id))
        bad = {segment: problem for segment, problem in bad.items() if segment in still}
    told = sorted(bad.items(), key=lambda item: (item[0].log.partition, item[0].start_offset))
    return RemoteObjects(
        len(finished),
        tuple(
            f"partition {s.log.partition}, {s.start_offset:020d}-{s.segment_id}: {problem}"
            for s, problem in told
        ),
    )


async def _claimed_not_there(
    services: WorkerServices,
    layout: TopicLayout,
    configs: dict[str, str],
    alive: Callable[[], None],
) -> tuple[str, ...]:
    """Partitions that were disabled and enabled again, and whose local records are not safe yet.
    That retention takes a segment meanwhile is no fault: what looks so is looked at once more.

    Raises ``KafkaUnavailable`` while a replica does not say what it takes for tiered.
    """
    if configs.get("remote.storage.enable") != "true":
        return ()

    async def look(number: int) -> str:
        ref = PartitionRef(layout.name, layout.topic_id.hex, number)
        found = await claimed_prefix(services, ref, layout.partitions[number])
        alive()
        why = found.problem()
        if found.silent:
            raise KafkaUnavailable(f"{layout.name}-{number}: {why}")
        return f"partition {number}: {why}" if why else ""

    led = [number for number, where in sorted(layout.partitions.items()) if where.leader >= 0]
    bad = [number for number, why in zip(led, await side_by_side(look, led), strict=True) if why]
    return tuple(why for why in await side_by_side(look, bad) if why)


async def _transactional_ids(
    services: WorkerServices, layout: TopicLayout, alive: Callable[[], None]
) -> tuple[str, ...]:
    async def producers(partition: int) -> frozenset[int]:
        leader = layout.partitions[partition].leader
        found = await services.topics.producers(layout.name, partition, leader)
        alive()
        return frozenset(p.producer_id for p in found)

    led = [number for number, where in layout.partitions.items() if where.leader >= 0]
    found = await side_by_side(producers, led)
    return await services.topics.transactional_ids(frozenset().union(*found))


def _outside(
    members: Sequence[GroupMember], gateways: Sequence[GatewayRegistration]
) -> tuple[GroupMember, ...]:
    hosts = {g.address.rpartition(":")[0].strip("[]") for g in gateways if g.status != "retired"}
    return tuple(member for member in members if member.host not in hosts)
