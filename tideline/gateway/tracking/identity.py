"""Whether tracked names still mean the tracked topics in Kafka.

A topic can be deleted, and another created under its name, past the gateways: what is produced by
name would then be acknowledged into a suffix that nobody reads. A name whose id in Kafka's Metadata
is another one is refused from the first look that says so: the refusal is retriable, and ends when
the worker has buried the old topic, or when a broker that lagged has caught up. That Kafka has *no*
topic of the name counts by two looks: a broker that has just started does not know the newest.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import structlog

from tideline.background import cancel_and_wait, keep
from tideline.errors import TidelineError
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.topic_identity import TopicIdentity

EVERY_S = 3.0
log = structlog.get_logger()


class IdentityWatch:
    """Asks one broker again and again, the paired one as a rule."""

    def __init__(
        self, tracking: TrackingView, identity: TopicIdentity, every_s: float = EVERY_S
    ) -> None:
        self._tracking, self._identity, self._every_s = tracking, identity, every_s
        self._missing: frozenset[UUID] = frozenset()
        self._displaced: frozenset[UUID] = frozenset()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look in the background, until :meth:`close`."""
        self._task = keep(self._run(), "topic-identity")

    async def close(self) -> None:
        if self._task is not None:
            await cancel_and_wait(self._task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.look()
            except TidelineError as error:
                log.debug("identity.not_looked", why=str(error))

    async def look(self) -> None:
        """Compare once. Raises :class:`KafkaUnavailable`; what was known then stays."""
        tracked = {t.name: t.topic_id for t in self._tracking.topics() if t.topic_id is not None}
        found = await self._identity.ids_of(sorted(tracked))
        other = {
            topic_id
            for name, topic_id in tracked.items()
            if (now := found.get(name)) is not None and now != topic_id
        }
        missing = frozenset(t for n, t in tracked.items() if n in found and found[n] is None)
        displaced = frozenset(other | (missing & self._missing))
        self._missing = missing
        for topic_id in displaced - self._displaced:
            names = [name for name, tracked_id in tracked.items() if tracked_id == topic_id]
            log.error(
                "identity.displaced",
                topic=names[0],
                tracked_id=str(topic_id),
                kafka_id=str(found[names[0]]),
                what="requests for it are refused until the worker has buried the old topic",
            )
        self._displaced = displaced
        self._tracking.displace(displaced)
