"""How the replicas of diskless topics lie over the racks, and moving those that should lie
otherwise (seed 003, "Migration RF Normalization").

Nothing of it is kept in Postgres: where replicas are, and which are on their way, is Kafka's to
say, and a reassignment that was begun goes on without whoever began it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import TopicStatus, TrackedPartition, TrackedTopic
from tideline.domain.ids import TopicPartition
from tideline.domain.replica_spread import Assessment, PlacedPartition, Spread, assess, rack_name
from tideline.errors import RefusedError
from tideline.kafka.admin import KafkaAdmin
from tideline.kafka.client import KafkaCluster
from tideline.kafka.cluster_layout import cluster_layout
from tideline.kafka.observer import PartitionLayout
from tideline.kafka.topic_observer import TopicObserver

LOOK_EVERY_S = 0.5
"""Between two looks at reassignments that are waited for."""
LOOKS_AT_OLD_REPLICAS = 60
"""So often a partition may look as before although it was moved: a broker lags behind the
controller."""
STANDING = frozenset({"active", "fenced", "released"})
"""Gateways that stand beside their broker, though perhaps they do not run just now."""


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """One look at all diskless topics."""

    racks: tuple[str, ...]
    """Those that have a broker with a gateway."""
    partitions: tuple[Assessment, ...]
    moving: int
    """Partitions of the whole cluster that are being reassigned."""

    def of(self, topic: str | None) -> list[Assessment]:
        """The partitions of one topic, or all."""
        return [a for a in self.partitions if topic in (None, a.partition.topic)]

    @property
    def single_topics(self) -> int:
        """Topics with a partition of one replica, where there are racks for more."""
        singles = [a for a in self.partitions if a.spread is Spread.SINGLE]
        return len({a.partition.topic for a in singles})


@dataclass(slots=True)
class Normalised:
    """What a run did."""

    moved: dict[TopicPartition, Sequence[int]] = field(default_factory=dict)
    refused: dict[TopicPartition, str] = field(default_factory=dict)
    """By Kafka, with its code."""


class ReplicaKeeper:
    """Looks at replicas, and moves them."""

    def __init__(self, plane: ControlPlane, cluster: KafkaCluster, timeout_ms: int) -> None:
        self._plane, self._cluster = plane, cluster
        self._topics = TopicObserver(cluster, timeout_ms)
        self._admin = KafkaAdmin(cluster, timeout_ms)

    async def look(self, *, whole: bool) -> ReplicaReport:
        """Judge every partition of every diskless topic.

        ``whole``: brokers are weighed by the replicas of all topics, which costs a look at all of
        them; else by those of diskless ones. Raises when Postgres or Kafka does not answer.
        """
        tracked = {
            topic.name: topic
            for topic in await self._plane.tracked_topics()
            if topic.topic_id is not None and topic.status is TopicStatus.ACTIVE
        }
        gateways = {g.broker_id for g in await self._plane.list_gateways() if g.status in STANDING}
        # Before the layout: what ends in between is looked at once more.
        moving = await self._topics.all_reassigning()
        layout = await cluster_layout(self._cluster, gateways, None if whole else sorted(tracked))
        load = layout.load
        judged = []
        for name, topic in sorted(tracked.items()):
            found = layout.topics.get(name)
            if found is None or found.topic_id != topic.topic_id:
                continue  # the identity reconciler's finding
            for number, row in sorted(topic.partitions.items()):
                if number in found.partitions and row.boundary >= 0:
                    placed = _placed(topic, row, found.partitions[number], moving)
                    judged.append(assess(placed, layout.brokers, load))
        racks = tuple(sorted(map(rack_name, layout.racks)))
        return ReplicaReport(racks, tuple(judged), len(moving))

    async def begin(
        self,
        report: ReplicaReport,
        at_once: int,
        topic: str | None = None,
        but: Collection[TopicPartition] = (),
    ) -> Normalised:
        """Begin to move what ``report`` says should be moved, until ``at_once`` partitions of the
        cluster are being reassigned."""
        wanted = {
            name: found.target
            for found in report.of(topic)
            if found.target is not None and (name := _name(found)) not in but
        }
        room = max(at_once - report.moving, 0)
        begun = dict(list(wanted.items())[:room])
        if not begun:
            return Normalised()
        refused = await self._admin.assign_replicas(begun)
        return Normalised(
            {name: target for name, target in begun.items() if name not in refused},
            {name: code.name.upper() for name, code in refused.items()},
        )

    async def normalise(
        self,
        topic: str | None,
        at_once: int,
        told: Callable[[Mapping[TopicPartition, Sequence[int]]], None],
    ) -> Normalised:
        """Move what should be moved, so many partitions at once, until nothing is left to do and
        nothing of it under way. ``told``: what was begun. What it has begun goes on when it is
        cancelled; a later run goes on where this one was."""
        done, looks = Normalised(), Counter[TopicPartition]()
        while True:
            report = await self.look(whole=True)
            for name in (_name(a) for a in report.of(topic) if a.target is not None):
                looks[name] += name in done.moved
                if looks[name] > LOOKS_AT_OLD_REPLICAS:
                    done.refused[name] = "taken back by somebody"
            begun = await self.begin(report, at_once, topic, {*done.moved, *done.refused})
            done.refused |= begun.refused
            if begun.moved:
                done.moved |= begun.moved
                told(begun.moved)
            if not any(
                found.partition.moving or found.target is not None
                for found in report.of(topic)
                if _name(found) not in done.refused
            ):
                return done
            await asyncio.sleep(LOOK_EVERY_S)

    async def take_back(self, topic: str) -> list[int]:
        """Take back the reassignments of one diskless topic that are under way, whoever began
        them; their partitions. Raises :class:`RefusedError` if the topic is not diskless."""
        report = await self.look(whole=False)
        found = report.of(topic)
        if not found:
            raise RefusedError(not_diskless(topic))
        moving = [_name(each) for each in found if each.partition.moving]
        if moving:
            await self._admin.assign_replicas(dict.fromkeys(moving))
        return [each.partition for each in moving]


def not_diskless(topic: str) -> str:
    """Why there is nothing to say of a topic's replicas."""
    return (
        f"topic {topic!r} has no diskless partition: its replicas are its owner's. "
        f"`tideline status {topic}` tells where it stands"
    )


def _name(found: Assessment) -> TopicPartition:
    return TopicPartition(found.partition.topic, found.partition.partition)


def _placed(
    topic: TrackedTopic,
    row: TrackedPartition,
    layout: PartitionLayout,
    moving: Collection[TopicPartition],
) -> PlacedPartition:
    has_prefix = row.boundary > 0 and row.partly_in_kafka
    return PlacedPartition(
        topic=topic.name,
        partition=row.partition,
        replicas=layout.replicas,
        in_sync=frozenset(layout.in_sync),
        leader=layout.leader,
        has_prefix=has_prefix,
        ready=not topic.migration_unfinished and (row.ready or not has_prefix),
        moving=TopicPartition(topic.name, row.partition) in moving,
    )
