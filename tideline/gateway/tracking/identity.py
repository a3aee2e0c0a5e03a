"""Whether tracked names still mean the tracked topics in Kafka.

A topic can be deleted, and another created under its name, past the gateways: what is produced by
name would then be acknowledged into a suffix that nobody reads. A name whose id in Kafka's Metadata
is another one is refused from the first look that says so: the refusal is retriable, and ends when
the worker has buried the old topic, or when a broker that lagged has caught up. That Kafka has *no*
topic of the name counts by two looks: a broker that has just started does not know the newest.

A look is at a part of the names if there are many, so that it costs Kafka and the event loop little
however many topics are tracked: a round of :data:`LOOKS_PER_ROUND` looks is at all of them. What a
look found amiss is looked at again by the next ones, beside their part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import chain, islice
from uuid import UUID

import structlog

from tideline.background import cancel_and_wait, keep
from tideline.errors import TidelineError
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.topic_identity import TopicIdentity

EVERY_S = 3.0
LOOKS_PER_ROUND = 10
"""Another id is seen within so many looks (30 s), and that a name is missing one look later."""
NAMES_PER_LOOK = 1_000
"""At least so many, if there are so many: up to here every look is at all names (3 s)."""
log = structlog.get_logger()


class IdentityWatch:
    """Asks one broker again and again, the paired one as a rule."""

    def __init__(
        self, tracking: TrackingView, identity: TopicIdentity, every_s: float = EVERY_S
    ) -> None:
        self._tracking, self._identity, self._every_s = tracking, identity, every_s
        self._looked_at: dict[UUID, None] = {}
        """The one that was looked at longest ago first."""
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
        """Compare the names whose turn it is. Raises :class:`KafkaUnavailable`; what was known then
        stays, as it does of a name of which the broker says neither id nor absence."""
        names = {t.topic_id: t.name for t in self._tracking.topics() if t.topic_id is not None}
        due = self._due(names)
        found = await self._identity.ids_of(sorted(names[one] for one in due))
        for one in due:
            self._looked_at.pop(one, None)
            self._looked_at[one] = None
        said = [one for one in due if names[one] in found]
        other = {one for one in said if found[names[one]] not in (None, one)}
        missing = frozenset(one for one in said if found[names[one]] is None)
        unsaid = names.keys() - set(said)
        displaced = frozenset(
            other | (missing & (self._missing | self._displaced)) | (self._displaced & unsaid)
        )
        for one in displaced - self._displaced:
            log.error(
                "identity.displaced",
                topic=names[one],
                tracked_id=str(one),
                kafka_id=str(found[names[one]]),
                what="requests for it are refused until the worker has buried the old topic",
            )
        self._missing = missing | (self._missing & unsaid)
        self._displaced = displaced
        self._tracking.displace(displaced)

    def _due(self, names: Mapping[UUID, str]) -> list[UUID]:
        """What this look is at: its part of the round, new ones first, and what was amiss."""
        part = max(NAMES_PER_LOOK, -(-len(names) // LOOKS_PER_ROUND))
        for gone in self._looked_at.keys() - names.keys():
            del self._looked_at[gone]
        new = (one for one in names if one not in self._looked_at)
        turn = dict.fromkeys(islice(chain(new, self._looked_at), part))
        amiss = (one for one in self._looked_at if one in self._missing or one in self._displaced)
        return list(turn | dict.fromkeys(islice(amiss, part)))
