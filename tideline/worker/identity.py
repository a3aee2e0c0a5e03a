"""Compares the ids of tracked topics with Kafka's, and buries what Kafka does not have any more.

A deletion that no gateway could tell (the process died, or the topic was deleted past the gateways)
would leave its name bound to a dead topic: what is produced by name would be acknowledged into a
suffix that nobody reads. Two whole looks, a minute apart, have to miss an id before it is buried;
a look that some broker did not answer counts for nothing (:mod:`tideline.kafka.topic_identity`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from tideline.control_plane import ControlPlane
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.model import LiveTopic
from tideline.errors import TidelineError
from tideline.kafka.topic_identity import Look, TopicIdentity

EVERY_S = 60.0
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
        metrics: IdentityMetrics,
    ) -> None:
        self._plane, self._identity, self._metrics = plane, identity, metrics
        self._missed: Mapping[UUID, Look] = {}
        """By the last whole look."""

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
        look = await self._identity.look(known)
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

    async def _bury(self, topic: LiveTopic, topic_id: UUID, first: Look, second: Look) -> None:
        why = why_gone(first, second)
        await self._plane.delete_topic(topic_id, RECONCILER, why)
        self._metrics.buried.inc()
        log.error("identity.topic_buried", topic=topic.name, topic_id=str(topic_id), why=why)


def why_gone(first: Look, second: Look) -> str:
    """On which grounds a topic is buried."""
    return (
        f"brokers {', '.join(map(str, second.brokers))} do not know it, by looks at metadata "
        f"offsets {first.metadata_offset} and {second.metadata_offset}"
    )


async def _alone(topic: LiveTopic, work: Awaitable[None]) -> None:
    """What is refused of one topic holds up no other. Raises ``ControlPlaneUnavailable``, which
    concerns all of them."""
    try:
        await work
    except ControlPlaneUnavailable:
        raise
    except TidelineError as error:
        log.error("identity.not_settled", topic=topic.name, why=str(error))
