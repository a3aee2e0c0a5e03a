"""One topic through every activity of its migration, as its workflow calls them when nothing has to
be tried again; without Temporal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from activities.configs import prove_coverage_for_roll, reconcile_configs
from activities.drain_transactions import drain_transactions
from activities.places import leave_place, take_place
from activities.quiesce import quiesce
from activities.roll_and_flush import roll_and_flush
from activities.seed_and_persist import seed_and_persist
from activities.topic import await_tracking, begin_tracking, tell_of_growth
from activities.topic_readiness import await_readiness
from activities.validate import validate_partition
from activities.zombie_cleanup import zombie_cleanup
from tideline.domain.messages import (
    ConfigStage,
    ConfigStep,
    GrowthFound,
    PartitionRef,
    PhaseInput,
    PlaceRequest,
    ReadinessRequest,
    TopicRef,
    TopicStep,
)
from tideline.domain.options import MigrationOptions
from tideline.migration.connections import WorkerServices

RUN = "run-1"


async def cross(services: WorkerServices, ref: PartitionRef, options: MigrationOptions) -> None:
    """The phases up to the cleanup behind B0."""
    given = PhaseInput(ref, options)
    await validate_partition(services, given)
    await drain_transactions(services, given)
    given = replace(given, generation=(await quiesce(services, given)).generation)
    end = await roll_and_flush(services, given)
    given = replace(given, boundary=end.boundary, leader_epoch=end.leader_epoch)
    await seed_and_persist(services, given)
    await zombie_cleanup(services, given)


async def migrate(
    services: WorkerServices,
    ref: TopicRef,
    options: MigrationOptions,
    tracked: Callable[[], Awaitable[None]],
) -> None:
    """To a topic that is hybrid. ``tracked``: the gateways acknowledge it."""

    async def configs(stage: ConfigStage) -> None:
        await reconcile_configs(services, ConfigStep(ref, options, stage))

    step, place = TopicStep(ref, options), PlaceRequest(ref, RUN)
    partitions = range(ref.partitions)
    await take_place(services, place)
    await begin_tracking(services, step)
    await tracked()
    await await_tracking(services, step)
    await configs(ConfigStage.TRACKED)
    await configs(ConfigStage.ARMED)
    for partition in partitions:
        await cross(services, PartitionRef(ref.topic, ref.topic_id, partition), options)
    await configs(ConfigStage.CROSSED)
    await prove_coverage_for_roll(services, step)
    await configs(ConfigStage.ROLLING)
    found = await await_readiness(services, ReadinessRequest(ref, options, list(partitions)))
    assert found.ready == list(partitions), found
    await configs(ConfigStage.FROZEN)
    assert await tell_of_growth(services, step) == GrowthFound()
    await leave_place(services, place)
