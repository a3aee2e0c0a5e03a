"""Many partitions: the fan-out is bounded, histories stay short, every replay gives the same."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.testing import WorkflowEnvironment

from tests.unit.workflows.world import World, ended
from tideline.domain.migration import Phase
from workflows import calls


async def test_no_more_partitions_than_allowed_are_between_validate_and_b0(
    world: World, server: WorkflowEnvironment
) -> None:
    world.partitions = 10
    async with world.worker(server.client):
        outcome = await world.run(
            server.client, {"topic": world.topic, "options": {"parallel_partitions": 3}}
        )
    assert len(outcome.boundaries) == 10
    assert world.most_at_once <= 3


async def test_a_long_migration_continues_as_new_and_moves_every_partition_once(
    world: World, server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LONG_HISTORY", 150)
    world.partitions = 30
    async with world.worker(server.client):
        handle = await world.start(
            server.client, {"topic": world.topic, "options": {"parallel_partitions": 8}}
        )
        outcome = await ended(handle)
        first = server.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
        status = (await first.describe()).status
    assert status is WorkflowExecutionStatus.CONTINUED_AS_NEW
    assert outcome.boundaries == {str(p): 100 + p for p in range(30)}
    assert world.count(Phase.QUIESCE) == 30


async def test_a_partition_that_waits_long_continues_as_new_and_still_hears_its_topic(
    world: World, server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LONG_HISTORY", 30)
    world.partitions = 2
    held = world.hold(Phase.ZOMBIE_CLEANUP)
    async with world.worker(server.client):
        handle = await world.start(server.client)
        await asyncio.wait_for(world.reached[Phase.ZOMBIE_CLEANUP].wait(), 20)
        held.set()
        assert (await ended(handle)).outcome == "hybrid"
        partition = server.client.get_workflow_handle(world.ref.partition_workflow_id(0))
        first = (await partition.fetch_history()).events[0]
    assert first.workflow_execution_started_event_attributes.continued_execution_run_id
    assert world.count(Phase.QUIESCE) == 2


async def test_a_worker_that_remembers_nothing_replays_to_the_same_end(
    world: World, server: WorkflowEnvironment
) -> None:
    async with world.worker(server.client, max_cached_workflows=0):
        assert (await world.run(server.client)).outcome == "hybrid"


async def test_a_worker_that_is_replaced_midway_is_no_loss(
    world: World, server: WorkflowEnvironment
) -> None:
    held = world.hold(Phase.DRAIN_TRANSACTIONS)
    async with world.worker(server.client):
        handle = await world.start(server.client)
        await asyncio.wait_for(world.reached[Phase.DRAIN_TRANSACTIONS].wait(), 20)
    held.set()
    async with world.worker(server.client):
        assert (await ended(handle)).outcome == "hybrid"
    assert world.logs[0].generation == 1
