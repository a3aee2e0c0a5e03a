"""A migration from start to hybrid, over a fake world."""

from __future__ import annotations

import pytest
from temporalio.api.enums.v1 import ParentClosePolicy
from temporalio.client import Client

from tests.contract.workflows.world import World, ended
from tideline.domain.messages import ConfigStage, TopicActivity, waits_queue
from tideline.domain.migration import PHASE_ORDER


async def test_a_topic_named_in_one_field_becomes_hybrid(world: World, client: Client) -> None:
    world.partitions = 3
    async with world.worker(client):
        outcome = await world.run(client)
    assert outcome.outcome == "hybrid"
    assert outcome.boundaries == {"0": 100, "1": 101, "2": 102}


@pytest.mark.usefixtures("one_try")
async def test_each_partition_goes_through_the_seven_phases_in_order(
    world: World, client: Client
) -> None:
    async with world.worker(client):
        await world.run(client)
    assert [name for name in world.order() if name in set(PHASE_ORDER)] == list(PHASE_ORDER)


async def test_configs_are_held_stage_by_stage(world: World, client: Client) -> None:
    async with world.worker(client):
        await world.run(client)
    assert world.stages == [
        ConfigStage.TRACKED,
        ConfigStage.ARMED,
        ConfigStage.CROSSED,
        ConfigStage.ROLLING,
        ConfigStage.FROZEN,
    ]


async def test_a_migration_does_not_end_as_if_what_came_past_the_gateways_did_not_exist(
    world: World, client: Client
) -> None:
    world.grown = "partition 1 (log ends by replica: 1: 4) came past the gateways"
    async with world.worker(client):
        outcome = await world.run(client)
    assert (outcome.outcome, outcome.reason) == ("hybrid", world.grown)


async def test_what_may_wait_holds_no_place_of_a_write_pause_and_partitions_outlive_their_topic(
    world: World, client: Client
) -> None:
    """Neither is a command that a replay compares."""
    async with world.worker(client):
        handle = await world.start(client)
        await ended(handle)
        events = (await handle.fetch_history()).events
    asked = [event.activity_task_scheduled_event_attributes for event in events]
    queues = {activity.activity_type.name: activity.task_queue.name for activity in asked}
    beside_pauses = [name for name, queue in queues.items() if queue == world.queue]
    assert beside_pauses == [TopicActivity.PARTITION_SHARE, TopicActivity.LEAVE_PLACE]
    assert queues[TopicActivity.AWAIT_READINESS] == waits_queue(world.queue)
    started = [
        event.start_child_workflow_execution_initiated_event_attributes.parent_close_policy
        for event in events
        if event.HasField("start_child_workflow_execution_initiated_event_attributes")
    ]
    assert started == [ParentClosePolicy.PARENT_CLOSE_POLICY_ABANDON]
