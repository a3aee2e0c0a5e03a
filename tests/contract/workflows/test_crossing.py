"""A partition's workflow alone: the test steers it in place of its topic's. On a real server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import CancelledError
from temporalio.testing import WorkflowEnvironment

from tests.contract.workflows.test_steering import partition_status, topic_status
from tests.contract.workflows.world import ADA, World, ended, fails, reach, soon
from tests.support.waiting import bounded
from tideline.domain import failures
from tideline.domain.messages import (
    ABORTED,
    CROSSED,
    PARTITION_WORKFLOW,
    PartitionMigrationInput,
    PartitionRef,
    PartitionReport,
    PartitionState,
    Signal,
    Steering,
    TopicActivity,
    Unsettled,
    WaitsFor,
)
from tideline.domain.migration import Phase
from tideline.domain.options import MigrationOptions
from workflows import calls
from workflows.partition_migration import PartitionMigration
from workflows.topic_run import Continued
from workflows.topic_state import Stage, TopicState

PAUSED = "paused by an operator"
ASKS = "waits for the topic's workflow to let the write pause begin"


@pytest.fixture
def client(server: WorkflowEnvironment) -> Client:
    return server.client


async def begin(
    world: World, client: Client, steering: Steering, unsettled: str = ""
) -> WorkflowHandle[Any, Any]:
    world.tracked = True
    ref = PartitionRef(world.topic, world.ref.topic_id, 0)
    given = PartitionMigrationInput(ref, MigrationOptions(), world.ref.workflow_id)
    given.state.steering, given.state.unsettled = steering, unsettled
    return await client.start_workflow(
        PARTITION_WORKFLOW,
        given,
        id=world.ref.partition_workflow_id(0),
        task_queue=world.queue,
    )


async def waits_because(world: World, client: Client, reason: str) -> None:
    async def waits() -> bool:
        return reason in (await partition_status(world, client)).waiting_reason

    await soon(f"a partition that shows {reason!r}", waits)


async def ends_crossed(handle: WorkflowHandle[Any, Any], permit: int) -> None:
    await handle.signal(Signal.STEER, Steering(permit=permit))
    assert (await ended(handle))["outcome"] == CROSSED


async def test_one_that_was_paused_before_its_write_pause_asks_for_another_permit(
    world: World, client: Client
) -> None:
    """Others had their turn meanwhile: all that were paused would go on at once."""
    async with world.worker(client):
        handle = await begin(world, client, Steering(permit=1, paused=True))
        await waits_because(world, client, PAUSED)
        await handle.signal(Signal.STEER, Steering(permit=1))
        await waits_because(world, client, ASKS)
        await ends_crossed(handle, 2)
    assert world.count(Phase.QUIESCE) == 1


async def test_a_permit_that_comes_while_an_operator_has_paused_the_partition_is_not_kept(
    world: World, client: Client
) -> None:
    async with world.worker(client):
        handle = await begin(world, client, Steering())
        await waits_because(world, client, ASKS)
        await handle.execute_update("pause", ADA)
        await waits_because(world, client, PAUSED)
        await handle.signal(Signal.STEER, Steering(permit=1))
        await handle.execute_update("resume", ADA)
        await waits_because(world, client, ASKS)
        await ends_crossed(handle, 2)


async def test_one_whose_first_try_was_refused_asks_for_another_permit(
    world: World, client: Client
) -> None:
    world.script[Phase.VALIDATE] = fails(failures.REFUSED, "another migration")
    async with world.worker(client):
        handle = await begin(world, client, Steering(permit=1))
        await waits_because(world, client, ASKS)
        await ends_crossed(handle, 2)


async def test_a_permit_that_is_given_back_in_the_first_phase_is_told_at_once(
    world: World, client: Client
) -> None:
    """Not when the wait has lasted for so long that it is shown: six of them held the topic up."""
    world.partitions = 2

    def second_waits() -> None:
        if world.count(Phase.VALIDATE) == 2:
            world.script[Phase.VALIDATE] = fails(failures.WAITING, "a reassignment")
        elif world.count(Phase.VALIDATE) == 3:
            world.hold(Phase.VALIDATE)

    world.before[Phase.VALIDATE] = second_waits
    async with world.worker(client):
        given = {"topic": world.topic, "options": {"parallel_partitions": 1}}
        handle = await world.start(client, given)

        async def told() -> bool:
            return any(p.round == 2 for p in (await topic_status(handle)).partitions[1:])

        async def waits_on() -> bool:
            return world.count(Phase.VALIDATE) == 3

        await soon("the permit to be given back", told)
        await soon("the third look", waits_on)
        world.held[Phase.VALIDATE].set()
        assert (await ended(handle)).outcome == "hybrid"


async def test_a_partition_that_an_operator_has_paused_does_not_end(
    world: World, client: Client
) -> None:
    """Its workflow is what the pause stands in, and what resumes it."""
    held = world.hold(Phase.ZOMBIE_CLEANUP)
    async with world.worker(client):
        handle = await begin(world, client, Steering(permit=1))
        await reach(world, Phase.ZOMBIE_CLEANUP)
        await handle.execute_update("pause", ADA)
        held.set()
        await waits_because(world, client, PAUSED)
        assert (await partition_status(world, client)).phase == Phase.READINESS
        await handle.execute_update("resume", ADA)
        assert (await ended(handle))["outcome"] == CROSSED


async def test_producers_that_a_dead_worker_has_parked_go_on_before_anything_is_waited_for(
    world: World, client: Client
) -> None:
    """What comes before the next write pause may take longer than the hold."""
    world.logs[0].quiesced, world.logs[0].generation = True, 1
    held = world.hold(Phase.VALIDATE)
    async with world.worker(client):
        handle = await begin(world, client, Steering(permit=1))
        await reach(world, Phase.VALIDATE)
        assert not world.logs[0].quiesced
        held.set()
        assert (await ended(handle))["outcome"] == CROSSED
    assert world.order()[:2] == [TopicActivity.OBSERVE_PARTITION, TopicActivity.REOPEN_PARTITION]


@pytest.mark.parametrize("parked_by_a_dead_worker", [False, True])
async def test_one_that_is_cancelled_while_producers_are_parked_lets_them_go(
    world: World, client: Client, parked_by_a_dead_worker: bool
) -> None:
    parked, letting_go = world.logs[0], TopicActivity.REOPEN_PARTITION
    held = world.hold(Phase.ROLL_AND_FLUSH)
    if parked_by_a_dead_worker:
        parked.quiesced, parked.generation = True, 1
        world.script[letting_go] = fails(failures.WAITING, "Postgres is away", times=999)
    async with world.worker(client):
        handle = await begin(world, client, Steering(permit=1))
        await reach(world, letting_go if parked_by_a_dead_worker else Phase.ROLL_AND_FLUSH)
        await handle.cancel()
        world.script[letting_go].clear()
        with pytest.raises(WorkflowFailureError) as cancelled:
            await ended(handle)
        held.set()
    assert isinstance(cancelled.value.cause, CancelledError)
    assert not parked.quiesced


async def test_one_that_is_paused_while_it_tells_that_it_rests_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer was that it stops."""
    state = PartitionState(phase=Phase.READINESS, boundary=9)
    acting = PartitionMigration.__new__(PartitionMigration)
    told = []

    async def step(phase: Phase) -> None:
        told.append(f"waits in {phase}")
        state.paused = False

    async def flushed() -> None:
        told.append("rests")
        state.paused = len(told) == 1

    async def finished(_: Any) -> None:
        return

    monkeypatch.setattr(workflow, "wait_condition", finished)
    monkeypatch.setattr(acting, "_step", step)
    monkeypatch.setattr(acting, "_show_rest", lambda: None)
    acting._state, acting._reporter = state, SimpleNamespace(flushed=flushed)  # type: ignore[assignment]
    await acting._to_its_end()
    assert told == ["rests", "waits in readiness", "rests"]


async def test_a_run_that_continues_an_aborted_one_tells_the_partitions(
    world: World, client: Client
) -> None:
    """Not the minute after which those that do not hear of it are left alone."""
    async with world.worker(client):
        partition = await begin(world, client, Steering())
        await waits_because(world, client, ASKS)
        state = TopicState(world.ref, MigrationOptions(), Stage.CROSSING)
        state.begin()
        state.receive(PartitionReport(0, Phase.QUIESCE, "", waits_for=WaitsFor.PERMIT))
        state.aborted = world.aborted = True
        handle = await world.start(client, Continued(state))
        async with bounded("an abort that all hear of", 45):
            assert (await handle.result()).outcome == "aborted"
            assert (await partition.result())["outcome"] == ABORTED


async def test_a_boundary_that_was_unset_by_an_attempt_whose_answer_was_lost_is_taken_anew(
    world: World, client: Client
) -> None:
    """Else the partition would wait behind a boundary that it has not got."""

    def lost() -> None:
        if world.count(Phase.READINESS) == 2:  # its own look, behind its topic's
            world.logs[0].boundary = -1

    world.before[Phase.READINESS] = lost
    world.script[Phase.READINESS] = fails(failures.REFUSED, "it has no boundary")
    async with world.worker(client):
        assert (await world.run(client)).outcome == "hybrid"
    assert world.count(Phase.QUIESCE) == 2
    assert world.stages[-3:] == ["crossed", "rolling", "frozen"]


async def test_a_topic_does_not_begin_anew_because_postgres_does_not_say_where_a_partition_stands(
    world: World, client: Client
) -> None:
    """The workflow that is started for what only a partition can deal with asks that first; its
    topic shows why that one waits, and asks it, too."""
    world.script[Phase.READINESS] = fails(failures.REFUSED, "look yourself")

    def away() -> None:
        if world.count(TopicActivity.AWAIT_READINESS) == 1:
            world.script[TopicActivity.OBSERVE_PARTITION] = fails(
                failures.WAITING, "Postgres is away", times=999
            )

    world.before[TopicActivity.AWAIT_READINESS] = away
    async with world.worker(client):
        handle = await world.start(client)

        async def shown() -> bool:
            return "Postgres is away" in (await topic_status(handle)).waiting_reason

        await soon("it to be shown", shown)
        [known] = (await topic_status(handle)).partitions
        assert (known.phase, known.boundary) == (Phase.READINESS, 100)
        world.script[TopicActivity.OBSERVE_PARTITION].clear()
        partition = client.get_workflow_handle(world.ref.partition_workflow_id(0))
        await partition.signal(Signal.STEER, Steering(permit=1, own_look=True, report_again=True))
        assert (await ended(handle)).outcome == "hybrid"
    assert world.stages == ["tracked", "armed", "crossed", "rolling", "frozen"]
    assert world.count(Phase.QUIESCE) == 1


async def test_one_that_has_its_answer_does_not_ask_and_begin_again_with_its_next_run(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run before it ended while it asked, and it has its answer from the first try."""
    monkeypatch.setattr(calls, "LONG_HISTORY", 25)
    async with world.worker(client):
        handle = await begin(world, client, Steering(), Unsettled.WHETHER_BEGUN)
        await waits_because(world, client, ASKS)

        async def continues() -> bool:
            await handle.signal(Signal.STEER, Steering(own_look=True))
            return (await handle.describe()).run_id != handle.first_execution_run_id

        await soon("another run", continues)
        await ends_crossed(handle, 1)
    assert world.order().count(TopicActivity.OBSERVE_PARTITION) == 1
    assert world.order().count(Phase.VALIDATE) == 1
