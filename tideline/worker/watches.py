"""Compares Kafka with Postgres for ever: log ends with B0, topic configs with what is held, and
partitions with their rows.

Three things are changed here: an empty partition that came past the gateways to a diskless topic
gets its row; a config that Tideline holds is written once more when another value was seen twice;
and a limit of batches that the user does not set follows its default, seen twice, too.
What is found goes into Postgres, where ``tideline status`` shows it, and into gauges; a tail past
B0 is exported, so that nothing a broker has taken is lost unseen (docs/failures.md says what to
do).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias
from uuid import UUID

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from tideline.control_plane.model import ConfigOverride, TopicStatus, TrackedTopic
from tideline.domain.broker_defaults import BrokerDefaults
from tideline.domain.config_changes import LIMITS
from tideline.domain.ids import TopicIdPartition
from tideline.domain.watched import (
    HELD,
    OF_PARTITIONS,
    ChangedDefault,
    Finding,
    FindingKind,
    grown_findings,
)
from tideline.errors import TidelineError
from tideline.kafka.held_configs import HeldInKafka
from tideline.migration.connections import WorkerServices
from tideline.migration.growth import take_in
from tideline.worker.access import AccessLook
from tideline.worker.kept_tails import TailKeeper
from tideline.worker.log_gaps import GapLooker, is_gap
from tideline.worker.looking import Seen, compare, in_portions

log = structlog.get_logger()

Key: TypeAlias = tuple[FindingKind, str]
"""Of a finding: its kind and subject."""
LOOK_EVERY_S = 20.0
"""Two looks fit into a minute: what is not a tail is told when the second one sees it again, since
brokers follow a change of configs, and replicas each other, one by one."""
FOLLOW_AFTER_S = 5.0
"""From the look that found a default changed to the next one, at which it may be followed. What
else was found before is seen a second time then, too."""


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
            FindingKind.GROWN: by_partition(
                "inkless_unknown_partition_offsets",
                "Offsets in the log of a partition that came past the gateways and that nobody "
                "serves; 0: it is empty, or no replica says what it holds",
            ),
        }
        self._gaps = Gauge(
            "inkless_boundary_gap_offsets",
            "Offsets below B0 that no replica reaches, by who holds them: remote segments, which "
            "Kafka does not serve there, or nobody",
            ["topic", "partition", "held_by"],
            registry=registry,
        )
        self._configs = Gauge(
            "inkless_config_drift",
            "1 for a config that was changed at a broker, past the gateways, or in whose default "
            "brokers differ",
            ["topic", "key"],
            registry=registry,
        )
        self._access = Gauge(
            "inkless_unsupported_access",
            "ACLs of a tracked topic that name a host (acl), and share groups that subscribe to "
            "it (share_group), where there are any",
            ["topic", "kind"],
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
        for gauge in (*self._offsets.values(), self._gaps, self._configs, self._access):
            gauge.clear()
        for topic, findings in found.items():
            for finding in findings:
                if finding.kind is FindingKind.CONFIG:
                    self._configs.labels(topic, finding.subject).set(1)
                elif finding.kind not in OF_PARTITIONS:
                    self._access.labels(topic, finding.kind).set(finding.detail["count"])
                else:
                    gauge = self._offsets[finding.kind]
                    gauge.labels(topic, finding.subject).set(finding.detail["offsets"])
                for held_by, offsets in finding.detail.get("gap", {}).get("offsets", {}).items():
                    self._gaps.labels(topic, finding.subject, held_by).set(offsets)
        self._silent.set(silent)
        self._looked.set(now_s)


class KafkaWatch:
    """One per worker; several workers find the same."""

    def __init__(self, services: WorkerServices, gauges: WatchGauges | None = None) -> None:
        self._services = services
        self._gauges = gauges or WatchGauges()
        self._before: dict[UUID, frozenset[Key]] | None = None
        """What the look before found, by topic id; before the first one what Postgres has as found
        and not ended: another process has seen it."""
        self._held = HeldInKafka(
            services.control_plane, services.admin, services.observer, {TopicStatus.ACTIVE}
        )
        self._unsettled: dict[UUID, dict[str, ConfigOverride]] = {}
        """By topic id and key: what was put back while Postgres or Kafka did not answer."""
        self._tails = TailKeeper(services)
        self._gap_looker = GapLooker(services)
        self._defaults: dict[UUID, frozenset[ChangedDefault]] = {}
        """Limits whose defaults the look before found changed, by topic id."""
        self._follows_soon = False
        """Whether one of them was found changed for the first time."""
        self._access = AccessLook(services)
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
            await asyncio.sleep(FOLLOW_AFTER_S if self._follows_soon else LOOK_EVERY_S)

    async def look(self) -> dict[str, list[Finding]]:
        """Compare every tracked topic once; what is told of each, by name.

        Raises ``ControlPlaneUnavailable``. A topic that Kafka does not answer for keeps what
        Postgres knows of it.
        """
        self._follows_soon = False
        topics = await self._services.control_plane.tracked_topics()
        watched = {t.topic_id: t for t in topics if t.topic_id and t.status is TopicStatus.ACTIVE}
        self._before = await self._found_before()
        self._forget(set(watched), self._before)
        await self._access.ask()
        seen: dict[UUID, Seen] = {}
        defaults = await self._limits_by_default() if watched else None
        for portion in in_portions(watched.values()):
            seen |= await compare(self._services, portion, defaults)
        certain: dict[UUID, list[Finding]] = {}
        for topic_id, found in seen.items():
            if not found.problem:
                plane = self._services.control_plane
                grown = grown_findings(await take_in(plane, watched[topic_id], found.new))
                every = [*found.findings, *grown, *self._access.findings(watched[topic_id])]
                certain[topic_id] = _certain(self._before, topic_id, every)
                await self._put_back(watched[topic_id], topic_id, certain[topic_id])
                await self._follow(watched[topic_id], topic_id, found.defaults)
        by_log = [
            (watched[topic_id].name, TopicIdPartition(topic_id, int(f.subject)), f)
            for topic_id, findings in certain.items()
            for f in findings
            if f.kind in OF_PARTITIONS
        ]
        kept = await self._tails.keep([each for each in by_log if each[2].kind is FindingKind.TAIL])
        gaps = await self._gap_looker.look([each for each in by_log if is_gap(each[2])])
        told: dict[str, list[Finding]] = {}
        for topic_id, found in seen.items():
            topic = watched[topic_id]
            if found.problem:
                log.warning("watch_skipped_a_topic", topic=topic.name, reason=found.problem)
                told[topic.name] = self._told.get(topic_id, [])
                continue
            findings = []
            for f in certain[topic_id]:
                if f.kind is FindingKind.TAIL:
                    f = kept[TopicIdPartition(topic_id, int(f.subject))]
                elif is_gap(f):
                    f = gaps[TopicIdPartition(topic_id, int(f.subject))]
                findings.append(f)
            told[topic.name] = await self._tell(topic, topic_id, findings)
        self._gauges.update(told, sum(found.unheard for found in seen.values()), time.time())
        return told

    async def _found_before(self) -> dict[UUID, frozenset[Key]]:
        """Raises ``ControlPlaneUnavailable``."""
        if self._before is not None:
            return self._before
        open_ones = [f for f in await self._services.control_plane.findings() if f.ended_at is None]
        self._access.told_before(open_ones)
        before: dict[UUID, frozenset[Key]] = {}
        for f in open_ones:
            before[f.topic_id] = before.get(f.topic_id, frozenset()) | {(f.kind, f.subject)}
        return before

    async def _put_back(
        self, topic: TrackedTopic, topic_id: UUID, certain: Iterable[Finding]
    ) -> None:
        """What Tideline holds of the configs that were changed; nothing is raised."""
        changed = {f.subject for f in certain if f.detail.get("why") == HELD}
        users = {key: topic.overrides[key].user_value for key in changed}
        try:
            await self._settle(topic, topic_id)
            self._unsettled[topic_id] = {key: topic.overrides[key] for key in changed}
            if changed and (held := await self._held.held(topic.name, topic_id, changed)):
                await self._held.write_held(topic.name, topic_id, held, users)
            del self._unsettled[topic_id]
        except TidelineError as error:
            log.warning("configs_not_put_back", topic=topic.name, reason=str(error))

    async def _settle(self, topic: TrackedTopic, topic_id: UUID) -> None:
        """Give the user back what was let go of while the look before put it back, where Kafka has
        Tideline's value."""
        put_back = self._unsettled.get(topic_id, {})
        if let_go := put_back.keys() - topic.overrides.keys():
            found = await self._services.topics.configs(topic.name)
            own = {key: entry.value for key, entry in found.items() if entry.own}
            ours = {key for key in let_go if own.get(key) == put_back[key].override_value}
            if users := {key: put_back[key].user_value for key in ours}:
                await self._held.write_held(topic.name, topic_id, users, users)

    async def _limits_by_default(self) -> BrokerDefaults | None:
        """What a topic has of them that sets none."""
        try:
            return await self._services.topics.topic_defaults(LIMITS)
        except TidelineError as error:
            log.warning("defaults_not_watched", reason=str(error))
            return None

    async def _follow(
        self, topic: TrackedTopic, topic_id: UUID, found: Sequence[ChangedDefault]
    ) -> None:
        """Have the suffix enforce defaults that were seen changed twice. Raises
        ``ControlPlaneUnavailable``."""
        changed, before = frozenset(found), self._defaults.get(topic_id, frozenset())
        self._defaults[topic_id] = changed
        self._follows_soon |= not changed <= before
        plane = self._services.control_plane
        for one in changed & before:
            if not await plane.follow_default_limit(topic_id, one.key, one.enforced, one.default):
                continue
            log.warning("default_followed", topic=topic.name, key=one.key, now=one.default)
            if (own := await self._set_by_now(topic, one)) is not None:
                # To what was enforced before, so that Postgres saw no change of it.
                await plane.follow_default_limit(topic_id, one.key, one.default, own)

    async def _set_by_now(self, topic: TrackedTopic, followed: ChangedDefault) -> str | None:
        """What a user has set the limit to in Kafka since the topic was looked at; while nobody
        says it, what was enforced: the default is followed when it is known."""
        if followed.key in topic.overrides:
            return None  # Postgres has compared the user's own value.
        try:
            views = await self._services.topics.configs_by_broker(topic.name)
        except TidelineError:
            return followed.enforced
        key = followed.key
        own = (view[key].value for view in views if key in view and view[key].own)
        return next(own, None)

    async def _tell(
        self, topic: TrackedTopic, topic_id: UUID, certain: list[Finding]
    ) -> list[Finding]:
        """Record it in Postgres, and what is new in the log."""
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

    def _forget(self, live: set[UUID], before: dict[UUID, frozenset[Key]]) -> None:
        for memory in (before, self._told, self._defaults, self._unsettled):
            for gone in memory.keys() - live:
                memory.pop(gone, None)


def _certain(
    before: dict[UUID, frozenset[Key]], topic_id: UUID, found: Sequence[Finding]
) -> list[Finding]:
    """A tail at once, everything else when it is seen twice. ``before`` has what is found now when
    it returns."""
    keys = frozenset((f.kind, f.subject) for f in found)
    last, before[topic_id] = before.get(topic_id, frozenset()), keys
    return [f for f in found if f.kind is FindingKind.TAIL or (f.kind, f.subject) in last]
