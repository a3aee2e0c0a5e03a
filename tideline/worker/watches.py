"""Compares Kafka with Postgres for ever: log ends with B0, and topic configs with what is held.

Nothing is changed or decided here. What is found goes into Postgres, where ``tideline status``
shows it, and into gauges; a tail past B0 is exported, so that nothing a broker has taken is lost
unseen (docs/failures.md says what to do).
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from uuid import UUID

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from tideline.control_plane.model import TopicStatus, TrackedPartition, TrackedTopic
from tideline.domain.ids import TopicIdPartition
from tideline.domain.watched import (
    Finding,
    FindingKind,
    WatchedPartition,
    config_findings,
    log_end_findings,
)
from tideline.errors import TidelineError
from tideline.kafka.batches import InvalidBatch
from tideline.kafka.observer import DEBUG_CONSUMER, OffsetAnswer, OffsetSpec, TopicLayout
from tideline.migration.connections import WorkerServices
from tideline.migration.side_by_side import side_by_side
from tideline.migration.tails import export_tail

log = structlog.get_logger()

LOOK_EVERY_S = 20.0
"""Two looks fit into a minute: what is not a tail is told when the second one sees it again, since
brokers follow a change of configs, and replicas each other, one by one."""
AT_ONCE = 8
"""Topics that are looked at side by side."""


class WatchGauges:
    """What the newest look at each topic found."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def by_partition(name: str, text: str) -> Gauge:
            return Gauge(name, text, ["topic", "partition"], registry=registry)

        self._offsets = {
            FindingKind.TAIL: by_partition(
                "inkless_boundary_tail_offsets",
                "Offsets past B0 in a replica's classic log, where there are any",
            ),
            FindingKind.SHORT: by_partition(
                "inkless_boundary_short_offsets",
                "Offsets below B0 that a replica's classic log ends before, where there are any",
            ),
        }
        self._configs = Gauge(
            "inkless_config_drift",
            "1 for a config that was changed at a broker, past the gateways",
            ["topic", "key"],
            registry=registry,
        )
        self._silent = Gauge(
            "inkless_boundary_unwatched_replicas",
            "Replicas whose log end the newest look could not compare with B0",
            registry=registry,
        )
        self._looked = Gauge(
            "inkless_watch_last_look_timestamp_seconds",
            "When all tracked topics were last compared with Kafka",
            registry=registry,
        )

    def update(self, found: Mapping[str, Iterable[Finding]], silent: int, now_s: float) -> None:
        for gauge in (*self._offsets.values(), self._configs):
            gauge.clear()
        for topic, findings in found.items():
            for finding in findings:
                if finding.kind is FindingKind.CONFIG:
                    self._configs.labels(topic, finding.subject).set(1)
                else:
                    gauge = self._offsets[finding.kind]
                    gauge.labels(topic, finding.subject).set(finding.detail["offsets"])
        self._silent.set(silent)
        self._looked.set(now_s)


class KafkaWatch:
    """One per worker; several workers find the same."""

    def __init__(self, services: WorkerServices, gauges: WatchGauges | None = None) -> None:
        self._services = services
        self._gauges = gauges or WatchGauges()
        self._before: dict[UUID, frozenset[tuple[FindingKind, str]]] = {}
        """What the look before found, by topic id."""
        self._exported: dict[TopicIdPartition, dict[str, object]] = {}
        """Of tails: what was kept, and of which log ends."""
        self._told: dict[UUID, list[Finding]] = {}
        """What Postgres has as found and not ended; of a topic that is missing here, perhaps more
        than is true."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.look()
            except TidelineError as error:
                log.warning("watch_could_not_look", reason=str(error))
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> dict[str, list[Finding]]:
        """Compare every tracked topic once; what is told of each, by name.

        Raises ``ControlPlaneUnavailable``. A topic that Kafka does not answer for keeps what
        Postgres knows of it.
        """
        told: dict[str, list[Finding]] = {}
        silent = 0

        async def one(topic: TrackedTopic) -> None:
            nonlocal silent
            assert topic.topic_id is not None
            try:
                found, unheard = await self._compared(topic, topic.topic_id)
                told[topic.name] = await self._tell(topic, topic.topic_id, found)
            except TidelineError as error:
                log.warning("watch_skipped_a_topic", topic=topic.name, reason=str(error))
                silent += len(topic.partitions)
                told[topic.name] = self._told.get(topic.topic_id, [])
                return
            silent += unheard

        topics = await self._services.control_plane.tracked_topics()
        watched = {t.topic_id: t for t in topics if t.topic_id and t.status is TopicStatus.ACTIVE}
        await side_by_side(one, watched.values(), AT_ONCE)
        self._forget(set(watched))
        self._gauges.update(told, silent, time.time())
        return told

    async def _compared(self, topic: TrackedTopic, topic_id: UUID) -> tuple[list[Finding], int]:
        layout = await self._services.observer.topic(topic.name)
        if layout is None or layout.topic_id != topic_id:
            return [], 0  # Another topic of the name is the identity reconciler's finding.
        ends, unheard = await self._log_ends(topic, layout)
        rows = [_watched(row) for row in topic.partitions.values()]
        found = [
            finding
            for row in rows
            for finding in log_end_findings(row, ends.get(row.partition, {}))
        ]
        views = await self._services.topics.configs_by_broker(topic.name)
        for view in views:
            found += config_findings(
                rows,
                {key: override.override_value for key, override in topic.overrides.items()},
                topic.limits,
                {key: entry.value for key, entry in view.items() if entry.own},
                {key: entry.value for key, entry in view.items()},
            )
        return list({(f.kind, f.subject): f for f in found}.values()), unheard

    async def _log_ends(
        self, topic: TrackedTopic, layout: TopicLayout
    ) -> tuple[dict[int, dict[int, int]], int]:
        """Log ends by partition and replica, of partitions whose B0 is set; and how many replicas
        did not answer."""
        by_node: dict[int, list[int]] = defaultdict(list)
        for number, row in topic.partitions.items():
            if row.boundary >= 0 and number in layout.partitions:
                for node in layout.partitions[number].replicas:
                    by_node[node].append(number)
        ends: dict[int, dict[int, int]] = defaultdict(dict)
        unheard = 0
        for node, numbers in sorted(by_node.items()):
            try:
                answers = await self._services.observer.offsets(
                    topic.name, numbers, OffsetSpec.LATEST, node=node, replica_id=DEBUG_CONSUMER
                )
            except TidelineError as error:
                log.debug("replica_not_watched", node=node, reason=str(error))
                unheard += len(numbers)
                continue
            for number, answer in answers.items():
                if isinstance(answer, OffsetAnswer):
                    ends[number][node] = answer.offset
                else:
                    unheard += 1
        return ends, unheard

    async def _tell(
        self, topic: TrackedTopic, topic_id: UUID, found: list[Finding]
    ) -> list[Finding]:
        """Record what is certain: a tail at once, everything else when it is seen twice."""
        keys = frozenset((f.kind, f.subject) for f in found)
        before, self._before[topic_id] = self._before.get(topic_id, frozenset()), keys
        certain = [
            await self._kept(topic, topic_id, f) if f.kind is FindingKind.TAIL else f
            for f in found
            if f.kind is FindingKind.TAIL or (f.kind, f.subject) in before
        ]
        known = self._told.get(topic_id)
        if certain or known != []:
            await self._services.control_plane.record_findings(topic_id, certain)
        self._told[topic_id] = certain
        for finding in certain:
            if finding not in (known or ()):
                log.warning(
                    "kafka_disagrees",
                    topic=topic.name,
                    kind=finding.kind.value,
                    subject=finding.subject,
                    detail=finding.detail,
                )
        return certain

    async def _kept(self, topic: TrackedTopic, topic_id: UUID, tail: Finding) -> Finding:
        """The finding with where the tail was exported to, as far as a broker serves it."""
        at = TopicIdPartition(topic_id, int(tail.subject))
        known = self._exported.get(at)
        if known is None or known["log_ends"] != tail.detail["log_ends"]:
            boundary = int(tail.detail["boundary"])
            ends: Mapping[str, int] = tail.detail["log_ends"]
            node = max(ends, key=lambda n: ends[n])
            known = {"log_ends": dict(ends)}
            try:
                kept = await export_tail(
                    self._services.reader,
                    self._services.inventory,
                    topic.name,
                    at,
                    boundary,
                    (boundary, ends[node]),
                    int(node),
                )
            except (TidelineError, InvalidBatch) as error:
                return replace(tail, detail={**tail.detail, "not_exported": str(error)})
            known |= {"object": kept.address, "exported_to": kept.to, "bytes": kept.bytes}
            self._exported[at] = known
        return replace(tail, detail={**tail.detail, **known})

    def _forget(self, live: set[UUID]) -> None:
        for memory in (self._before, self._told):
            for gone in memory.keys() - live:
                memory.pop(gone, None)
        for at in [at for at in self._exported if at.topic_id not in live]:
            del self._exported[at]


def _watched(row: TrackedPartition) -> WatchedPartition:
    return WatchedPartition(row.partition, row.state, row.boundary, row.prefix_end)
