"""Whether somebody drives each migration: what Postgres calls unfinished beside what Temporal runs.

A workflow that failed, was terminated, or is unknown to a Temporal that was restored leaves its
topic where it was: tracked, perhaps past B0, and nobody goes on. Postgres alone looks the same as
while it waits.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import MigrationRequest, RequestState, TrackedTopic
from tideline.domain.messages import TopicOutcome, TopicRef
from tideline.domain.waits import Waits
from tideline.errors import TidelineError
from tideline.temporal import MigrationFailed, NoSuchMigration, RunningTopic

LOOK_EVERY_S = 30.0
_WAIT_BY_THEMSELVES = (Waits.NOTHING, Waits.PAUSED, Waits.PLACE)
"""An operator's pause ends by the operator, a wait for a place by itself."""
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Seen:
    """One look."""

    running: list[RunningTopic]
    unattended: dict[str, str]
    """Why, by topic."""
    requests: list[MigrationRequest]


class AttendanceGauges:
    """What was seen at the last look."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._unattended = Gauge(
            "inkless_migration_unattended",
            "1 for a topic whose migration is not over and has no workflow that runs",
            ["topic"],
            registry=registry,
        )
        self._waiting = Gauge(
            "inkless_migration_topic_waiting",
            "1 for a topic whose workflow waits in this stage, and was not paused",
            ["topic", "stage"],
            registry=registry,
        )
        self._requests = Gauge(
            "inkless_migration_requests",
            "Requests to migrate by config change, the newest of each topic, by their state",
            ["state"],
            registry=registry,
        )
        self._looked = Gauge(
            "inkless_migration_last_look_timestamp_seconds",
            "When Temporal and Postgres were last asked for all migrations",
            registry=registry,
        )

    def update(self, seen: Seen, now_s: float) -> None:
        self._unattended.clear()
        self._waiting.clear()
        for topic in seen.unattended:
            self._unattended.labels(topic).set(1)
        for running in seen.running:
            if running.waits not in _WAIT_BY_THEMSELVES:
                self._waiting.labels(running.topic, running.stage).set(1)
        states = Counter(request.state for request in seen.requests)
        for state in RequestState:
            self._requests.labels(state.value).set(states[state])
        self._looked.set(now_s)


class Attendance:
    """One per worker; several workers see the same.

    ``running`` lists the topics' workflows that run, perhaps a moment late; ``outcome`` tells how
    the newest one of a topic ended, ``None`` while it runs (:func:`tideline.temporal.outcome_of`).
    """

    def __init__(
        self,
        plane: ControlPlane,
        running: Callable[[], Awaitable[list[RunningTopic]]],
        outcome: Callable[[TopicRef], Awaitable[TopicOutcome | None]],
        gauges: AttendanceGauges | None = None,
    ) -> None:
        self._plane, self._running, self._outcome = plane, running, outcome
        self._gauges = gauges or AttendanceGauges()
        self._told: dict[str, str] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.look()
            except TidelineError as error:
                log.warning("migrations_not_looked_at", reason=str(error))
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> Seen:
        """Look once. Raises when Postgres or Temporal does not answer."""
        running = await self._running()
        ids = {each.workflow_id for each in running}
        unfinished = [t for t in await self._plane.tracked_topics() if t.migration_unfinished]
        unattended = await self._nobody_drives(
            (topic, ref)
            for topic in unfinished
            if topic.topic_id is not None
            and (ref := TopicRef(topic.name, topic.topic_id.hex, 0)).workflow_id not in ids
        )
        seen = Seen(running, unattended, await self._plane.list_requests())
        for topic, why in unattended.items():
            if self._told.get(topic) != why:
                log.error("migration_unattended", topic=topic, why=why)
        self._told = unattended
        self._gauges.update(seen, time.time())
        return seen

    async def _nobody_drives(
        self, candidates: Iterable[tuple[TrackedTopic, TopicRef]]
    ) -> dict[str, str]:
        """Those of which Temporal says so when it is asked for each; one that has ended well since
        the rows were read is none of them."""
        found: dict[str, str] = {}
        for topic, ref in candidates:
            try:
                await self._outcome(ref)
            except (NoSuchMigration, MigrationFailed) as error:
                found[topic.name] = str(error)
        return found
