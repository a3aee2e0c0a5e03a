"""Compares the ids of tracked topics with Kafka's, and buries what Kafka does not have any more.

A deletion that no gateway could tell (the process died, or the topic was deleted past the gateways)
would leave its name bound to a dead topic: what is produced by name would be acknowledged into a
suffix that nobody reads. Two whole looks, a minute apart, have to miss an id before it is buried;
a look that some broker did not answer counts for nothing (:mod:`tideline.kafka.topic_identity`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from tideline.control_plane import ControlPlane
from tideline.control_plane.errors import ControlPlaneUnavailable, TrackingIncomplete
from tideline.control_plane.model import LiveTopic, TopicStatus, TrackingKind
from tideline.domain.topic_configs import MAX_MESSAGE_BYTES, SEAL_BYTES
from tideline.errors import TidelineError
from tideline.kafka.observer import KafkaObserver
from tideline.kafka.topic_identity import Look, TopicIdentity
from tideline.kafka.topic_observer import TopicObserver

EVERY_S = 60.0
BIRTH_PATIENCE = timedelta(minutes=10)
"""How long a creation may be under way; Kafka clients give up after one or two."""
RECONCILER = "the worker's reconciler"

log = structlog.get_logger()


class IdentityMetrics:
    """What was found at the last look, and when that was."""

    def __init__(
        self, registry: CollectorRegistry = REGISTRY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._looked_at = clock()
        self.gone = Gauge(
            "inkless_identity_topics_gone",
            "Tracked topics whose ids no broker knew at the last whole look",
            registry=registry,
        )
        self.buried = Counter(
            "inkless_identity_topics_buried",
            "Topics and unfinished creations that the reconciler has buried",
            registry=registry,
        )
        age = Gauge(
            "inkless_identity_last_look_age_seconds",
            "Since the last whole look at topic ids",
            registry=registry,
        )
        age.set_function(lambda: self._clock() - self._looked_at)

    def looked(self, gone: int) -> None:
        """A whole look has ended."""
        self._looked_at = self._clock()
        self.gone.set(gone)


class IdentityReconciler:
    """One per worker process; several of them agree, since a tombstone is written once."""

    def __init__(
        self,
        plane: ControlPlane,
        identity: TopicIdentity,
        observer: KafkaObserver,
        topics: TopicObserver,
        metrics: IdentityMetrics,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._plane, self._identity = plane, identity
        self._observer, self._topics = observer, topics
        self._metrics, self._now = metrics, now
        self._missed: Mapping[UUID, Look] = {}
        """By the last whole look."""
        self._unborn: frozenset[int] = frozenset()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.reconcile()
            except TidelineError as error:
                log.warning("identity.no_whole_look", why=str(error))
            await asyncio.sleep(EVERY_S)

    async def reconcile(self) -> None:
        """One whole look, and what follows from it and the one before. Raises
        :class:`TidelineError` when there was none; what was missed before is then still known."""
        live = await self._plane.live_topics()
        known = {topic.topic_id: topic for topic in live if topic.topic_id is not None}
        overdue = [t for t in live if t.topic_id is None and self._is_overdue(t)]
        look = await self._identity.look(known, [t.name for t in overdue])
        missed = known.keys() - look.present
        self._metrics.looked(len(missed))
        twice = missed & self._missed.keys()
        for topic_id in missed - twice:
            log.error(
                "identity.topic_is_gone",
                topic=known[topic_id].name,
                topic_id=str(topic_id),
                what="Kafka does not have it; it is buried if the next look misses it too",
            )
        before, self._missed = self._missed, dict.fromkeys(missed, look)
        for topic_id in twice:
            topic = known[topic_id]
            await _alone(topic, self._bury(topic, topic_id, before[topic_id], look))
        await self._settle_births(overdue, look)
        for topic in live:
            await _alone(topic, self._activate(topic))

    async def _bury(self, topic: LiveTopic, topic_id: UUID, first: Look, second: Look) -> None:
        why = (
            f"brokers {', '.join(map(str, second.brokers))} do not know it, by looks at metadata "
            f"offsets {first.metadata_offset} and {second.metadata_offset}"
        )
        await self._plane.delete_topic(topic_id, RECONCILER, why)
        self._metrics.buried.inc()
        log.error("identity.topic_buried", topic=topic.name, topic_id=str(topic_id), why=why)

    def _is_overdue(self, birth: LiveTopic) -> bool:
        return self._now() - birth.created_at > BIRTH_PATIENCE

    async def _settle_births(self, births: Iterable[LiveTopic], look: Look) -> None:
        """A gateway that died during a creation left the name tracked without an id: it is served
        by nobody. Completed if the topic is there as it was to be made, else released."""
        before, self._unborn = self._unborn, frozenset[int]()
        for birth in births:
            seen = birth.topic_key in before
            await _alone(birth, self._settle_birth(birth, look.under[birth.name], seen))

    async def _settle_birth(self, birth: LiveTopic, ids: frozenset[UUID], was_unborn: bool) -> None:
        if len(ids) == 1 and await self._is_sealed(birth.name):
            await self._complete(birth, *ids)
        elif len(ids) <= 1:
            self._unborn |= {birth.topic_key}
            if was_unborn:
                why = "its creation did not end, and Kafka has no topic that was made for it"
                if await self._plane.release_birth(birth.topic_key, RECONCILER, why):
                    self._metrics.buried.inc()
                    log.error("identity.birth_released", topic=birth.name, why=why)

    async def _is_sealed(self, name: str) -> bool:
        limit = (await self._topics.configs(name)).get(MAX_MESSAGE_BYTES)
        return limit is not None and limit.own and limit.value == SEAL_BYTES

    async def _complete(self, birth: LiveTopic, topic_id: UUID) -> None:
        layout = await self._observer.topic(birth.name)
        tracked = await self._plane.tracked_topic(birth.name)
        if layout is None or layout.topic_id != topic_id or tracked is None:
            return
        wanted = str(tracked.max_message_bytes)
        await self._plane.complete_creation(birth.name, topic_id, len(layout.partitions))
        await self._plane.override_config(topic_id, MAX_MESSAGE_BYTES, SEAL_BYTES, wanted)
        log.warning("identity.birth_completed", topic=birth.name, topic_id=str(topic_id))

    async def _activate(self, topic: LiveTopic) -> None:
        """A topic that was born is hidden until every gateway knows its id; who made it may be
        gone by then."""
        born = topic.kind is TrackingKind.BORN_DISKLESS and topic.topic_id is not None
        if born and topic.status is TopicStatus.TRACKING and self._is_overdue(topic):
            try:
                await self._plane.activate_topic(topic.name)
            except TrackingIncomplete as error:
                log.warning("identity.birth_waits", topic=topic.name, why=str(error))


async def _alone(topic: LiveTopic, work: Awaitable[None]) -> None:
    """What is refused of one topic holds up no other. Raises ``ControlPlaneUnavailable``, which
    concerns all of them."""
    try:
        await work
    except ControlPlaneUnavailable:
        raise
    except TidelineError as error:
        log.error("identity.not_settled", topic=topic.name, why=str(error))
