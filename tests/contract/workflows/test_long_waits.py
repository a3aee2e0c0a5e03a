"""Waits of a topic's workflow last for weeks, and nothing that fails for good hangs it."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from tests.contract.workflows.world import ADA, WITHIN_S, World, ended, fails, reach, soon
from tests.support.waiting import bounded
from tideline.domain import failures
from tideline.domain.messages import (
    WAITING_MEMO,
    AbortDecision,
    ConfigStage,
    TopicActivity,
)
from tideline.domain.migration import Phase
from workflows import calls

RECONCILE = TopicActivity.RECONCILE_CONFIGS
WAITS = [
    TopicActivity.RESOLVE_TOPIC,
    TopicActivity.BEGIN_TRACKING,
    TopicActivity.AWAIT_TRACKING,
    f"{RECONCILE}:{ConfigStage.ARMED}",
    TopicActivity.PROVE_COVERAGE_FOR_ROLL,
    f"{RECONCILE}:{ConfigStage.FROZEN}",
]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A history of 25 events is long."""
    monkeypatch.setattr(calls, "LONG_HISTORY", 25)


async def continued(client: Client, world: World, run_id: str | None) -> bool:
    first = client.get_workflow_handle(world.ref.workflow_id, run_id=run_id)
    return (await first.describe()).status is WorkflowExecutionStatus.CONTINUED_AS_NEW


@pytest.mark.parametrize("wait", WAITS)
async def test_a_wait_in_any_stage_continues_as_new_and_the_migration_ends_well(
    world: World, client: Client, wait: str, short: None
) -> None:
    world.script[wait] = fails(failures.WAITING, "gateway 2 is silent", times=5)
    async with world.worker(client):
        handle = await world.start(client)
        outcome = await ended(handle)
        assert await continued(client, world, handle.first_execution_run_id)
    assert outcome.outcome == "hybrid"
    assert world.stages[-1] is ConfigStage.FROZEN
    assert world.count(Phase.SEED_AND_PERSIST) == 1


async def test_a_topic_that_waits_for_tiering_asks_less_and_less_often(
    world: World, client: Client
) -> None:
    """It may wait for minutes, and each look asks brokers and bucket."""
    world.script[Phase.READINESS] = fails(failures.WAITING, "replica 2 has not rolled", times=4)
    async with world.worker(client):
        handle = await world.start(client)
        assert (await ended(handle)).outcome == "hybrid"
        history = await handle.fetch_history()
    pauses = [
        event.timer_started_event_attributes.start_to_fire_timeout.ToMilliseconds()
        for event in history.events
        if event.HasField("timer_started_event_attributes")
    ]
    # Longer ones are of those that look after limits and silent partitions.
    assert [pause for pause in pauses if pause < 15_000] == [500, 1_000, 2_000, 4_000]


async def waiting_reasons(world: World, client: Client) -> list[str]:
    """What the topic's workflow has shown, each once, in order."""
    topic = client.get_workflow_handle(world.ref.workflow_id)
    told = []
    async for event in topic.fetch_history_events():
        shown = event.workflow_properties_modified_event_attributes.upserted_memo
        if payload := shown.fields.get(WAITING_MEMO):
            told.append(client.data_converter.payload_converter.from_payload(payload))
    return [reason for reason in dict.fromkeys(told) if reason]


async def test_a_wait_for_tiering_that_lasts_longer_than_it_may_says_since_when(
    world: World, client: Client, skipping: WorkflowEnvironment
) -> None:
    """``inkless.migration.segment.wait.ms``, beyond what one attempt waits."""
    world.script[Phase.READINESS] = fails(failures.WAITING, "offset 40 to 50", times=9)
    options = {"segment_wait_ms": 30_000}
    began = await skipping.get_current_time()
    async with world.worker(client):
        given = {"topic": world.topic, "options": options}
        assert (await world.run(client, given)).outcome == "hybrid"
        # Looked at first, then after 0.5 s, 1.5 s, 3.5 s and so on: a busy machine takes seconds.
        *_, early, overdue = await waiting_reasons(world, client)
    assert early == "partition 0: offset 40 to 50"
    said = re.fullmatch(
        r"tiering takes longer than segment_wait_ms=30000, since (\S+\+00:00): "
        "partition 0: offset 40 to 50",
        overdue,
    )
    assert said is not None
    assert began <= datetime.fromisoformat(said[1]) <= await skipping.get_current_time()


async def test_whoever_follows_for_long_continues_as_new_and_returns_the_outcome(
    world: World, client: Client, short: None
) -> None:
    world.script[TopicActivity.FOLLOW_TOPIC_MIGRATION] = fails(
        failures.WAITING, "Temporal", times=5
    )
    async with world.worker(client):
        handle = await world.start(client, workflow_id=f"by-hand-{world.topic}")
        assert (await ended(handle)).outcome == "hybrid"
        first = client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
        assert (await first.describe()).status is WorkflowExecutionStatus.CONTINUED_AS_NEW
    assert world.count(Phase.SEED_AND_PERSIST) == 1


@pytest.mark.parametrize(
    "wait", [f"{RECONCILE}:{ConfigStage.RESTORED}", TopicActivity.STOP_TRACKING]
)
async def test_an_abort_that_waits_continues_as_new_and_ends_as_an_abort(
    world: World, server: WorkflowEnvironment, wait: str, short: None
) -> None:
    client = server.client
    world.script[wait] = fails(failures.WAITING, "Kafka is away", times=3)
    held = world.hold(Phase.DRAIN_TRANSACTIONS)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, Phase.DRAIN_TRANSACTIONS)
        await handle.execute_update("abort", ADA)
        held.set()
        assert (await ended(handle)).outcome == "aborted"
        assert await continued(client, world, handle.first_execution_run_id)
    assert not world.tracked


PARTITION_WAITS = [
    # What is asked, and the failure of which phase makes the partition ask it.
    (TopicActivity.OBSERVE_PARTITION, "", ""),
    (TopicActivity.OBSERVE_PARTITION, Phase.DRAIN_TRANSACTIONS, failures.REFUSED),
    (TopicActivity.OBSERVE_PARTITION, Phase.ZOMBIE_CLEANUP, failures.STALE_GENERATION),
    (TopicActivity.REOPEN_PARTITION, Phase.ROLL_AND_FLUSH, failures.NOT_SETTLED),
    (TopicActivity.REOPEN_PARTITION, Phase.SEED_AND_PERSIST, failures.STALE_GENERATION),
]


async def continued_while_asking(client: Client, world: World, wait: str) -> bool:
    """A run of the first partition ended with ``wait``, and the next one began with it."""
    run_id: str | None = None
    newest, later = True, [""]
    while newest or run_id:
        handle = client.get_workflow_handle(world.ref.partition_workflow_id(0), run_id=run_id)
        events = (await handle.fetch_history()).events
        asked = [
            event.activity_task_scheduled_event_attributes.activity_type.name
            for event in events
            if event.HasField("activity_task_scheduled_event_attributes")
        ]
        if asked[-1:] == later[:1] == [wait]:
            return True
        later = asked
        started = events[0].workflow_execution_started_event_attributes
        run_id, newest = started.continued_execution_run_id, False
    return False


@pytest.mark.parametrize(("wait", "phase", "kind"), PARTITION_WAITS)
async def test_a_partition_that_cannot_ask_postgres_for_weeks_continues_as_new(
    world: World, client: Client, wait: str, phase: str, kind: str, short: None
) -> None:
    """Temporal ends a workflow whose history grows past its limit. The new run asks again before
    it does anything else, and knows why it asks."""
    world.script[wait] = fails(failures.WAITING, "Postgres does not answer", times=8)
    if phase:
        world.script[phase] = fails(kind, "an attempt that failed")
    async with world.worker(client):
        handle = await world.start(client)
        outcome = await ended(handle)
        assert await continued_while_asking(client, world, wait)
    assert outcome.outcome == "hybrid"
    asked = [name for name in world.order() if name == wait]
    assert len(asked) >= 9
    last = len(world.order()) - 1 - world.order()[::-1].index(wait)
    if wait == TopicActivity.REOPEN_PARTITION:
        # Nothing came between the failed write pause and the producers' release.
        failed_at = world.order().index(phase)
        assert set(world.order()[failed_at + 1 : last]) == {wait}
        assert world.order()[last + 1] == Phase.DRAIN_TRANSACTIONS


async def test_an_arming_that_fails_for_good_ends_the_workflow_with_its_reason(
    world: World, server: WorkflowEnvironment
) -> None:
    world.script[f"{RECONCILE}:{ConfigStage.ARMED}"] = fails(
        failures.UNKNOWN_TOPIC, "'orders' was deleted or forgotten"
    )
    async with world.worker(server.client):
        handle = await world.start(server.client)
        with pytest.raises(WorkflowFailureError) as failed:
            await ended(handle)
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.message) == (
        failures.UNKNOWN_TOPIC,
        "'orders' was deleted or forgotten",
    )


async def test_an_abort_while_arming_waits_is_heard_by_every_partition(
    world: World, server: WorkflowEnvironment
) -> None:
    arming = f"{RECONCILE}:{ConfigStage.ARMED}"
    world.script[arming] = fails(failures.WAITING, "Kafka does not show it", times=999)
    async with world.worker(server.client):
        handle = await world.start(server.client)
        await reach(world, arming)
        assert (await handle.execute_update("abort", ADA, result_type=AbortDecision)).won
        async with bounded("an abort that all hear of", 45):
            # Not the minute after which partitions that do not hear it are left alone.
            assert (await handle.result()).outcome == "aborted"


async def test_tracking_that_cannot_begin_does_not_hold_an_abort_up(
    world: World, server: WorkflowEnvironment
) -> None:
    world.script[TopicActivity.BEGIN_TRACKING] = fails(
        failures.WAITING, "the brokers do not answer", times=999
    )
    async with world.worker(server.client):
        handle = await world.start(server.client)
        await reach(world, TopicActivity.BEGIN_TRACKING)
        await soon("another try", lambda: tried(world))
        async with bounded("an answer to the abort", WITHIN_S):
            decision = await handle.execute_update("abort", ADA, result_type=AbortDecision)
        assert (await ended(handle)).outcome == "aborted"
    assert decision.won


async def tried(world: World) -> bool:
    return world.count(TopicActivity.BEGIN_TRACKING) > 1
