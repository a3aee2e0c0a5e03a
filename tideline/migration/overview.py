"""Where every migration stands, from Postgres and from the workflows."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from temporalio.client import Client

from tideline import control_plane, temporal
from tideline.control_plane import ControlPlane
from tideline.control_plane.model import (
    MigrationRequest,
    MigrationStatusChanges,
    OperatorAction,
    PartitionMigrationStatus,
    PhaseRecord,
)
from tideline.control_plane.table_model import VerifyVerdict
from tideline.control_plane.told_model import Told
from tideline.domain.messages import (
    PartitionReport,
    Query,
    TopicMigrationStatus,
    TopicRef,
)
from tideline.domain.migration import (
    PHASE_ORDER,
    UNDEFINED_OFFSET,
    MigrationState,
    Phase,
    PhaseStatus,
    phase_rule,
)
from tideline.domain.options import MigrationOptions
from tideline.domain.report_columns import reports_of
from tideline.domain.watched import FindingKind
from tideline.errors import RefusedError, TidelineError
from tideline.kafka.client import KafkaCluster
from tideline.kafka.observer import KafkaObserver
from tideline.settings import KafkaSettings, TemporalSettings, WorkerSettings

ANSWER_WITHIN = timedelta(seconds=5)
MOST_QUERIES = 20
"""Workflows that are asked at once."""
ANSWER_LASTS_S = 10.0
"""Of a workflow of which Postgres and Temporal's index tell nothing new."""


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition. ``boundary`` is B0, ``None`` while it is unset."""

    partition: int
    state: str
    phase: str
    phase_status: str
    since: datetime | None
    waiting_reason: str
    boundary: int | None
    leader_epoch: int | None
    high_watermark: int | None
    generation: int
    producers_parked: bool
    next_step: str
    phases_done: int


@dataclass(frozen=True, slots=True)
class TopicRow:
    topic: str
    topic_id: str
    stage: str
    paused: bool
    waiting_reason: str
    next_step: str
    workflow_id: str
    workflow_url: str | None
    partitions: list[PartitionRow] = field(default_factory=list)
    options: MigrationOptions | None = None
    """Of the migration that runs."""
    request: MigrationRequest | None = None
    """The newest one by config change, and what became of it."""
    actions: list[OperatorAction] = field(default_factory=list)
    """What operators decided, oldest first."""
    verified: VerifyVerdict | None = None
    """What the last verification found."""


def by_topic(
    statuses: Iterable[PartitionMigrationStatus],
) -> dict[str, list[PartitionMigrationStatus]]:
    """Grouped by topic name, partitions in order. A name may have had an older id: the live one
    is what the control plane reports."""
    grouped: dict[str, list[PartitionMigrationStatus]] = defaultdict(list)
    for status in sorted(statuses, key=lambda s: (s.topic, s.log.partition)):
        grouped[status.topic].append(status)
    return dict(grouped)


class KeptStatuses:
    """Of every topic at the last look, so that the next one reads what has changed."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._since: str | None = None
        self.topics: dict[str, list[PartitionMigrationStatus]] = {}
        """By name, partitions in order; without evidence."""
        self.told: dict[str, Told] = {}

    async def look(self) -> set[str]:
        """Names of which something is not as it was."""
        changes = await self._plane.migration_status_changes(self._since)
        await self._keep_told(changes)
        now = by_topic(changes.partitions)
        changed = {*(self.topics if changes.whole else changes.names), *now}
        for name in changed - now.keys():
            self.topics.pop(name, None)
        self.topics |= now
        moved: dict[str, dict[int, int]] = defaultdict(dict)
        for one in changes.moved:
            moved[one.topic][one.partition] = one.high_watermark
        for name, high in moved.items():
            self.topics[name] = [
                replace(s, high_watermark=high.get(s.log.partition, s.high_watermark))
                for s in self.topics[name]
            ]
        self._since = changes.upto
        return changed | moved.keys()

    async def _keep_told(self, changes: MigrationStatusChanges) -> None:
        if changes.whole:
            self.told = await self._plane.told()
        elif changes.names:
            for name in changes.names:
                self.told.pop(name, None)
            self.told |= await self._plane.told(changes.names)


def partition_row(
    status: PartitionMigrationStatus, report: PartitionReport | None = None
) -> PartitionRow:
    """The phase is the furthest one that was begun; the workflow knows better why it waits."""
    current = current_phase(status.phases)
    phase = current.phase if current is not None else None
    phase_status = current.status.value if current is not None else ""
    if _is_further(report, current) and report is not None:
        phase, phase_status = Phase(report.phase), PhaseStatus.WAITING.value
    done = sum(record.status is PhaseStatus.DONE for record in status.phases)
    ready = status.tiering_complete and status.boundary != UNDEFINED_OFFSET
    moved = status.state is not MigrationState.TIERED_ONLY
    reason = (current.waiting_reason or "") if current is not None else ""
    if report is not None and report.waiting_reason:
        reason = report.waiting_reason
    crossed = status.boundary != UNDEFINED_OFFSET
    return PartitionRow(
        partition=status.log.partition,
        state=status.state,
        phase=phase or ("tracking" if moved else ""),
        phase_status=phase_status,
        since=None if current is None else current.ended_at or current.started_at,
        waiting_reason="" if ready else reason,
        boundary=status.boundary if crossed else None,
        leader_epoch=status.boundary_epoch if crossed else None,
        high_watermark=status.high_watermark if crossed else None,
        generation=status.generation,
        producers_parked=status.quiesced,
        next_step=_next_step(status, phase, ready=ready),
        phases_done=done,
    )


def current_phase(phases: Iterable[PhaseRecord]) -> PhaseRecord | None:
    """The one that is not done, else the last one that is."""
    ordered = sorted(phases, key=lambda record: PHASE_ORDER.index(record.phase))
    unfinished = [record for record in ordered if record.status is not PhaseStatus.DONE]
    if unfinished:
        return unfinished[-1]
    return ordered[-1] if ordered else None


def _is_further(report: PartitionReport | None, current: PhaseRecord | None) -> bool:
    """The workflow stands before a phase that has left no evidence yet, as while it is paused."""
    if report is None or report.phase not in PHASE_ORDER:
        return False
    if current is None:
        return True
    return PHASE_ORDER.index(Phase(report.phase)) > PHASE_ORDER.index(current.phase)


def _next_step(status: PartitionMigrationStatus, phase: Phase | None, *, ready: bool) -> str:
    if status.state is MigrationState.TIERED_ONLY:
        return "nothing: the topic is classic"
    if ready or status.state is MigrationState.DISKLESS_ONLY:
        return "nothing"
    return phase_rule(phase).next_step if phase is not None else "validate"


def topic_row(
    statuses: list[PartitionMigrationStatus],
    workflow: TopicMigrationStatus | None,
    workflow_id: str,
    workflow_url: str | None,
) -> TopicRow:
    """``workflow`` is ``None`` when none runs, or when it did not answer."""
    reports: Mapping[int, PartitionReport] = (
        {} if workflow is None else {p.partition: p for p in reports_of(workflow)}
    )
    first = statuses[0] if statuses else None
    return TopicRow(
        topic=workflow.topic if workflow is not None else first.topic if first else "",
        topic_id=str(first.log.topic_id) if first else workflow.topic_id if workflow else "",
        stage=workflow.stage if workflow is not None else _stage(statuses),
        paused=workflow is not None and workflow.paused,
        waiting_reason=workflow.waiting_reason if workflow is not None else "",
        next_step=workflow.next_step if workflow is not None else "",
        workflow_id=workflow_id,
        workflow_url=workflow_url,
        partitions=[partition_row(s, reports.get(s.log.partition)) for s in statuses],
        options=workflow.options if workflow is not None else None,
    )


def _stage(statuses: list[PartitionMigrationStatus]) -> str:
    states = sorted({status.state.value for status in statuses})
    return ", ".join(state.lower().replace("_", " ") for state in states)


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything that was asked for, and what could not be learned."""

    topics: list[TopicRow]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a workflow answered of itself, and until when it is not asked again."""

    of: temporal.RunningTopic
    answer: TopicMigrationStatus
    until: float


def _with_told(row: TopicRow, told: Told) -> TopicRow:
    return replace(row, request=told.request, actions=list(told.actions), verified=told.verdict)


class Overviews:
    """Postgres must answer, Temporal should."""

    def __init__(self, settings: TemporalSettings, plane: ControlPlane) -> None:
        self._settings, self._plane = settings, plane
        self._client: Client | None = None
        self._kept = KeptStatuses(plane)
        self._resting: dict[str, TopicRow] = {}
        """Of topics without a workflow, of which nothing has changed since."""
        self._answers: dict[str, _Answer] = {}
        """Of topics with one, of which nothing has changed since."""
        self._places = asyncio.Semaphore(MOST_QUERIES)

    async def observe(self, topic: str | None) -> Overview:
        """``topic``, or all: then partitions that have not changed since the last look are not
        read again. Raises :class:`RefusedError` when nothing is known of ``topic``."""
        resting: dict[str, TopicRow] = {}
        if topic is None:
            for changed in await self._kept.look():
                self._resting.pop(changed, None)
                self._answers.pop(changed, None)
            statuses, told, resting = self._kept.topics, self._kept.told, self._resting
        else:
            self._answers.clear()
            statuses = by_topic(await self._plane.migration_status(topic))
            told = await self._plane.told([topic])
        notes: list[str] = []
        running: dict[str, temporal.RunningTopic] = {}
        try:
            self._client = self._client or await temporal.connect(self._settings)
            running = await self._running(self._client, topic)
        except TidelineError as error:
            notes.append(f"{error}; what only the workflows know is missing")
        rows = await asyncio.gather(
            *(
                self._row(name, statuses.get(name, []), running.get(name), notes, resting)
                for name in sorted(statuses.keys() | running.keys())
            )
        )
        rows += [
            self._asked_for(of.request)
            for name, of in sorted(told.items())
            if of.request is not None and name not in statuses and name not in running
        ]
        rows = [_with_told(row, told.get(row.topic, Told())) for row in rows]
        if topic is not None and not rows:
            raise RefusedError(
                f"topic {topic!r} does not migrate and never has. `tideline migrate {topic}` "
                "starts it"
            )
        # What a broker took past B0 is told for ever; everything else while it is so.
        notes += [
            str(found)
            for _, of in sorted(told.items())
            for found in of.findings
            if found.ended_at is None or found.kind is FindingKind.TAIL
        ]
        return Overview(list(rows), notes)

    async def _running(self, client: Client, topic: str | None) -> dict[str, temporal.RunningTopic]:
        """By topic. Also of topics that Postgres does not know yet."""
        return {each.topic: each for each in await temporal.running_topics(client, topic)}

    def _asked_for(self, request: MigrationRequest) -> TopicRow:
        """A topic of which only a request is known."""
        workflow_id = TopicRef(request.topic, request.topic_id.hex, 0).workflow_id
        return TopicRow(
            topic=request.topic,
            topic_id=str(request.topic_id),
            stage=f"request {request.state.value.replace('_', ' ')}",
            paused=False,
            waiting_reason=request.reason,
            next_step="",
            workflow_id=workflow_id,
            workflow_url=self._url(workflow_id),
        )

    async def _row(
        self,
        topic: str,
        statuses: list[PartitionMigrationStatus],
        running: temporal.RunningTopic | None,
        notes: list[str],
        resting: dict[str, TopicRow],
    ) -> TopicRow:
        if running is None:
            if topic not in resting:
                workflow_id = TopicRef(topic, statuses[0].log.topic_id.hex, 0).workflow_id
                resting[topic] = topic_row(statuses, None, workflow_id, self._url(workflow_id))
            return resting[topic]
        answer: TopicMigrationStatus | None = None
        try:
            answer = await self._answer(running)
        except TidelineError:
            notes.append(f"the workflow of {topic} did not answer: is the worker running?")
        return topic_row(statuses, answer, running.workflow_id, self._url(running.workflow_id))

    async def _answer(self, running: temporal.RunningTopic) -> TopicMigrationStatus | None:
        """The workflow's own status; its last one while nothing tells of a change."""
        if self._client is None:
            return None
        last = self._answers.get(running.topic)
        if last is not None and last.of == running and time.monotonic() < last.until:
            return last.answer
        async with self._places:
            with temporal.temporal_errors():
                answer: TopicMigrationStatus = await self._client.get_workflow_handle(
                    running.workflow_id
                ).query(
                    Query.STATUS.value,
                    result_type=TopicMigrationStatus,
                    rpc_timeout=ANSWER_WITHIN,
                )
        until = time.monotonic() + ANSWER_LASTS_S
        self._answers[running.topic] = _Answer(running, answer, until)
        return answer

    def _url(self, workflow_id: str) -> str | None:
        return temporal.workflow_url(self._settings, workflow_id)


async def find_topic(settings: WorkerSettings, topic: str) -> tuple[UUID, int]:
    """The topic's id and how many partitions have their B0: from Postgres, which knows every
    tracked topic, else from Kafka. Raises :class:`RefusedError` when neither knows it."""
    async with control_plane.connect(settings, application_name="tideline-cli") as plane:
        tracked = await plane.tracked_topic(topic)
    if tracked is not None and tracked.topic_id is not None:
        boundaries = [p for p in tracked.partitions.values() if p.boundary != UNDEFINED_OFFSET]
        return tracked.topic_id, len(boundaries)
    found = await resolve_topic(settings, topic, client_id="tideline-cli")
    return UUID(found.topic_id), 0


async def resolve_topic(settings: KafkaSettings, topic: str, *, client_id: str) -> TopicRef:
    """The topic and its id, as Kafka has them now.

    Raises :class:`KafkaUnavailable`, and :class:`RefusedError` when there is no such topic.
    """
    async with KafkaCluster.of(settings, client_id) as cluster:
        layout = await KafkaObserver(cluster, settings.kafka_request_timeout_ms).topic(topic)
    if layout is None:
        raise RefusedError(
            f"topic {topic!r} does not exist: check the spelling, names are case-sensitive"
        )
    return TopicRef(topic, layout.topic_id.hex, len(layout.partitions))
