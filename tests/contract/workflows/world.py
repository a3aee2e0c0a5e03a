"""A world in memory that the activities' names act on, so that the workflows can be run alone."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar
from uuid import UUID

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities.following import follow_topic_migration
from tests.support.waiting import eventually, within
from tests.temporal_build import BUILD
from tideline.domain import failures
from tideline.domain.messages import (
    TOPIC_WORKFLOW,
    AbortDecision,
    BoundaryObservation,
    ConfigStage,
    ConfigStep,
    Followed,
    GrowthFound,
    JoinRequest,
    PartitionRef,
    PartitionShare,
    PartitionSituation,
    PhaseInput,
    PlaceRequest,
    QuiesceResult,
    ReadinessFound,
    ReadinessRequest,
    TopicActivity,
    TopicMigrationInput,
    TopicOutcome,
    TopicRef,
    TopicStep,
    waits_queue,
)
from tideline.domain.migration import PHASE_ORDER, UNDEFINED_OFFSET, Phase
from tideline.domain.operator_choices import (
    CompletionOutcome,
    CompletionRequest,
    ConfigurationRecord,
    Decider,
    GapOutcome,
    GapStep,
)
from tideline.domain.options import MigrationOptions
from workflows.partition_migration import PartitionMigration
from workflows.topic_migration import TopicMigration

T = TypeVar("T")

GONE_KINDS = (failures.UNKNOWN_TOPIC, failures.TOPIC_CHANGED)
WORKFLOWS = (TopicMigration, PartitionMigration)
WITHIN_S = 50
"""For anything that a test waits for: less than the minute after which a topic leaves partitions
alone that do not hear of its end."""
TOPIC_ID = UUID("6f1d3a52-0f1a-4b0e-9a39-5f0a52f1c0de")
CLUSTER = "kafka-of-the-world"
ADA = Decider("ada", "a hanging transaction")
"""Who steers."""


def fails(kind: str, message: str = "", *, times: int = 1) -> list[ApplicationError]:
    """The next ``times`` calls fail so."""
    error = ApplicationError(
        message or f"a scripted {kind}", type=kind, non_retryable=kind in failures.NON_RETRYABLE
    )
    return [error] * times


def of(name: str, partition: int) -> str:
    """The calls of ``name`` for one partition: as a key of what a world scripts and holds."""
    return f"{name}[{partition}]"


@dataclass
class FakePartition:
    """What Postgres and Kafka know of a partition."""

    generation: int = 0
    quiesced: bool = False
    boundary: int = UNDEFINED_OFFSET
    ready: bool = False


@dataclass
class World:
    """Kafka, Postgres and the gateways, reduced to what the workflows can tell apart."""

    topic: str = "orders"
    partitions: int = 1
    client: Client | None = None
    tracked: bool = False
    unknown: bool = False
    """Postgres knows nothing of the topic, which was tracked: a history was begun without that."""
    aborted: bool = False
    stages: list[ConfigStage] = field(default_factory=list)
    calls: list[tuple[str, int]] = field(default_factory=list)
    """Activity and partition (-1: the topic), in the order of their starts."""
    script: dict[str, list[ApplicationError]] = field(default_factory=lambda: defaultdict(list))
    held: dict[str, asyncio.Event] = field(default_factory=dict)
    reached: dict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    before: dict[str, Callable[[], None]] = field(default_factory=dict)
    logs: dict[int, FakePartition] = field(default_factory=lambda: defaultdict(FakePartition))
    most_at_once: int = 0
    decided: list[tuple[Decider, Any]] = field(default_factory=list)
    steered: list[tuple[str, int | None, Decider]] = field(default_factory=list)
    """By operators: who and why, and what."""
    options: list[MigrationOptions] = field(default_factory=list)
    """With which a drain was asked for."""
    queue: str = ""
    """Without one its own: the next test does not carry on what one that failed leaves running."""
    share: int | None = None
    """What operators allow of the topic's partitions."""
    grown: str = ""
    """What came past the gateways, when the migration ends."""
    places: list[str] = field(default_factory=list)
    """Runs that have one of the places of topics that migrate at once."""
    _between: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.queue = self.queue or self.topic

    @property
    def ref(self) -> TopicRef:
        return TopicRef(self.topic, TOPIC_ID.hex, self.partitions, CLUSTER)

    @property
    def unhurried(self) -> dict[str, Any]:
        """An input with which no write pause ends because the machine is busy."""
        return {"topic": self.topic, "options": {"quiesce_hold_ms": 60_000}}

    def hold(self, name: str) -> asyncio.Event:
        """Let every call of ``name`` wait until the event that is returned is set."""
        return self.held.setdefault(name, asyncio.Event())

    def count(self, name: str) -> int:
        return sum(called == name for called, _ in self.calls)

    def order(self, partition: int = 0) -> list[str]:
        """What was called for a partition, in order."""
        return [name for name, of in self.calls if of == partition]

    def last_words(self) -> str:
        """What was called, in order."""
        return f"{len(self.calls)} calls: " + ", ".join(of(*call) for call in self.calls)

    async def _enter(self, name: str, partition: int = -1) -> None:
        self.calls.append((name, partition))
        if name in self.before:
            self.before[name]()
        keys = (name, of(name, partition))
        for key in keys:
            self.reached[key].set()
        for key in keys:
            while key in self.held and not self.held[key].is_set():
                if not activity.info().is_local:
                    activity.heartbeat()
                await asyncio.sleep(0.02)
            if self.script[key]:
                raise self.script[key].pop(0)
        if self.unknown and name in PHASE_ORDER:
            raise fails(failures.UNTRACKED)[0]

    def _not_stale(self, given: PhaseInput) -> FakePartition:
        log = self.logs[given.ref.partition]
        if self.aborted or log.generation != given.generation:
            raise fails(failures.STALE_GENERATION)[0]
        return log

    # Topic

    @activity.defn(name=TopicActivity.RESOLVE_TOPIC)
    async def resolve_topic(self, given: TopicMigrationInput) -> TopicRef:
        await self._enter(TopicActivity.RESOLVE_TOPIC)
        if given.topic != self.topic:
            raise fails(failures.UNKNOWN_TOPIC, f"topic {given.topic!r} does not exist")[0]
        return self.ref

    @activity.defn(name=TopicActivity.FOLLOW_TOPIC_MIGRATION)
    async def follow(self, request: JoinRequest) -> Followed:
        await self._enter(TopicActivity.FOLLOW_TOPIC_MIGRATION)
        assert self.client is not None
        services: Any = SimpleNamespace(
            temporal=self.client, settings=SimpleNamespace(temporal_task_queue=self.queue)
        )
        return await follow_topic_migration(services, request)

    @activity.defn(name=TopicActivity.VALIDATE_TOPIC)
    async def validate_topic(self, step: TopicStep) -> None:
        await self._enter(TopicActivity.VALIDATE_TOPIC)

    @activity.defn(name=TopicActivity.TAKE_PLACE)
    async def take_place(self, request: PlaceRequest) -> None:
        await self._enter(TopicActivity.TAKE_PLACE)
        self.places.append(request.run)

    @activity.defn(name=TopicActivity.LEAVE_PLACE)
    async def leave_place(self, request: PlaceRequest) -> None:
        await self._enter(TopicActivity.LEAVE_PLACE)
        if request.run in self.places:
            self.places.remove(request.run)

    @activity.defn(name=TopicActivity.PARTITION_SHARE)
    async def partition_share(self, request: PlaceRequest) -> PartitionShare:
        await self._enter(TopicActivity.PARTITION_SHARE)
        return PartitionShare(self.share)

    @activity.defn(name=TopicActivity.BEGIN_TRACKING)
    async def begin_tracking(self, step: TopicStep) -> None:
        await self._enter(TopicActivity.BEGIN_TRACKING)
        self.tracked, self.aborted, self.unknown = True, False, False

    @activity.defn(name=TopicActivity.AWAIT_TRACKING)
    async def await_tracking(self, step: TopicStep) -> None:
        await self._enter(TopicActivity.AWAIT_TRACKING)

    @activity.defn(name=TopicActivity.RECONCILE_CONFIGS)
    async def reconcile_configs(self, step: ConfigStep) -> None:
        await self._enter(f"{TopicActivity.RECONCILE_CONFIGS}:{step.stage}")
        self.stages.append(step.stage)

    @activity.defn(name=TopicActivity.PROVE_COVERAGE_FOR_ROLL)
    async def prove_coverage_for_roll(self, step: TopicStep) -> None:
        await self._enter(TopicActivity.PROVE_COVERAGE_FOR_ROLL)

    @activity.defn(name=TopicActivity.AWAIT_READINESS)
    async def await_readiness(self, request: ReadinessRequest) -> ReadinessFound:
        """What is scripted and held of READINESS holds for each partition that is looked at."""
        await self._enter(TopicActivity.AWAIT_READINESS)
        found = ReadinessFound()
        for partition in request.partitions:
            try:
                await self._enter(Phase.READINESS, partition)
            except ApplicationError as error:
                if error.type == failures.WAITING:
                    found.reasons[str(partition)] = error.message
                    continue
                if error.type in (failures.UNREACHABLE, *GONE_KINDS):
                    raise
                # Its own workflow meets with it.
                self.script[of(Phase.READINESS, partition)].insert(0, error)
                found.own_look.append(partition)
            else:
                self.logs[partition].ready = True
                found.ready.append(partition)
        return found

    @activity.defn(name=TopicActivity.TELL_OF_GROWTH)
    async def tell_of_growth(self, step: TopicStep) -> GrowthFound:
        await self._enter(TopicActivity.TELL_OF_GROWTH)
        return GrowthFound(self.grown)

    @activity.defn(name=TopicActivity.ABORT_MIGRATION)
    async def abort_migration(self, step: TopicStep) -> AbortDecision:
        await self._enter(TopicActivity.ABORT_MIGRATION)
        crossed = [p for p, log in self.logs.items() if log.boundary != UNDEFINED_OFFSET]
        if crossed:
            return AbortDecision(False, f"B0 of partition {crossed} is set")
        if self.unknown:
            return AbortDecision(True, "it is not tracked", tracked=False)
        self.aborted = True
        return AbortDecision(True)

    @activity.defn(name=TopicActivity.RECORD_CONFIGURATION)
    async def record_configuration(self, record: ConfigurationRecord) -> None:
        await self._enter(TopicActivity.RECORD_CONFIGURATION)
        assert record.ref.cluster_id == CLUSTER, "a worker of another cluster would keep it"
        if record.action != "configure":
            self.steered.append((record.action, record.partition, record.decider))
            return
        self.decided.append((record.decider, record.changed))

    @activity.defn(name=TopicActivity.FORCE_COMPLETION)
    async def force_completion(self, request: CompletionRequest) -> CompletionOutcome:
        await self._enter(TopicActivity.FORCE_COMPLETION)
        without = [p for p in range(self.partitions) if self.logs[p].boundary == UNDEFINED_OFFSET]
        if without:
            raise fails(failures.REFUSED, f"partition {without} has no B0")[0]
        incomplete = [p for p in range(self.partitions) if not self.logs[p].ready]
        self.decided.append((request.decider, incomplete))
        return CompletionOutcome(incomplete)

    @activity.defn(name=TopicActivity.ACCEPT_GAP)
    async def accept_gap(self, step: GapStep) -> GapOutcome:
        request = step.request
        assert step.ref.topic_id == self.ref.topic_id
        await self._enter(TopicActivity.ACCEPT_GAP, request.partition)
        self.decided.append((request.decider, (request.first, request.end)))
        return GapOutcome(request.partition, request.first, request.end, 4)

    @activity.defn(name=TopicActivity.STOP_TRACKING)
    async def stop_tracking(self, step: TopicStep) -> None:
        await self._enter(TopicActivity.STOP_TRACKING)
        self.tracked = False

    @activity.defn(name=TopicActivity.OBSERVE_PARTITION)
    async def observe_partition(self, ref: PartitionRef) -> PartitionSituation:
        await self._enter(TopicActivity.OBSERVE_PARTITION, ref.partition)
        return self._situation(ref.partition)

    @activity.defn(name=TopicActivity.REOPEN_PARTITION)
    async def reopen_partition(self, given: PhaseInput) -> PartitionSituation:
        await self._enter(TopicActivity.REOPEN_PARTITION, given.ref.partition)
        self.logs[given.ref.partition].quiesced = False
        return self._situation(given.ref.partition)

    def _situation(self, partition: int) -> PartitionSituation:
        log = self.logs[partition]
        if self.unknown:
            return PartitionSituation(False, why="untracked")
        if not self.tracked or self.aborted:
            return PartitionSituation(False, why="aborted")
        epoch = 0 if log.boundary != UNDEFINED_OFFSET else -1
        return PartitionSituation(
            True, log.generation, log.quiesced, log.boundary, epoch, log.ready
        )

    # Phases

    @activity.defn(name=Phase.VALIDATE)
    async def validate(self, given: PhaseInput) -> None:
        self._between.add(given.ref.partition)
        self.most_at_once = max(self.most_at_once, len(self._between))
        await self._enter(Phase.VALIDATE, given.ref.partition)

    @activity.defn(name=Phase.DRAIN_TRANSACTIONS)
    async def drain_transactions(self, given: PhaseInput) -> None:
        self.options.append(given.options)
        await self._enter(Phase.DRAIN_TRANSACTIONS, given.ref.partition)

    @activity.defn(name=Phase.QUIESCE)
    async def quiesce(self, given: PhaseInput) -> QuiesceResult:
        await self._enter(Phase.QUIESCE, given.ref.partition)
        log = self.logs[given.ref.partition]
        if self.aborted:
            raise fails(failures.STALE_GENERATION)[0]
        if log.boundary != UNDEFINED_OFFSET:
            raise fails(failures.REFUSED, "it has its boundary already")[0]
        log.generation += 1
        log.quiesced = True
        return QuiesceResult(log.generation, 99)

    @activity.defn(name=Phase.ROLL_AND_FLUSH)
    async def roll_and_flush(self, given: PhaseInput) -> BoundaryObservation:
        await self._enter(Phase.ROLL_AND_FLUSH, given.ref.partition)
        return BoundaryObservation(100 + given.ref.partition, 1, 0, 0, {"1": 100})

    @activity.defn(name=Phase.SEED_AND_PERSIST)
    async def seed_and_persist(self, given: PhaseInput) -> None:
        await self._enter(Phase.SEED_AND_PERSIST, given.ref.partition)
        log = self._not_stale(given)
        log.boundary, log.quiesced = given.boundary, False
        self._between.discard(given.ref.partition)

    @activity.defn(name=Phase.ZOMBIE_CLEANUP)
    async def zombie_cleanup(self, given: PhaseInput) -> None:
        await self._behind_boundary(Phase.ZOMBIE_CLEANUP, given)

    @activity.defn(name=Phase.READINESS)
    async def readiness(self, given: PhaseInput) -> None:
        await self._behind_boundary(Phase.READINESS, given)
        self.logs[given.ref.partition].ready = True

    async def _behind_boundary(self, phase: Phase, given: PhaseInput) -> None:
        try:
            await self._enter(phase, given.ref.partition)
        except ApplicationError as error:
            if error.type == failures.BOUNDARY_RESET:
                self.logs[given.ref.partition].boundary = UNDEFINED_OFFSET
            raise

    @property
    def activities(self) -> Sequence[Callable[..., Any]]:
        return [
            getattr(self, name)
            for name in dir(type(self))
            if hasattr(getattr(type(self), name), "__temporal_activity_definition")
        ]

    @asynccontextmanager
    async def worker(
        self,
        client: Client,
        waits: int = 100,
        knows: Sequence[type] = WORKFLOWS,
        **options: Any,
    ) -> AsyncIterator[None]:
        """Both queues of the worker process, over this world. ``waits``: activities that wait at
        once."""
        self.client = client
        async with (
            Worker(
                client,
                task_queue=self.queue,
                workflows=knows,
                activities=self.activities,
                deployment_config=BUILD,
                **options,
            ),
            Worker(
                client,
                task_queue=waits_queue(self.queue),
                activities=self.activities,
                max_concurrent_activities=waits,
                deployment_config=BUILD,
            ),
        ):
            yield

    async def start(
        self, client: Client, given: Any = None, workflow_id: str | None = None
    ) -> WorkflowHandle[Any, TopicOutcome]:
        """Start the topic's migration, or join it."""
        return await client.start_workflow(
            TOPIC_WORKFLOW,
            given if given is not None else {"topic": self.topic},
            id=workflow_id or self.ref.workflow_id,
            task_queue=self.queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            result_type=TopicOutcome,
        )

    async def run(self, client: Client, given: Any = None) -> TopicOutcome:
        """Migrate to the end."""
        return await ended(await self.start(client, given))


async def ended(handle: WorkflowHandle[Any, T]) -> T:
    """The workflow's result; a test that hangs fails."""
    return await within(f"the end of {handle.id}", handle.result(), WITHIN_S)


async def reach(world: World, name: str) -> None:
    """Wait until an activity is called."""
    await within(f"a call of {name}", world.reached[name].wait(), WITHIN_S)


async def soon(what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds."""
    await eventually(what, holds, WITHIN_S)
