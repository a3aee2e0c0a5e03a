"""The activities by the names that the workflows know (``tideline.domain.messages``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalio import activity

from activities import (
    configs,
    drain_transactions,
    quiesce,
    readiness,
    roll_and_flush,
    seed_and_persist,
    topic,
    validate,
    zombie_cleanup,
)
from tideline.domain.messages import (
    AbortDecision,
    BoundaryObservation,
    ConfigStep,
    JoinRequest,
    PartitionRef,
    PartitionSituation,
    PhaseInput,
    QuiesceResult,
    TopicActivity,
    TopicMigrationInput,
    TopicOutcome,
    TopicRef,
    TopicStep,
)
from tideline.domain.migration import Phase
from tideline.migration.connections import WorkerServices


class MigrationActivities:
    """Binds the services of one worker process to the activities."""

    def __init__(self, services: WorkerServices) -> None:
        self._services = services

    @property
    def pause_section(self) -> list[Callable[..., Any]]:
        """Those of the write pause and its neighbours: they must never queue behind a wait."""
        return [
            self.quiesce,
            self.roll_and_flush,
            self.seed_and_persist,
            self.observe_partition,
            self.reopen_partition,
            self.abort_migration,
        ]

    @property
    def waits(self) -> list[Callable[..., Any]]:
        """Those that may take long."""
        return [
            self.resolve_topic,
            self.join_topic_migration,
            self.validate_topic,
            self.begin_tracking,
            self.await_tracking,
            self.reconcile_configs,
            self.prove_coverage_for_roll,
            self.stop_tracking,
            self.validate,
            self.drain_transactions,
            self.zombie_cleanup,
            self.readiness,
        ]

    @property
    def all(self) -> list[Callable[..., Any]]:
        """Every activity."""
        return self.pause_section + self.waits

    @activity.defn(name=TopicActivity.RESOLVE_TOPIC)
    async def resolve_topic(self, given: TopicMigrationInput) -> TopicRef:
        return await topic.resolve_topic(self._services, given)

    @activity.defn(name=TopicActivity.JOIN_TOPIC_MIGRATION)
    async def join_topic_migration(self, request: JoinRequest) -> TopicOutcome:
        return await topic.join_topic_migration(self._services, request)

    @activity.defn(name=TopicActivity.VALIDATE_TOPIC)
    async def validate_topic(self, step: TopicStep) -> None:
        await validate.validate_topic(self._services, step)

    @activity.defn(name=TopicActivity.BEGIN_TRACKING)
    async def begin_tracking(self, step: TopicStep) -> None:
        await topic.begin_tracking(self._services, step.ref)

    @activity.defn(name=TopicActivity.AWAIT_TRACKING)
    async def await_tracking(self, step: TopicStep) -> None:
        await topic.await_tracking(self._services, step.ref)

    @activity.defn(name=TopicActivity.RECONCILE_CONFIGS)
    async def reconcile_configs(self, step: ConfigStep) -> None:
        await configs.reconcile_configs(self._services, step)

    @activity.defn(name=TopicActivity.PROVE_COVERAGE_FOR_ROLL)
    async def prove_coverage_for_roll(self, step: TopicStep) -> None:
        await configs.prove_coverage_for_roll(self._services, step.ref)

    @activity.defn(name=TopicActivity.ABORT_MIGRATION)
    async def abort_migration(self, step: TopicStep) -> AbortDecision:
        return await topic.abort_migration(self._services, step.ref)

    @activity.defn(name=TopicActivity.STOP_TRACKING)
    async def stop_tracking(self, step: TopicStep) -> None:
        await topic.stop_tracking(self._services, step.ref)

    @activity.defn(name=TopicActivity.OBSERVE_PARTITION)
    async def observe_partition(self, ref: PartitionRef) -> PartitionSituation:
        return await topic.observe_partition(self._services, ref)

    @activity.defn(name=TopicActivity.REOPEN_PARTITION)
    async def reopen_partition(self, given: PhaseInput) -> PartitionSituation:
        return await topic.reopen_partition(self._services, given)

    @activity.defn(name=Phase.VALIDATE)
    async def validate(self, given: PhaseInput) -> None:
        await validate.validate_partition(self._services, given)

    @activity.defn(name=Phase.DRAIN_TRANSACTIONS)
    async def drain_transactions(self, given: PhaseInput) -> None:
        await drain_transactions.drain_transactions(self._services, given)

    @activity.defn(name=Phase.QUIESCE)
    async def quiesce(self, given: PhaseInput) -> QuiesceResult:
        return await quiesce.quiesce(self._services, given)

    @activity.defn(name=Phase.ROLL_AND_FLUSH)
    async def roll_and_flush(self, given: PhaseInput) -> BoundaryObservation:
        return await roll_and_flush.roll_and_flush(self._services, given)

    @activity.defn(name=Phase.SEED_AND_PERSIST)
    async def seed_and_persist(self, given: PhaseInput) -> None:
        await seed_and_persist.seed_and_persist(self._services, given)

    @activity.defn(name=Phase.ZOMBIE_CLEANUP)
    async def zombie_cleanup(self, given: PhaseInput) -> None:
        await zombie_cleanup.zombie_cleanup(self._services, given)

    @activity.defn(name=Phase.READINESS)
    async def readiness(self, given: PhaseInput) -> None:
        await readiness.readiness(self._services, given)
