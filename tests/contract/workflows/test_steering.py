"""Pause, resume and abort, from outside and in every phase. On a real server: interruptions cross
the completion of activities there as they do in production."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    WorkflowAlreadyStartedError,
)
from temporalio.testing import WorkflowEnvironment

from tests.contract.workflows.test_topic_state import crossing
from tests.contract.workflows.world import ADA, WITHIN_S, World, ended, fails, reach, soon
from tests.support.waiting import bounded
from tideline.domain import failures
from tideline.domain.messages import (
    FORCED,
    WAITING_MEMO,
    AbortDecision,
    ConfigStage,
    PartitionReport,
    PartitionStatus,
    PauseOutcome,
    Steering,
    TopicActivity,
    TopicMigrationStatus,
    WaitsFor,
)
from tideline.domain.migration import PHASE_ORDER, PHASES, Phase
from tideline.domain.waits import Waits
from workflows import fan_out, reporting
from workflows.fan_out import FanOut
from workflows.topic_run import TopicRun
from workflows.topic_state import Stage

ABORTABLE = [rule.phase for rule in PHASES if rule.abortable]


@pytest.fixture
def client(server: WorkflowEnvironment) -> Client:
    return server.client


async def topic_status(handle: WorkflowHandle[Any, Any]) -> TopicMigrationStatus:
    return await handle.query("status", result_type=TopicMigrationStatus)


async def partition_status(world: World, client: Client, partition: int = 0) -> PartitionStatus:
    handle = client.get_workflow_handle(world.ref.partition_workflow_id(partition))
    return await handle.query("status", result_type=PartitionStatus)


@pytest.mark.parametrize("phase", ABORTABLE)
async def test_an_abort_before_b0_wins_and_restores_the_topic(
    world: World, client: Client, phase: Phase
) -> None:
    held = world.hold(phase)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, phase)
        decision = await handle.execute_update("abort", ADA, result_type=AbortDecision)
        outcome = await ended(handle)
        held.set()
        child = client.get_workflow_handle(world.ref.partition_workflow_id(0))
        assert (await ended(child))["outcome"] == "aborted"
    assert decision.won
    assert outcome.outcome == "aborted"
    assert world.stages[-1] is ConfigStage.RESTORED
    assert not world.tracked
    assert world.logs[0].boundary == -1


async def test_an_abort_while_gateways_are_being_told_wins(world: World, client: Client) -> None:
    held = world.hold(TopicActivity.AWAIT_TRACKING)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, TopicActivity.AWAIT_TRACKING)
        decision = await handle.execute_update("abort", ADA, result_type=AbortDecision)
        assert (await ended(handle)).outcome == "aborted"
        held.set()
    assert decision.won
    assert world.stages == [ConfigStage.RESTORED]
    assert not world.tracked


async def test_an_abort_during_validation_has_nothing_to_restore(
    world: World, client: Client
) -> None:
    held = world.hold(TopicActivity.VALIDATE_TOPIC)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, TopicActivity.VALIDATE_TOPIC)
        decision = await handle.execute_update("abort", ADA, result_type=AbortDecision)
        assert (await ended(handle)).outcome == "aborted"
        held.set()
    assert decision.won
    assert world.stages == []
    assert world.count(TopicActivity.ABORT_MIGRATION) == 0


@pytest.mark.parametrize("phase", [p for p in PHASE_ORDER if p not in ABORTABLE])
async def test_an_abort_after_b0_is_refused_and_the_migration_goes_on(
    world: World, client: Client, phase: Phase
) -> None:
    held = world.hold(phase)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, phase)
        decision = await handle.execute_update("abort", ADA, result_type=AbortDecision)
        held.set()
        assert (await ended(handle)).outcome == "hybrid"
    assert not decision.won
    assert "B0" in decision.reason


async def test_an_abort_that_postgres_did_not_answer_is_said_to_be_undecided(
    world: World, client: Client
) -> None:
    held = world.hold(Phase.DRAIN_TRANSACTIONS)
    world.script[TopicActivity.ABORT_MIGRATION] = fails(failures.REFUSED, "Postgres says no")
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, Phase.DRAIN_TRANSACTIONS)
        with pytest.raises(WorkflowUpdateFailedError) as undecided:
            await handle.execute_update("abort", ADA)
        held.set()
        assert (await ended(handle)).outcome == "hybrid"
    assert isinstance(undecided.value.cause, ApplicationError)
    assert "not decided" in undecided.value.cause.message


async def test_a_cancel_from_the_ui_is_an_abort_that_may_be_refused(
    world: World, client: Client
) -> None:
    held = world.hold(Phase.ZOMBIE_CLEANUP)
    async with world.worker(client):
        handle = await world.start(client)

        async def tiers() -> bool:
            return (await topic_status(handle)).stage == Stage.TIERING

        await reach(world, Phase.ZOMBIE_CLEANUP)
        await soon("the topic to tier", tiers)  # a stage that begins takes the reason away
        await handle.cancel()

        async def refused() -> bool:
            return "cancel was refused" in (await topic_status(handle)).waiting_reason

        await soon("the refusal of the cancel to be shown", refused)
        held.set()
        assert (await ended(handle)).outcome == "hybrid"


async def test_a_cancel_before_b0_restores_the_topic(world: World, client: Client) -> None:
    held = world.hold(Phase.DRAIN_TRANSACTIONS)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, Phase.DRAIN_TRANSACTIONS)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as cancelled:
            await ended(handle)
        held.set()
    assert isinstance(cancelled.value.cause, CancelledError)
    assert world.stages[-1] is ConfigStage.RESTORED
    assert not world.tracked


async def test_a_cancel_while_an_abort_restores_the_topic_waits_for_that(
    world: World, client: Client
) -> None:
    """Who is told that the abort has won, and cancels what still runs, leaves nothing behind."""
    restoring = f"{TopicActivity.RECONCILE_CONFIGS}:{ConfigStage.RESTORED}"
    world.script[restoring] = fails(failures.WAITING, "Kafka is away", times=999)
    drain = world.hold(Phase.DRAIN_TRANSACTIONS)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, Phase.DRAIN_TRANSACTIONS)
        await handle.execute_update("abort", ADA)
        drain.set()
        await reach(world, restoring)
        await handle.cancel()
        world.script[restoring].clear()
        with pytest.raises(WorkflowFailureError) as cancelled:
            await ended(handle)
    assert isinstance(cancelled.value.cause, CancelledError)
    assert world.stages[-1] is ConfigStage.RESTORED
    assert not world.tracked


async def test_a_pause_is_honoured_before_the_next_phase_and_shown(
    world: World, client: Client
) -> None:
    held = world.hold(Phase.VALIDATE)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, Phase.VALIDATE)
        assert (await handle.execute_update("pause", ADA, result_type=PauseOutcome)).paused

        async def knows() -> bool:
            return (await partition_status(world, client)).paused

        await soon("the partition to know of the pause", knows)
        held.set()

        async def shown() -> bool:
            return "paused" in (await partition_status(world, client)).waiting_reason

        await soon("it to be shown", shown)
        assert world.count(Phase.DRAIN_TRANSACTIONS) == 0
        assert (await topic_status(handle)).paused
        await handle.execute_update("resume", ADA)
        assert (await ended(handle)).outcome == "hybrid"


async def test_a_pause_during_a_write_pause_lets_it_finish_first(
    world: World, client: Client
) -> None:
    held = world.hold(Phase.ROLL_AND_FLUSH)
    given = {"topic": world.topic, "options": {"quiesce_hold_ms": 60_000}}
    async with world.worker(client):
        handle = await world.start(client, given)
        await reach(world, Phase.ROLL_AND_FLUSH)
        await handle.execute_update("pause", ADA)

        async def knows() -> bool:
            return (await partition_status(world, client)).paused

        await soon("the partition to know of the pause", knows)
        held.set()

        async def crossed() -> bool:
            status = await partition_status(world, client)
            return status.boundary == 100 and "paused" in status.waiting_reason

        await soon("the partition to cross and to show the pause", crossed)
        assert world.count(Phase.ZOMBIE_CLEANUP) == 0
        await handle.execute_update("resume", ADA)
        assert (await ended(handle)).outcome == "hybrid"


async def test_one_partition_can_be_paused_alone(world: World, client: Client) -> None:
    world.partitions = 2
    held = world.hold(Phase.VALIDATE)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, Phase.VALIDATE)

        async def both() -> bool:
            return {0, 1} <= {of for name, of in world.calls if name == Phase.VALIDATE}

        await soon("both partitions to begin", both)
        alone = client.get_workflow_handle(world.ref.partition_workflow_id(1))
        await alone.execute_update("pause", ADA)
        held.set()

        async def other_crossed() -> bool:
            return world.logs[0].boundary == 100

        await soon("the other partition to cross", other_crossed)
        assert world.logs[1].boundary == -1
        await alone.execute_update("resume", ADA)
        assert (await ended(handle)).outcome == "hybrid"


async def test_a_resume_tries_at_once_what_is_being_waited_for(
    world: World, client: Client
) -> None:
    world.script[TopicActivity.AWAIT_TRACKING] = fails(failures.WAITING, "gateway 2", times=8)
    # A minute if nobody resumes.
    async with world.worker(client), bounded("a migration that is resumed", WITHIN_S):
        handle = await world.start(client)

        async def goes_on() -> bool:
            if world.count(TopicActivity.AWAIT_TRACKING) > 8:
                return True
            if not world.tracked:
                return False
            await handle.execute_update("resume", ADA)
            return False

        await soon("the wait to end", goes_on)
        assert (await ended(handle)).outcome == "hybrid"


async def test_a_migration_that_has_ended_cannot_be_steered(world: World, client: Client) -> None:
    async with world.worker(client):
        handle = await world.start(client)
        await ended(handle)
        with pytest.raises(Exception, match="completed"):
            await handle.execute_update("pause", ADA)


async def test_why_a_partition_waits_is_shown_on_the_topic_and_in_the_search_attributes(
    world: World, client: Client
) -> None:
    world.script[Phase.DRAIN_TRANSACTIONS] = fails(
        failures.WAITING, "transaction app-1 of producer 7 is open", times=999
    )
    async with world.worker(client):
        handle = await world.start(client)

        async def shown() -> bool:
            return "app-1" in (await topic_status(handle)).waiting_reason

        await soon("it to be shown", shown)
        description = await client.get_workflow_handle(
            world.ref.partition_workflow_id(0)
        ).describe()
        attributes = {p.key.name: p.value for p in description.typed_search_attributes}
        assert attributes["TidelineTopic"] == world.topic
        assert attributes["TidelineWaits"] == Waits.TRANSACTION
        assert "app-1" in (await description.memo())[WAITING_MEMO]
        world.script[Phase.DRAIN_TRANSACTIONS].clear()
        assert (await ended(handle)).outcome == "hybrid"


async def test_the_pause_after_the_first_partitions_is_in_the_index(
    world: World, client: Client
) -> None:
    """Whoever is to look at them is woken by it. That the last of them has crossed its outcome
    tells, not a report."""
    world.partitions = 3
    given = {"topic": world.topic, "options": {"parallel_partitions": 1, "first_partitions": 2}}
    async with world.worker(client):
        handle = await world.start(client, given)

        async def shown() -> bool:
            known = await handle.describe()
            assert known.typed_search_attributes.get(reporting.WAITS) in (None, Waits.OPERATOR)
            why = (await known.memo()).get(WAITING_MEMO, "")
            return "have crossed before the others" in why

        await soon("it to be shown", shown)
        await handle.execute_update("resume", ADA)
        assert (await ended(handle)).outcome == "hybrid"


async def test_partitions_that_come_to_rest_while_all_are_ended_are_forced_like_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = crossing(1)
    state.stage = Stage.FREEZING
    state.receive(PartitionReport(0, Phase.ZOMBIE_CLEANUP, "", 7, 1))

    async def crosses(*_: Any, **__: Any) -> None:
        state.receive(PartitionReport(0, Phase.READINESS, "", 7, 1, WaitsFor.READY, rests=True))

    monkeypatch.setattr(workflow, "wait_condition", crosses)
    monkeypatch.setattr(fan_out, "now", lambda: "now")
    await FanOut(state, nothing, lambda: None).end_all()
    assert state.partitions[0].phase == FORCED


async def nothing() -> None:
    return


async def test_a_partition_that_is_about_to_be_started_again_is_left_to_the_next_run() -> None:
    state = crossing(4)
    acting = FanOut(state, nothing, lambda: None)
    acting._restarts[3] = asyncio.ensure_future(nothing())
    acting.hand_over()
    assert state.lost == [3]


async def test_a_partition_that_runs_already_when_it_is_let_through_asks_for_its_permit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may wait for a transaction for weeks, and would keep the permit for as long."""
    state = crossing(1)
    state.armed = True
    sent: list[Steering] = []

    async def runs(*_: Any, **given: Any) -> None:
        raise WorkflowAlreadyStartedError(given["id"], "PartitionMigration")

    async def signal(_: Any, steering: Steering) -> None:
        sent.append(steering)

    monkeypatch.setattr(workflow, "start_child_workflow", runs)
    handle = SimpleNamespace(signal=signal)
    monkeypatch.setattr(workflow, "get_external_workflow_handle", lambda _: handle)
    monkeypatch.setattr(fan_out, "now", lambda: "now")
    await FanOut(state, nothing, lambda: None)._work()
    assert (state.through, [(s.permit, s.report_again) for s in sent]) == ([], [(0, True)])


async def test_a_partition_that_was_terminated_keeps_nobody_from_a_permit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = crossing(3)
    monkeypatch.setattr(fan_out, "now", lambda: "now")
    monkeypatch.setattr(fan_out, "START_AGAIN_AFTER", timedelta())
    acting = FanOut(state, nothing, lambda: None)
    for partition in range(3):
        acting.receive(PartitionReport(partition, Phase.QUIESCE, "", waits_for=WaitsFor.PERMIT))
    state.permits = [1, 1, 0]
    assert state.to_permit() == []
    await acting._start_again(0, "terminated")
    assert state.to_permit() == [2]
    assert "ended from outside" in state.reason("")


async def test_a_cancel_that_is_refused_while_a_run_is_about_to_end_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reason why the run was to end may be over: partitions would be started no more."""
    state = crossing(1)
    run = TopicRun(state, lambda: None)

    async def reached(*_: Any, **__: Any) -> None:
        return

    async def refused() -> AbortDecision:
        return AbortDecision(False, "B0 of partition 0 is set")

    monkeypatch.setattr(workflow, "wait_condition", reached)
    monkeypatch.setattr(run, "decide_abort", refused)
    await run.fan_out.settle()
    assert not run.fan_out._has_work()
    await run._cancelled()
    assert run.fan_out._has_work()
    assert "a cancel was refused" in run.waiting_reason


def test_what_an_abort_does_not_start_again_is_no_work_for_ever() -> None:
    """A partition's workflow that was terminated before an abort kept the topic's looping."""
    acting = FanOut.__new__(FanOut)
    acting._settling, acting._to_steer, acting._lost = False, set(), {0}
    acting._children = {}
    acting._state = SimpleNamespace(aborted=True, to_permit=list, to_start=list)  # type: ignore[assignment]
    assert not acting._has_work()
