"""One attempt of an activity: how it fails, how it waits, and what it observed.

What a phase observed is kept in Postgres while it runs and when it ends, however it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from temporalio import activity
from temporalio.client import WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from tideline.background import cancel_and_wait, spawn
from tideline.control_plane.catalog_keeper import EVER_MS, TOMBSTONES
from tideline.control_plane.errors import (
    TopicDeleted,
    TrackingIncomplete,
    UnknownLog,
    UnknownTopic,
)
from tideline.domain import failures
from tideline.domain.messages import PhaseInput
from tideline.domain.migration import Phase, PhaseStatus, phase_rule
from tideline.errors import FencedError, RefusedError, TidelineError, UnreachableError
from tideline.kafka.errors import KafkaError, MetadataNotUnderstood, TopicReplaced
from tideline.kafka.observer import LeaderMoved
from tideline.migration.connections import WorkerServices, monotonic_ms
from tideline.temporal import temporal_errors


def failure(kind: str, message: str) -> ApplicationError:
    """The error of one of the kinds in :mod:`tideline.domain.failures`."""
    return ApplicationError(
        message,
        type=kind,
        non_retryable=kind in failures.NON_RETRYABLE,
        # A wait is no defect: it neither fills the logs nor raises the failure metric.
        category=ApplicationErrorCategory.BENIGN
        if kind == failures.WAITING
        else ApplicationErrorCategory.UNSPECIFIED,
    )


def waiting(reason: str) -> ApplicationError:
    """The wait's bound has passed; the reason stands in the evidence too."""
    return failure(failures.WAITING, reason)


def translate(error: TidelineError) -> ApplicationError:
    """An adapter's error as the workflow should see it."""
    match error:
        case TopicDeleted():
            kind = failures.UNKNOWN_TOPIC
        case TopicReplaced():
            kind = failures.TOPIC_CHANGED
        case UnknownLog() | UnknownTopic() | TrackingIncomplete():
            kind = failures.UNTRACKED
        case LeaderMoved():
            kind = failures.STALE_LEADER_EPOCH
        case MetadataNotUnderstood():
            # A worker of a newer version may go on.
            kind = failures.WAITING
        case UnreachableError():
            kind = failures.UNREACHABLE
        case KafkaError() if error.retriable:
            kind = failures.UNREACHABLE
        case FencedError():
            kind = failures.STALE_GENERATION
        case RefusedError() | KafkaError():
            kind = failures.REFUSED
        case _:
            kind = failures.REFUSED
    return failure(kind, str(error))


async def refuse_forgotten(services: WorkerServices, topic: str, topic_id: UUID) -> None:
    """Fails as UnknownTopic when Postgres has a tombstone for the id: the topic was deleted, or an
    operator had it forgotten. Nothing that waits for it will ever come. As Untracked when Postgres
    knows nothing of the id."""
    known = await services.control_plane.migration_status(topic)
    if any(status.log.topic_id == topic_id for status in known):
        return
    if await is_buried(services, topic_id):
        raise failure(
            failures.UNKNOWN_TOPIC,
            f"{topic!r} ({topic_id}) was deleted or forgotten: its migration ends here",
        )
    raise failure(
        failures.UNTRACKED,
        f"Postgres does not know {topic!r} ({topic_id}) any more: its history was begun without it",
    )


async def is_buried(services: WorkerServices, topic_id: UUID) -> bool:
    """Postgres has a tombstone for the id, among its newest ones."""
    buried = await services.control_plane.deleted_topics(EVER_MS, TOMBSTONES)
    return any(tombstone.topic_id == topic_id for tombstone in buried)


_PERHAPS_FORGOTTEN = (failures.WAITING, failures.UNREACHABLE, failures.REFUSED)


async def _refuse_untracked(
    services: WorkerServices, given: PhaseInput, error: BaseException
) -> None:
    """Of a topic that is gone Kafka says nothing that could be told from an outage."""
    key = given.ref.log
    if await services.control_plane.tracked_partition(key.topic_id, key.partition) is None:
        try:
            await refuse_forgotten(services, given.ref.topic, key.topic_id)
        except ApplicationError as forgotten:
            raise forgotten from error


@contextmanager
def typed_failures() -> Iterator[None]:
    """Turn the adapters' errors into typed ones; anything else stays a plain, retried bug."""
    try:
        yield
    except TidelineError as error:
        raise translate(error) from error


def current_run() -> str | None:
    """The run of the workflow that asks, ``None`` outside of Temporal."""
    return activity.info().workflow_run_id if activity.in_activity() else None


async def refuse_ended_run(services: WorkerServices) -> None:
    """Fails as Refused when the run of the workflow that asks has ended, a terminated one too: who
    slept over that writes nothing under a run that has begun since."""
    if services.temporal is None or not activity.in_activity():
        return
    info = activity.info()
    asking = services.temporal.get_workflow_handle(
        info.workflow_id or "", run_id=info.workflow_run_id
    )
    with temporal_errors("the run of the workflow that asks is not known any more"):
        status = (await asking.describe(rpc_timeout=ASKED_FOR)).status
    if status is not WorkflowExecutionStatus.RUNNING:
        why = f"run {info.workflow_run_id} of {info.workflow_id} has ended: nothing was written"
        raise failure(failures.REFUSED, why)


def heartbeat(detail: str = "") -> None:
    """Tell Temporal that the activity lives; a local one needs not, and nothing outside of one."""
    if activity.in_activity() and not activity.info().is_local:
        activity.heartbeat(detail)


IN_PROCESS_MS = 300.0
"""How long a phase waits that is tried as a local activity: a workflow task is under way."""


def wait_bound_ms(services: WorkerServices, in_process: float = IN_PROCESS_MS) -> float:
    """How long one attempt waits for what may come by itself; ``in_process``: as a local one."""
    if activity.in_activity() and activity.info().is_local:
        return min(in_process, services.wait_bound_ms)
    return services.wait_bound_ms


HEARTBEAT_EVERY_S = 5.0
ASKED_FOR = timedelta(seconds=5)
"""Temporal is, whether a run goes on."""


@asynccontextmanager
async def heartbeating() -> AsyncIterator[None]:
    """Heartbeats say that the worker lives, also while one step takes long: the first reading of
    remote metadata, a listing, an export. How long a whole attempt may take is bounded apart."""
    if not activity.in_activity() or activity.info().is_local:
        yield
        return
    beating = spawn(_heartbeat_on(), "heartbeats")
    try:
        yield
    finally:
        await cancel_and_wait(beating)


async def _heartbeat_on() -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_EVERY_S)
        heartbeat()


async def rounds(
    bound_ms: float,
    every_ms: float,
    wake: asyncio.Event | None = None,
    *,
    growth: float = 1.0,
    at_most_ms: float = 5_000.0,
) -> AsyncIterator[int]:
    """Yield 0, 1, 2 … at once and then each time ``every_ms`` have passed or ``wake`` is set;
    ends when ``bound_ms`` have passed. Each pause is ``growth`` times the one before, up to
    ``at_most_ms``. Heartbeats at every round."""
    ends = monotonic_ms() + bound_ms
    number = 0
    while True:
        heartbeat()
        if wake is not None:
            wake.clear()
        yield number
        number += 1
        left = ends - monotonic_ms()
        if left <= 0:
            return
        pause = min(every_ms, left) / 1000
        if growth > 1:
            every_ms = min(every_ms * growth, at_most_ms)
        if wake is None:
            await asyncio.sleep(pause)
        else:
            try:
                async with asyncio.timeout(pause):
                    await wake.wait()
            except TimeoutError:
                continue


@dataclass(slots=True)
class PhaseEvidence:
    """Filled by the phase; its values must be JSON."""

    services: WorkerServices
    given: PhaseInput
    phase: Phase
    generation: int
    paused: bool
    """Producers wait meanwhile: what is written at the end is written in the background."""
    observed: dict[str, Any] = field(default_factory=dict)
    _beginning: asyncio.Task[None] | None = None
    _recorded: str | None = None

    async def record(self, status: PhaseStatus, reason: str | None = None) -> None:
        """Write what was seen so far. Refused (and raised) when a newer generation exists."""
        await self._write(status, reason)()

    def _write(
        self, status: PhaseStatus, reason: str | None
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        observed, generation = dict(self.observed), self.generation

        async def write() -> None:
            await self.services.control_plane.record_phase(
                self.given.ref.log, generation, self.phase, status, observed, reason
            )

        return write

    async def waiting(self, reason: str) -> None:
        """Show why the phase waits; written once for each different reason."""
        if reason != self._recorded:
            self._recorded = reason
            await self.record(PhaseStatus.WAITING, reason)

    def begin(self) -> None:
        """Write that the phase runs, while it makes its observations."""
        self._beginning = spawn(self._write(PhaseStatus.RUNNING, None)(), "evidence-running")

    async def begun(self) -> None:
        """Before the phase's decisive act: what it began stands in Postgres, and no newer
        generation does."""
        if self._beginning is not None:
            await self._beginning

    async def end(self, status: PhaseStatus, reason: str | None = None) -> None:
        if self._beginning is not None:
            await asyncio.wait([self._beginning])
            # Its failure, if any, is the caller's by begun(); here only the order matters.
            self._beginning.exception()
        if self.paused:
            self.services.evidence.submit(self.given.ref.log, self._write(status, reason))
        else:
            await self.record(status, reason)


@asynccontextmanager
async def phase_evidence(
    services: WorkerServices, given: PhaseInput, phase: Phase
) -> AsyncIterator[PhaseEvidence]:
    """Record ``phase`` as running, then as done, waiting or failed.

    Inside the write pause the first record is written beside the phase's observations and the
    last one in the background. Errors of the adapters leave as typed ones.
    """
    paused = phase_rule(phase).inside_write_pause
    before_quiesce = phase in (Phase.VALIDATE, Phase.DRAIN_TRANSACTIONS)
    generation = 0 if before_quiesce else given.generation
    evidence = PhaseEvidence(services, given, phase, generation, paused)
    try:
        if paused and phase is not Phase.QUIESCE:
            evidence.begin()
        elif phase is not Phase.QUIESCE:
            await evidence.record(PhaseStatus.RUNNING)
        # The quiesce records itself: it has no generation of its own yet.
        yield evidence
        await evidence.begun()
        await evidence.end(PhaseStatus.DONE)
    except (ApplicationError, TidelineError) as error:
        typed = error if isinstance(error, ApplicationError) else translate(error)
        if not paused and typed.type in _PERHAPS_FORGOTTEN:
            with suppress(TidelineError):
                await _refuse_untracked(services, given, error)
        kept = typed.type in (failures.WAITING, failures.UNREACHABLE)
        if before_quiesce or evidence.generation:
            # If a newer attempt exists it keeps its own evidence; if Postgres is away, the error
            # that is on its way says so.
            with suppress(TidelineError):
                await evidence.end(
                    PhaseStatus.WAITING if kept else PhaseStatus.FAILED, typed.message
                )
        if typed is error:
            # An error that is its own cause could not be encoded for the workflow.
            raise
        raise typed from error
