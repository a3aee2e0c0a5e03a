"""Looks at the tiered storage of one topic: its state, what is left, and what may be changed.

Shared by the command line and by the activities, so that what a person is told before the start is
what the workflow decides by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from kio.schema.errors import ErrorCode

from tideline.control_plane.model import TopicStatus
from tideline.domain.config_changes import REMOTE_STORAGE, situation_of
from tideline.domain.ids import TopicIdPartition
from tideline.domain.messages import PartitionRef, TopicRef
from tideline.domain.preflight import INTERNAL_TOPICS, TIERING_SWITCH
from tideline.domain.remote_log import RemoteSegment
from tideline.domain.tiered_storage import (
    JUDGED,
    PATHS,
    Configs,
    Target,
    TieringState,
    configs_of,
    is_true,
    kafkas_refusal,
    local_retention,
    refused_while_tracked,
    state_of,
)
from tideline.domain.tiered_storage_change import (
    Remaining,
    Review,
    TieredStorageInput,
    users_local_retention,
    wanted_local_retention,
)
from tideline.domain.topic_configs import LOCAL_RETENTION_BYTES, LOCAL_RETENTION_MS
from tideline.errors import RefusedError
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import DEBUG_CONSUMER, OffsetSpec, PartitionLayout, TopicLayout
from tideline.migration.connections import WorkerServices
from tideline.migration.prefix import claimed_prefix
from tideline.migration.side_by_side import side_by_side

BROKER_DEFAULTS = {
    LOCAL_RETENTION_MS: "log.local.retention.ms",
    LOCAL_RETENTION_BYTES: "log.local.retention.bytes",
}
"""By key of a topic: the broker's, which counts when the topic has none of its own."""


@dataclass(frozen=True, slots=True)
class PartitionTiering:
    """One partition as its leader and remote storage have it. Ends are exclusive, but for
    ``highest_tiered``."""

    partition: int
    log_start: int
    local_start: int
    log_end: int
    highest_tiered: int
    """What Kafka takes for tiered, inclusive; -1: nothing, or tiered storage is off."""
    segments: int
    """In every state but deleted."""
    remote_bytes: int
    objects: int
    not_proven: str = ""
    """Why local retention must stay at the total; empty: all that is claimed is there."""


@dataclass(frozen=True, slots=True)
class TopicTiering:
    topic: str
    topic_id: str
    state: TieringState
    configs: dict[str, str | None]
    """Effective ones, of :data:`tideline.domain.tiered_storage.JUDGED`."""
    partitions: tuple[PartitionTiering, ...]

    @property
    def proven(self) -> bool:
        return not any(p.not_proven for p in self.partitions)


async def look(services: WorkerServices, topic: str) -> TopicTiering:
    """Raises :class:`RefusedError` when there is no such topic."""
    layout = await _layout(services, topic)
    found = await services.topics.configs(topic)
    configs = {key: found[key].value for key in JUDGED if key in found}
    segments = await _segments(services, layout.topic_id)
    tiers = is_true(configs.get(REMOTE_STORAGE))

    async def one(number: int) -> PartitionTiering:
        return await _partition(services, layout, number, segments, tiers=tiers)

    partitions = tuple(await side_by_side(one, sorted(layout.partitions)))
    left = any(p.segments or p.objects for p in partitions)
    state = state_of(configs, anything_left=left)
    return TopicTiering(topic, str(layout.topic_id), state, configs, partitions)


async def _partition(
    services: WorkerServices,
    layout: TopicLayout,
    number: int,
    segments: Mapping[TopicIdPartition, list[RemoteSegment]],
    *,
    tiers: bool,
) -> PartitionTiering:
    log, where = TopicIdPartition(layout.topic_id, number), layout.partitions[number]
    specs = (
        OffsetSpec.EARLIEST,
        OffsetSpec.EARLIEST_LOCAL,
        OffsetSpec.LATEST,
        OffsetSpec.LATEST_TIERED,
    )
    start, local, end, tiered = await asyncio.gather(
        *(_offset(services, layout.name, where, spec) for spec in specs)
    )
    objects = await services.inventory.objects(layout.name, log)
    mine = segments.get(log, [])
    why = ""
    if tiers:
        ref = PartitionRef(layout.name, layout.topic_id.hex, number)
        why = (await claimed_prefix(services, ref, where)).problem()
    return PartitionTiering(
        number,
        start,
        local,
        end,
        tiered if tiers else -1,
        len(mine),
        sum(segment.size_bytes for segment in mine),
        sum((found.log_bytes is not None) + len(found.kinds) for found in objects.values()),
        why,
    )


async def _offset(
    services: WorkerServices, topic: str, where: PartitionLayout, spec: OffsetSpec
) -> int:
    answer = await services.observer.offset(
        topic, where.partition, spec, node=where.leader, replica_id=DEBUG_CONSUMER
    )
    return answer.offset


async def _layout(services: WorkerServices, topic: str) -> TopicLayout:
    layout = await services.observer.topic(topic)
    if layout is None:
        raise RefusedError(
            f"topic {topic!r} does not exist: check the spelling, names are case-sensitive"
        )
    return layout


async def _segments(
    services: WorkerServices, topic_id: UUID
) -> dict[TopicIdPartition, list[RemoteSegment]]:
    """Those that the metadata do not call deleted, by partition."""
    try:
        found = await services.remote_log.topic_segments(topic_id)
    except KafkaError as error:
        if error.code is not ErrorCode.unknown_topic_or_partition:
            raise
        found = ()  # No topic of this cluster was ever tiered.
    by_log: dict[TopicIdPartition, list[RemoteSegment]] = {}
    for segment in found:
        by_log.setdefault(segment.log, []).append(segment)
    return by_log


async def remaining(services: WorkerServices, ref: TopicRef) -> Remaining:
    """What remote storage still has of the topic, partitions that came meanwhile included."""
    topic_id = UUID(ref.topic_id)
    segments = await _segments(services, topic_id)

    async def objects(number: int) -> int:
        log = TopicIdPartition(topic_id, number)
        found = await services.inventory.objects(ref.topic, log)
        return sum((each.log_bytes is not None) + len(each.kinds) for each in found.values())

    counts = await side_by_side(objects, await _partitions(services, ref))
    return Remaining(sum(map(len, segments.values())), sum(counts))


async def _partitions(services: WorkerServices, ref: TopicRef) -> range:
    """Those of now: a switch may wait for weeks, and partitions are added meanwhile."""
    layout = await services.observer.topic(ref.topic, topic_id=UUID(ref.topic_id))
    assert layout is not None
    return range(max(ref.partitions, len(layout.partitions)))


async def review(services: WorkerServices, ref: TopicRef, given: TieredStorageInput) -> Review:
    """May the topic be brought to the target? Changes nothing.

    Raises :class:`RefusedError`: in Kafka's own words where Kafka refuses a combination of configs
    that a step would set; with what to do instead where Tideline has a part of the topic.
    """
    topic, target = ref.topic, Target(given.target)
    if topic in INTERNAL_TOPICS:
        raise RefusedError(f"{topic!r} is one of Kafka's own topics: they are not tiered")
    await _refuse_tracked(services, topic, target)
    found = await services.topics.configs(topic)
    effective = {key: found[key].value for key in JUDGED if key in found}
    users = local_retention({key: e.value for key, e in found.items() if e.own})
    left = not (await remaining(services, ref)).nothing
    state = state_of(effective, anything_left=left)
    path = PATHS[state, target]
    if path.refused:
        raise RefusedError(f"{topic!r} is {state.value}: {path.refused}")
    wanted = wanted_local_retention(given, users_local_retention(given, users))
    await _refuse_as_kafka(services, topic, effective, [configs_of(s, wanted) for s in path.steps])
    return Review(state.value, users)


async def _refuse_tracked(services: WorkerServices, topic: str, target: Target) -> None:
    tracked = await services.control_plane.tracked_topic(topic)
    if tracked is None or tracked.status is TopicStatus.ABORTED:
        return
    rows = tracked.partitions.values()
    if why := refused_while_tracked(target, situation_of(rows, {})):
        shown = ", ".join(sorted({row.state.value for row in rows}))
        raise RefusedError(f"{topic!r} is tracked by Tideline ({shown}): {why}")


async def refuse_configs(services: WorkerServices, topic: str, changes: Configs) -> None:
    """Raises :class:`RefusedError` with Kafka's own message if Kafka would not take ``changes``."""
    found = await services.topics.configs(topic)
    effective = {key: found[key].value for key in JUDGED if key in found}
    await _refuse_as_kafka(services, topic, effective, [changes])


async def _refuse_as_kafka(
    services: WorkerServices, topic: str, before: Configs, steps: Iterable[Configs]
) -> None:
    nodes = sorted(await services.cluster.nodes())
    switches = [await services.topics.broker_config(n, TIERING_SWITCH) for n in nodes]
    enabled = all(is_true(switch) for switch in switches)
    defaults = {
        key: await services.topics.broker_config(nodes[0], name)
        for key, name in BROKER_DEFAULTS.items()
    }
    for changes in steps:
        changed = {k: defaults.get(k) if v is None else v for k, v in changes.items()}
        after = {**before, **changed}
        if why := kafkas_refusal(before, after, system_enabled=enabled):
            raise RefusedError(f"{topic!r}: Kafka refuses this, nothing was sent: {why}")
        before = after


async def turned_off(services: WorkerServices, ref: TopicRef) -> bool:
    """Every broker says that the topic is not tiered."""
    views = await services.topics.configs_by_broker(ref.topic)
    return not any(is_true(v[REMOTE_STORAGE].value) for v in views if REMOTE_STORAGE in v)


async def collect(services: WorkerServices, ref: TopicRef) -> int:
    """Delete what remote storage still has of a topic that is off; how many objects there were.

    Raises :class:`RefusedError` when a broker says that it is on: its segments are in use.
    """
    topic_id, collected = UUID(ref.topic_id), 0
    for number in await _partitions(services, ref):
        # Listed before the configs are looked at: whoever wakes late and finds it off deletes
        # nothing that was uploaded after it was turned on.
        keys = await services.inventory.keys(ref.topic, TopicIdPartition(topic_id, number))
        if not await turned_off(services, ref):
            raise RefusedError(f"tiered storage of {ref.topic!r} is on again: nothing is collected")
        if keys:
            await services.inventory.delete(keys)
            collected += len(keys)
    return collected
