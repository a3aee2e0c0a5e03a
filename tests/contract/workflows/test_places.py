"""A topic's migration begins when it has one of the places of topics that migrate at once."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError
from temporalio.testing import WorkflowEnvironment

from activities import places
from tests.contract.workflows.world import ADA, World, ended, fails, reach, soon
from tideline.control_plane.memory import MemoryControlPlane
from tideline.domain import failures
from tideline.domain.messages import (
    AbortDecision,
    PlaceRequest,
    TopicActivity,
    TopicMigrationStatus,
    TopicRef,
)
from tideline.domain.migration import Phase
from tideline.domain.places import PlaceHolder, waiting_reason

REASON = waiting_reason(5, 2)


class Sharing(World):
    """A topic that shares the places of others: those of a plane in memory, by the activities."""

    services: Any

    @classmethod
    def of(cls, services: Any) -> Sharing:
        topic = f"orders-{uuid4().hex[:8]}"
        world = cls(topic=topic)
        world.services = services
        return world

    @property
    def ref(self) -> TopicRef:
        return TopicRef(self.topic, UUID(self.topic.removeprefix("orders-").ljust(32, "0")).hex, 1)

    @activity.defn(name=TopicActivity.TAKE_PLACE)
    async def take_place(self, request: PlaceRequest) -> None:
        await self._enter(TopicActivity.TAKE_PLACE)
        await places.take_place(self.services, request)

    @activity.defn(name=TopicActivity.LEAVE_PLACE)
    async def leave_place(self, request: PlaceRequest) -> None:
        await self._enter(TopicActivity.LEAVE_PLACE)
        await places.leave_place(self.services, request)


def shared(client: Client, most: int) -> Any:
    return SimpleNamespace(
        control_plane=MemoryControlPlane(lambda: 0),
        settings=SimpleNamespace(migration_parallel_topics=most),
        temporal=client,
    )


async def status(client: Client, world: World) -> TopicMigrationStatus:
    handle = client.get_workflow_handle(world.ref.workflow_id)
    return await handle.query("status", result_type=TopicMigrationStatus)


async def test_a_place_is_taken_before_tracking_and_given_back_at_the_end(
    world: World, client: Client
) -> None:
    taken = []
    world.before[TopicActivity.BEGIN_TRACKING] = lambda: taken.extend(world.places)
    async with world.worker(client):
        handle = await world.start(client)
        assert (await ended(handle)).outcome == "hybrid"
    assert taken == [handle.first_execution_run_id]
    assert world.places == []
    assert world.count(TopicActivity.VALIDATE_TOPIC) == 1


async def test_a_long_wait_for_a_place_is_followed_by_another_preflight(
    world: World, client: Client
) -> None:
    world.script[TopicActivity.TAKE_PLACE] = fails(failures.WAITING, REASON, times=10)
    async with world.worker(client):
        assert (await world.run(client)).outcome == "hybrid"
    assert world.count(TopicActivity.VALIDATE_TOPIC) == 2


async def test_a_migration_that_is_refused_gives_its_place_back(
    world: World, client: Client
) -> None:
    world.script[TopicActivity.BEGIN_TRACKING] = fails(failures.REFUSED, "another id")
    async with world.worker(client):
        with pytest.raises(WorkflowFailureError):
            await world.run(client)
    assert world.count(TopicActivity.TAKE_PLACE) == 1
    assert world.places == []


async def test_one_that_preflight_refuses_waits_for_no_place(world: World, client: Client) -> None:
    world.script[TopicActivity.VALIDATE_TOPIC] = fails(failures.PREFLIGHT_REFUSED, "an ACL")
    async with world.worker(client):
        with pytest.raises(WorkflowFailureError):
            await world.run(client)
    assert world.count(TopicActivity.TAKE_PLACE) == 0


async def test_an_abort_ends_the_wait_for_a_place_with_nothing_changed(
    world: World, server: WorkflowEnvironment
) -> None:
    client = server.client
    world.script[TopicActivity.TAKE_PLACE] = fails(failures.WAITING, REASON, times=999)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, TopicActivity.TAKE_PLACE)

        async def shown() -> bool:
            return (await status(client, world)).waiting_reason == REASON

        await soon("why it waits", shown)
        assert (await handle.execute_update("abort", ADA, result_type=AbortDecision)).won
        assert (await ended(handle)).outcome == "aborted"
    assert world.count(TopicActivity.BEGIN_TRACKING) == 0
    assert world.count(TopicActivity.LEAVE_PLACE) == 1


async def test_topics_beyond_the_places_wait_until_one_ends_or_there_are_more(
    server: WorkflowEnvironment,
) -> None:
    client = server.client
    services = shared(client, most=1)
    first, second, third = (Sharing.of(services) for _ in range(3))
    for world in (first, second, third):
        world.hold(Phase.DRAIN_TRANSACTIONS)
    handles = []
    async with first.worker(client), second.worker(client), third.worker(client):
        for number, world in enumerate((first, second, third)):
            handles.append(await world.start(client))
            await soon("the topic to wait for its place", partial(asked, world, number))
        await reach(first, Phase.DRAIN_TRANSACTIONS)
        first.held[Phase.DRAIN_TRANSACTIONS].set()
        await reach(second, Phase.DRAIN_TRANSACTIONS)
        assert third.count(TopicActivity.BEGIN_TRACKING) == 0
        services.settings.migration_parallel_topics = 2
        await handles[2].execute_update("resume", ADA)
        await reach(third, Phase.DRAIN_TRANSACTIONS)
        for world in (second, third):
            world.held[Phase.DRAIN_TRANSACTIONS].set()
        assert [(await ended(handle)).outcome for handle in handles] == ["hybrid"] * 3


async def asked(world: Sharing, number: int) -> bool:
    """The topic has asked for its place, and stands where it belongs."""
    if number == 0:
        return world.count(TopicActivity.TAKE_PLACE) > 0
    shown = (await status(world.services.temporal, world)).waiting_reason
    return shown == waiting_reason(1, number - 1)


async def test_a_workflow_that_was_terminated_holds_no_place(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "DOUBT_MS", 0)
    services = shared(client, most=1)
    ours = Sharing.of(services)
    other = PlaceHolder(uuid4(), "another", "a-run-that-is-gone")
    assert (await services.control_plane.take_migration_place(other, 1, 0)).taken
    async with ours.worker(client):
        assert (await ours.run(client)).outcome == "hybrid"
    assert not await services.control_plane.leave_migration_place(other.topic_id, other.run)
