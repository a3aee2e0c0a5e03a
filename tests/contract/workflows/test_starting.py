"""Every way to start a migration meets at one workflow; wrong inputs change nothing."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from tests.contract.workflows.world import World, ended, fails, reach, soon
from tideline.domain import failures
from tideline.domain.messages import (
    SEARCH_ATTRIBUTES,
    TOPIC_WORKFLOW,
    TopicActivity,
)
from tideline.domain.migration import Phase
from tideline.domain.waits import Waits
from tideline.temporal import RunningTopic, knows_search_attribute, running_topics
from workflows.topic_state import Stage


@pytest.fixture
def client(server: WorkflowEnvironment) -> Client:
    return server.client


async def test_a_second_start_joins_the_first(world: World, client: Client) -> None:
    held = world.hold(Phase.DRAIN_TRANSACTIONS)
    async with world.worker(client):
        first = await world.start(client)
        await reach(world, Phase.DRAIN_TRANSACTIONS)
        second = await world.start(client)
        held.set()
        assert await ended(first) == await ended(second)
    assert world.count(Phase.QUIESCE) == 1


async def test_a_start_from_the_ui_under_any_id_joins_and_returns_the_outcome(
    world: World, client: Client
) -> None:
    held = world.hold(Phase.DRAIN_TRANSACTIONS)
    async with world.worker(client):
        first = await world.start(client)
        await reach(world, Phase.DRAIN_TRANSACTIONS)
        by_hand = await world.start(client, workflow_id=f"by-hand-{world.topic}")
        await reach(world, TopicActivity.FOLLOW_TOPIC_MIGRATION)
        held.set()
        assert await ended(by_hand) == await ended(first)
    assert world.count(Phase.QUIESCE) == 1


async def test_a_start_from_the_ui_alone_starts_the_topics_workflow(
    world: World, client: Client
) -> None:
    async with world.worker(client):
        by_hand = await world.start(client, workflow_id=f"by-hand-{world.topic}")
        assert (await ended(by_hand)).outcome == "hybrid"
        topics = client.get_workflow_handle(world.ref.workflow_id)
        assert (await ended(topics))["outcome"] == "hybrid"


async def test_starts_by_hand_leave_room_for_the_migration_that_they_wait_for(
    world: World, client: Client
) -> None:
    """As many of them as the worker has places for activities that wait."""
    async with world.worker(client, waits=2):
        by_hand = [
            await world.start(client, workflow_id=f"by-hand-{n}-{world.topic}") for n in range(2)
        ]
        for follower in by_hand:
            assert (await ended(follower)).outcome == "hybrid"
    assert world.count(Phase.QUIESCE) == 1


async def test_running_topics_are_listed_with_their_stage_and_reason_and_followers_are_not(
    world: World, client: Client
) -> None:
    name = TopicActivity.AWAIT_TRACKING
    world.script[name] = fails(failures.WAITING, "gateway 2 is silent", times=999)
    async with world.worker(client):
        handle = await world.start(client, workflow_id=f"by-hand-{world.topic}")
        expected = RunningTopic(
            world.ref.workflow_id,
            world.topic,
            Stage.TRACKING,
            "gateway 2 is silent",
            Waits.GATEWAY,
        )

        async def listed() -> bool:
            return await running_topics(client, world.topic) == [expected]

        await soon("the topic to be listed", listed)  # the server's index is a moment late
        assert expected in await running_topics(client)
        world.script[name].clear()
        await ended(handle)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("orders", "JSON object"),
        ([1], "a list"),
        ({}, "topic: missing"),
        ({"topic": 7}, "topic: 7"),
        ({"topic": "a b"}, "no topic name"),
        ({"topic": "orders", "option": {}}, "option: no such field"),
        ({"topic": "orders", "options": {"durability": "maybe"}}, "fsynced, replicated, tiered"),
        ({"topic": "orders", "options": {"parallel_partitions": 0}}, "from 1 to 1000"),
        ({"topic": "orders", "options": {"quiesce_hold_ms": "10s"}}, "whole number (ms)"),
    ],
)
async def test_a_wrong_input_fails_naming_field_and_rule(
    world: World, client: Client, given: Any, said: str
) -> None:
    async with world.worker(client):
        handle = await world.start(client, given, workflow_id=f"wrong-{world.topic}")
        with pytest.raises(WorkflowFailureError) as failed:
            await ended(handle)
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "InvalidInput"
    assert said in failed.value.cause.message
    assert world.calls == []


async def test_a_start_without_any_input_fails_with_an_example(
    world: World, client: Client
) -> None:
    async with world.worker(client):
        handle = await client.start_workflow(
            TOPIC_WORKFLOW, id=f"none-{world.topic}", task_queue=world.queue
        )
        with pytest.raises(WorkflowFailureError) as failed:
            await ended(handle)
    assert '{"topic": "orders"}' in str(failed.value.cause)


async def test_a_topic_that_is_hybrid_already_stays_as_it_is(world: World, client: Client) -> None:
    async with world.worker(client):
        first = await world.run(client)
        again = await world.run(client)
    assert again == first
    assert world.count(Phase.QUIESCE) == 1


async def test_a_topic_workflow_that_was_terminated_finds_its_place_when_started_again(
    world: World, client: Client
) -> None:
    world.partitions = 3
    held = world.hold(Phase.ZOMBIE_CLEANUP)
    async with world.worker(client):
        first = await world.start(client)
        await reach(world, Phase.ZOMBIE_CLEANUP)
        await first.terminate("a test")
        again = await world.start(client)
        held.set()
        assert (await ended(again)).outcome == "hybrid"
    assert world.count(Phase.QUIESCE) == 3


async def test_a_partition_workflow_that_was_terminated_is_started_again(
    world: World, client: Client
) -> None:
    held = world.hold(Phase.DRAIN_TRANSACTIONS)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, Phase.DRAIN_TRANSACTIONS)
        await client.get_workflow_handle(world.ref.partition_workflow_id(0)).terminate("a test")
        held.set()
        assert (await ended(handle)).outcome == "hybrid"


async def test_which_search_attributes_a_namespace_has_a_query_tells(
    server: WorkflowEnvironment,
) -> None:
    """By the workflow service, as for a worker that has no other."""
    for name in SEARCH_ATTRIBUTES:
        assert await knows_search_attribute(server.client, name)
    assert not await knows_search_attribute(server.client, "TidelineNobody")
