"""Asks the brokers about what gateways say that Kafka did, or is about to do, before it counts.

A gateway asks for a topic that is to be born diskless, and reports deletions. Neither sets a B0
nor buries a topic: B0 = 0 makes what a classic log holds unreadable, and a tombstone what the
suffix holds, for good. Postgres cannot ask Kafka, and a gateway's credentials may be in other
hands. So the worker looks at every broker (:mod:`tideline.kafka.topic_identity`): a name is hidden
from clients only where Kafka has no topic of it, and a topic gets B0 = 0 only if its log is sealed
and empty.

A creation therefore waits for the worker, some half a second in all, or for its next look where
the notification was lost; while no worker runs it ends with REQUEST_TIMED_OUT, and is completed or
let go of later.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID

import structlog

from tideline.control_plane import ControlPlane
from tideline.control_plane.errors import ControlPlaneUnavailable, TrackingIncomplete
from tideline.control_plane.model import OpenBirth, ReportedDeletion, TopicStatus, TrackingKind
from tideline.domain.topic_configs import MAX_MESSAGE_BYTES, SEAL_BYTES
from tideline.errors import TidelineError
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.observer import (
    KafkaObserver,
    OffsetAnswer,
    OffsetSpec,
    TopicLayout,
    refusal,
)
from tideline.kafka.topic_identity import BETWEEN_LOOKS_S, Look, TopicIdentity
from tideline.kafka.topic_observer import TopicObserver
from tideline.worker.identity import RECONCILER, IdentityMetrics, why_gone

QUIET_S, EVERY_S, SOON_S = 10.0, 0.5, 0.1
"""Between two looks at what is reported: where there was nothing and no notification comes, where
something is open, and where a gateway waits."""
UNBORN_S = 3.0
"""How long Kafka must not have a topic that nobody waits for: what it was asked it may do later."""
MAY_BE_DELETED_FOR = timedelta(seconds=15)
"""After a report Kafka may still delete the topic; from then on the reconciler looks."""

log = structlog.get_logger()


class ReportKeeper:
    """One per worker process; several of them agree, since each step is taken once."""

    def __init__(
        self,
        plane: ControlPlane,
        identity: TopicIdentity,
        observer: KafkaObserver,
        topics: TopicObserver,
        metrics: IdentityMetrics,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        heard: asyncio.Event | None = None,
    ) -> None:
        """``heard``: set by who listens to :data:`REPORTS_CHANNEL`."""
        self._plane, self._identity = plane, identity
        self._observer, self._topics = observer, topics
        self._metrics, self._clock, self._now = metrics, clock, now
        self._heard = heard or asyncio.Event()
        self._unborn: dict[int, float] = {}
        """By the row of a birth: since when Kafka is seen not to have its topic."""
        self._missed: dict[UUID, tuple[float, Look]] = {}
        """Of reported deletions: when the first look missed the id, and that look."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            pause_s = EVERY_S
            self._heard.clear()
            try:
                pause_s = await self.look()
            except TidelineError as error:
                log.warning("reports.no_look", why=str(error))
            await asyncio.sleep(SOON_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s - SOON_S):
                    await self._heard.wait()

    async def look(self) -> float:
        """Decide what can be decided now. Returns the seconds until the next look. Raises
        :class:`TidelineError` when Postgres or Kafka does not answer."""
        deletions = await self._plane.open_deletions()
        births = await self._plane.open_births()
        unnamed = [birth for birth in births if birth.topic_id is None]
        keys = {birth.topic_key for birth in unnamed}
        self._unborn = {key: since for key, since in self._unborn.items() if key in keys}
        ids = {reported.topic_id for reported in deletions}
        self._missed = {one: missed for one, missed in self._missed.items() if one in ids}
        under: Mapping[str, frozenset[UUID]] = {}
        if ids or unnamed:
            look = await self._identity.look(ids, [birth.name for birth in unnamed])
            under = look.under
            for reported in deletions:
                await _alone(reported.name, self._deletion(reported, look))
        for birth in births:
            await _alone(birth.name, self._birth(birth, under.get(birth.name, frozenset())))
        if deletions or any(birth.wanted for birth in births):
            return SOON_S
        return EVERY_S if births else QUIET_S

    async def _deletion(self, reported: ReportedDeletion, look: Look) -> None:
        """Buried if two whole looks, a moment apart, have missed it."""
        topic_id, now = reported.topic_id, self._clock()
        if topic_id in look.present:
            self._missed.pop(topic_id, None)
            if self._now() - reported.reported_at > MAY_BE_DELETED_FOR:
                log.error("reports.not_deleted", topic=reported.name, by=reported.reported_by)
                await self._plane.settle_deletion(topic_id)
            return
        since, first = self._missed.setdefault(topic_id, (now, look))
        if now - since >= BETWEEN_LOOKS_S:
            await self._plane.delete_topic(topic_id, reported.reported_by, why_gone(first, look))
            await self._plane.settle_deletion(topic_id)

    async def _birth(self, birth: OpenBirth, ids: frozenset[UUID]) -> None:
        if birth.kind is TrackingKind.MIGRATED:
            why = f"topic {birth.name} is tracked already, with id {birth.topic_id}"
            await self._plane.refuse_birth(birth.name, why)
        elif birth.topic_id is not None:
            if birth.status is TopicStatus.TRACKING:
                await self._activate(birth, birth.topic_id)
        elif not ids:
            await self._unmade(birth)
        elif len(ids) == 1:
            await self._made(birth, *ids)

    async def _unmade(self, birth: OpenBirth) -> None:
        """Kafka has no topic of the name: hide it, or let go of it where nobody waits any more."""
        if birth.topic_key is None:
            await self._plane.begin_birth(birth.name)
        elif not birth.wanted:
            since = self._unborn.setdefault(birth.topic_key, self._clock())
            if self._clock() - since >= UNBORN_S:
                await self._release(birth, "Kafka has no topic that was made for it")

    async def _made(self, birth: OpenBirth, topic_id: UUID) -> None:
        layout = await self._observer.topic(birth.name)
        if layout is None or layout.topic_id != topic_id:
            return  # A broker lags: look again.
        why_not = await self._why_not_born(layout)
        if why_not is not None:
            why = f"Kafka has a topic {birth.name} with id {topic_id} {why_not}"
            await self._plane.refuse_birth(birth.name, why)
            await self._release(birth, why)
            return
        if birth.topic_key is None:
            await self._plane.begin_birth(birth.name)
        await self._plane.complete_creation(birth.name, topic_id, len(layout.partitions))
        log.info("reports.birth_completed", topic=birth.name, topic_id=str(topic_id))

    async def _why_not_born(self, layout: TopicLayout) -> str | None:
        """Whether B0 = 0 would take a record from anybody. Raises :class:`KafkaUnavailable` while a
        partition has no leader that says how long it is."""
        limit = (await self._topics.configs(layout.name)).get(MAX_MESSAGE_BYTES)
        if limit is None or not limit.own or limit.value != SEAL_BYTES:
            return "that was not made for it: its log takes records"
        if not layout.partitions:
            raise KafkaUnavailable(f"no broker names the partitions of {layout.name} yet")
        leaders: dict[int, list[int]] = defaultdict(list)
        for row in layout.partitions.values():
            leaders[row.leader].append(row.partition)
        for node, partitions in sorted(leaders.items()):
            if node < 0:
                raise KafkaUnavailable(f"{layout.name}-{partitions[0]} has no leader yet")
            ends = await self._observer.offsets(
                layout.name, partitions, OffsetSpec.LATEST, node=node
            )
            for partition, end in sorted(ends.items()):
                if not isinstance(end, OffsetAnswer):
                    raise refusal(end, f"log end of {layout.name}-{partition} on broker {node}")
                if end.offset > 0:
                    return f"whose partition {partition} has records up to offset {end.offset - 1}"
        return None

    async def _release(self, birth: OpenBirth, why: str) -> None:
        if birth.topic_key is not None and await self._plane.release_birth(
            birth.topic_key, RECONCILER, why
        ):
            self._metrics.buried.inc()
            log.error("reports.birth_released", topic=birth.name, why=why)

    async def _activate(self, birth: OpenBirth, topic_id: UUID) -> None:
        """It is hidden until every gateway knows its id and what it enforces."""
        if MAX_MESSAGE_BYTES not in await self._plane.config_overrides_of(topic_id):
            before, after = birth.timestamp_before_max_ms, birth.timestamp_after_max_ms
            await self._plane.update_topic_limits(
                topic_id, timestamp_before_max_ms=before, timestamp_after_max_ms=after
            )
            given = birth.given_max_message_bytes
            if not birth.wanted:
                given = str(birth.max_message_bytes)
            await self._plane.override_config(topic_id, MAX_MESSAGE_BYTES, SEAL_BYTES, given)
        try:
            await self._plane.activate_topic(birth.name)
        except TrackingIncomplete as error:
            log.debug("reports.birth_waits", topic=birth.name, why=str(error))


async def _alone(name: str, work: Awaitable[None]) -> None:
    """What is refused of one topic holds up no other. Raises ``ControlPlaneUnavailable``, which
    concerns all of them."""
    try:
        await work
    except ControlPlaneUnavailable:
        raise
    except TidelineError as error:
        log.warning("reports.not_settled", topic=name, why=str(error))
