"""Many partitions: the fan-out is bounded, histories stay short, every replay gives the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from tests.contract.workflows.world import ADA, WITHIN_S, World, ended, fails, reach, soon
from tests.support.waiting import within
from tideline.domain import failures
from tideline.domain.messages import (
    TOPIC_WORKFLOW,
    PartitionReport,
    Signal,
    TopicActivity,
    TopicMigrationStatus,
    WaitsFor,
)
from tideline.domain.migration import Phase
from tideline.domain.options import MigrationOptions
from tideline.domain.report_columns import reports_of
from workflows import calls, fan_out, topic_state
from workflows.topic_run import Continued
from workflows.topic_state import Stage, TopicState

CROSSED, ASKED = b'"boundary":100', b'"report_again":true'


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
    monkeypatch.setattr(calls, "LONG_HISTORY", 10)
    world.partitions = 2
    held = world.hold(Phase.ZOMBIE_CLEANUP)
    async with world.worker(server.client):
        handle = await world.start(server.client)
        await reach(world, Phase.ZOMBIE_CLEANUP)
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
        await reach(world, Phase.DRAIN_TRANSACTIONS)
    held.set()
    async with world.worker(server.client):
        assert (await ended(handle)).outcome == "hybrid"
    assert world.logs[0].generation == 1


async def test_partitions_that_wait_for_remote_storage_are_looked_at_together(
    world: World, server: WorkflowEnvironment
) -> None:
    """A partition that waits costs neither activities nor events."""
    world.partitions = 12
    world.script[Phase.READINESS] = fails(failures.WAITING, "it has not rolled", times=24)
    async with world.worker(server.client):
        handle = await world.start(
            server.client, {"topic": world.topic, "options": {"parallel_partitions": 12}}
        )
        outcome = await ended(handle)
        partition = server.client.get_workflow_handle(world.ref.partition_workflow_id(11))
        assert (await ended(partition))["outcome"] == "crossed"
        history = await partition.fetch_history()
    assert outcome.outcome == "hybrid"
    assert all(log.ready for log in world.logs.values())
    # Twice nobody was ready; a partition that had crossed later was perhaps asked for apart.
    assert 3 <= world.count(TopicActivity.AWAIT_READINESS) <= 12
    asked = [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
    ]
    assert Phase.READINESS not in asked


@pytest.mark.usefixtures("one_try")
async def test_once_the_topic_is_armed_a_partition_crosses_in_one_workflow_task(
    world: World, server: WorkflowEnvironment
) -> None:
    world.partitions = 3
    given = {"topic": world.topic, "options": {"parallel_partitions": 1}}
    async with world.worker(server.client):
        assert (await world.run(server.client, given)).outcome == "hybrid"
        partition = server.client.get_workflow_handle(world.ref.partition_workflow_id(2))
        events = (await partition.fetch_history()).events
    tasks = [e for e in events if e.HasField("workflow_task_completed_event_attributes")]
    signals = [e for e in events if "signal" in str(e.WhichOneof("attributes"))]
    assert (len(tasks), signals) == (1, [])


async def test_a_partition_tells_a_run_of_its_topic_that_has_not_started_it(
    world: World, server: WorkflowEnvironment
) -> None:
    """Its outcome goes to the run that did, which was terminated meanwhile."""
    held = world.hold(Phase.ZOMBIE_CLEANUP)
    async with world.worker(server.client):
        first = await world.start(server.client)
        await _signalled(first, Signal.REPORT, CROSSED)  # the second run has to ask
        await first.terminate()
        second = await world.start(server.client)
        partition = server.client.get_workflow_handle(world.ref.partition_workflow_id(0))
        await _signalled(partition, Signal.STEER, ASKED)
        held.set()
        assert (await ended(second)).outcome == "hybrid"
    assert world.count(Phase.QUIESCE) == 1


async def test_a_run_looks_after_a_partition_that_has_told_it_before_it_was_begun(
    world: World, server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that crosses while the run after a terminated one still prepares its topic: nobody has
    asked it, so it does not tell how it ends."""
    monkeypatch.setattr(fan_out, "CHECK_SILENT_EVERY", timedelta(seconds=1))
    inside, behind = world.hold(Phase.ROLL_AND_FLUSH), world.hold(Phase.ZOMBIE_CLEANUP)
    async with world.worker(server.client):
        first = await world.start(server.client)
        await reach(world, Phase.ROLL_AND_FLUSH)
        await first.terminate()
        begins = world.hold(TopicActivity.BEGIN_TRACKING)
        second = await world.start(server.client)
        inside.set()
        await _signalled(second, Signal.REPORT, CROSSED)
        begins.set()
        behind.set()
        assert (await ended(second)).outcome == "hybrid"
    assert world.count(Phase.QUIESCE) == 1


async def _signalled(run: WorkflowHandle[Any, Any], name: str, saying: bytes) -> None:
    """Wait until ``run`` has got such a signal."""

    async def got() -> bool:
        signals = [
            event.workflow_execution_signaled_event_attributes
            for event in (await run.fetch_history()).events
        ]
        return any(
            signal.signal_name == name and saying in signal.input.payloads[0].data
            for signal in signals
        )

    await soon(f"a {name} that says {saying!r}", got)


async def test_what_the_look_of_the_topic_cannot_decide_the_partition_meets_itself(
    world: World, server: WorkflowEnvironment
) -> None:
    world.partitions = 2
    world.script[Phase.READINESS] = fails(failures.BOUNDARY_RESET)
    async with world.worker(server.client):
        outcome = await world.run(server.client)
    assert outcome.outcome == "hybrid"
    assert world.count(Phase.QUIESCE) == 3  # the partition whose B0 was unset crossed once more
    assert all(log.ready for log in world.logs.values())


async def test_a_topic_that_is_paused_is_not_looked_at(
    world: World, server: WorkflowEnvironment
) -> None:
    held = world.hold(TopicActivity.PROVE_COVERAGE_FOR_ROLL)
    async with world.worker(server.client):
        handle = await world.start(server.client)
        await reach(world, TopicActivity.PROVE_COVERAGE_FOR_ROLL)
        await handle.execute_update("pause", ADA)
        held.set()

        async def tiers_and_is_paused() -> bool:
            status = await handle.query("status")
            return status["stage"] == "tiering" and "paused" in status["waiting_reason"]

        await soon("a paused topic that tiers", tiers_and_is_paused)
        assert world.count(TopicActivity.AWAIT_READINESS) == 0
        await handle.execute_update("resume", ADA)
        assert (await ended(handle)).outcome == "hybrid"


async def test_a_topic_of_many_partitions_starts_and_steers_them_in_slices(
    world: World, server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fan_out, "SLICE", 5)
    world.partitions = 18
    async with world.worker(server.client):
        handle = await world.start(
            server.client, {"topic": world.topic, "options": {"parallel_partitions": 18}}
        )
        outcome = await ended(handle)
        history = await handle.fetch_history()
    assert len(outcome.boundaries) == 18
    initiated = [
        event.start_child_workflow_execution_initiated_event_attributes
        .workflow_task_completed_event_id
        for event in history.events
        if event.HasField("start_child_workflow_execution_initiated_event_attributes")
    ]  # fmt: skip
    assert max(Counter(initiated).values()) <= 5


async def test_what_partitions_report_while_a_large_topic_continues_as_new_is_not_lost(
    world: World, server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signals come with the first task of the new run, before its own code."""
    monkeypatch.setattr(topic_state, "MOST_REPORTS", 3)
    world.partitions = 4
    state = TopicState(world.ref, MigrationOptions(), Stage.CROSSING, "2026-11-01T00:00:00+00:00")
    state.begin()
    for partition in range(4):
        waits = PartitionReport(partition, Phase.QUIESCE, "", waits_for=WaitsFor.PERMIT)
        state.receive(waits)
    state.paused, state.permits[:2] = True, [1, 1]
    handle = await server.client.start_workflow(
        TOPIC_WORKFLOW,
        Continued(state.to_carry()),
        id=world.ref.workflow_id,
        task_queue=world.queue,
        start_signal=Signal.REPORT,
        start_signal_args=[PartitionReport(0, Phase.ZOMBIE_CLEANUP, "", 100, 1)],
    )
    async with world.worker(server.client):
        await handle.execute_update("pause", ADA)
        status: TopicMigrationStatus = await handle.query(
            "status", result_type=TopicMigrationStatus
        )
        await handle.terminate()
    (first, *_, last) = reports_of(status)
    assert (first.phase, first.boundary) == (Phase.ZOMBIE_CLEANUP, 100)
    assert (last.partition, last.phase) == (3, Phase.QUIESCE)


async def test_of_a_topic_that_is_gone_one_partition_finds_it_out(
    world: World, server: WorkflowEnvironment
) -> None:
    """Not one more with each look, while the first one has no answer yet."""
    world.partitions = 4
    name = TopicActivity.AWAIT_READINESS
    world.script[name] = fails(failures.UNKNOWN_TOPIC, times=99)
    thrice = asyncio.Event()

    def looks() -> None:
        world.hold(TopicActivity.OBSERVE_PARTITION)
        if world.count(name) == 3:
            thrice.set()

    world.before[name] = looks
    async with world.worker(server.client):
        handle = await world.start(server.client)
        await within("three looks", thrice.wait(), WITHIN_S)
        started = [
            event
            for event in (await handle.fetch_history()).events
            if event.HasField("start_child_workflow_execution_initiated_event_attributes")
        ]
        await handle.terminate()
        world.held[TopicActivity.OBSERVE_PARTITION].set()
    assert len(started) == world.partitions + 1
