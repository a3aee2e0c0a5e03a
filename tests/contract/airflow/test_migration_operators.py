"""A migration is started or joined by a task, awaited in the triggerer, and its end is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from airflow.triggers.base import TriggerEvent
from temporalio.testing import WorkflowEnvironment

from tests.contract.airflow.relay import NOWHERE, Relay
from tests.contract.workflows.world import World, fails, reach
from tests.support.waiting import lasts_async, within
from tideline.airflow import migrations
from tideline.airflow import trigger as trigger_module
from tideline.airflow.operators import (
    TopicMigrationOperator,
    TopicPreflightOperator,
)
from tideline.airflow.trigger import TopicMigrationTrigger
from tideline.domain import failures
from tideline.domain.messages import TopicActivity, TopicMigrationInput, TopicRef
from tideline.domain.migration import Phase
from tideline.domain.preflight import CheckResult, PreflightReport, Verdict
from tideline.errors import RefusedError, UnreachableError

PUSHED: dict[str, Any] = {}
CONTEXT: Any = {
    "run_id": "manual__1",
    "ti": SimpleNamespace(xcom_push=lambda key, value: PUSHED.update({key: value})),
    "dag_run": SimpleNamespace(start_date=datetime.now(UTC) - timedelta(minutes=1)),
}


@pytest.fixture
async def at(
    world: World, temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """The world, its worker, and settings that lead there."""
    monkeypatch.setenv(
        "TIDELINE_TEMPORAL_ADDRESS", temporal.client.service_client.config.target_host
    )

    async def resolve(topic: str) -> TopicRef:
        if topic != world.topic:
            raise RefusedError(f"topic {topic!r} does not exist: check the spelling")
        return world.ref

    monkeypatch.setattr(migrations, "resolve", resolve)
    monkeypatch.setenv("TIDELINE_TEMPORAL_TASK_QUEUE", world.queue)
    async with world.worker(temporal.client):
        yield world


def migrate(topic: str, **more: Any) -> TopicMigrationOperator:
    return TopicMigrationOperator(task_id="migrate", topic=topic, **more)


async def deferred(operator: TopicMigrationOperator) -> TopicMigrationTrigger:
    """Run the task up to where it gives its slot back."""
    with pytest.raises(TaskDeferred) as left:
        await asyncio.to_thread(operator.execute, CONTEXT)
    assert left.value.method_name == "ended"
    assert isinstance(left.value.trigger, TopicMigrationTrigger)
    return left.value.trigger


async def fired(trigger: TopicMigrationTrigger) -> dict[str, Any]:
    async for event in trigger.run():
        assert isinstance(event, TriggerEvent)
        return dict(event.payload)
    raise AssertionError("the trigger has not fired")


async def test_a_topic_is_migrated_and_its_boundaries_are_the_tasks_value(at: World) -> None:
    operator = migrate(at.topic)
    event = await fired(await deferred(operator))
    outcome = operator.ended(CONTEXT, event)
    assert outcome["outcome"] == "hybrid"
    assert set(outcome["boundaries"]) == {"0"}
    assert at.count(Phase.QUIESCE) == 1


async def test_a_topic_that_takes_too_long_is_left_behind_and_its_migration_goes_on(
    at: World,
) -> None:
    held = at.hold(Phase.DRAIN_TRANSACTIONS)
    before = time.time()
    trigger = await deferred(migrate(at.topic, patience_minutes=5))
    assert trigger.leave_at is not None
    assert before + 300 <= trigger.leave_at <= time.time() + 300
    await reach(at, Phase.DRAIN_TRANSACTIONS)
    again = TopicMigrationTrigger(**(trigger.serialize()[1] | {"leave_at": time.time() + 1}))
    event = await fired(again)
    assert (event["status"], "crossing" in event["message"]) == ("left", True)
    held.set()
    assert (await fired(trigger))["outcome"]["outcome"] == "hybrid"


async def test_a_topic_that_waits_for_a_place_holds_nobody_up_and_is_not_left_behind(
    at: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trigger_module, "LOOKS_EVERY_S", 0.2)
    held = at.hold(TopicActivity.TAKE_PLACE)
    trigger = await deferred(migrate(at.topic, patience_minutes=1))
    await reach(at, TopicActivity.TAKE_PLACE)
    trigger.leave_at = time.time()
    waiting = asyncio.create_task(fired(trigger))
    await lasts_async("nothing is fired", lambda: not waiting.done(), 1)
    trigger.leave_at = None
    held.set()
    assert (await within("the trigger to fire", waiting, 20))["status"] == "ended"


async def test_a_second_task_joins_the_migration_that_runs(at: World) -> None:
    held = at.hold(Phase.DRAIN_TRANSACTIONS)
    first = await deferred(migrate(at.topic))
    second = await deferred(migrate(at.topic))
    assert (second.workflow_id, second.run_id) == (first.workflow_id, first.run_id)
    assert first.workflow_id == at.ref.workflow_id
    held.set()
    assert await fired(first) == await fired(second)
    assert at.count(Phase.QUIESCE) == 1


async def test_another_triggerer_goes_on_with_a_wait_and_nothing_happens_to_the_migration(
    at: World,
) -> None:
    held = at.hold(Phase.DRAIN_TRANSACTIONS)
    trigger = await deferred(migrate(at.topic))
    waiting = asyncio.create_task(fired(trigger))
    await reach(at, Phase.DRAIN_TRANSACTIONS)
    waiting.cancel("the triggerer stops")
    await trigger.cleanup()
    path, arguments = trigger.serialize()
    assert path == "tideline.airflow.trigger.TopicMigrationTrigger"
    again = TopicMigrationTrigger(**arguments)
    assert again.serialize() == trigger.serialize()
    held.set()
    assert (await fired(again))["status"] == "ended"


async def test_a_migration_that_is_refused_fails_the_task_for_good_in_the_workflows_words(
    at: World,
) -> None:
    why = f"{at.topic!r}: not_compacted: cleanup.policy is compact (migrate another topic)"
    at.script[TopicActivity.VALIDATE_TOPIC] = fails(failures.PREFLIGHT_REFUSED, why)
    operator = migrate(at.topic)
    event = await fired(await deferred(operator))
    with pytest.raises(AirflowFailException, match=r"not_compacted: cleanup.policy is compact"):
        operator.ended(CONTEXT, event)


async def test_an_aborted_migration_fails_the_task_and_says_what_to_do(
    at: World, temporal: WorkflowEnvironment
) -> None:
    at.hold(Phase.DRAIN_TRANSACTIONS)
    operator = migrate(at.topic, abort_when_killed=True)
    trigger = await deferred(operator)
    await reach(at, Phase.DRAIN_TRANSACTIONS)
    await trigger.on_kill()
    event = await within("the trigger to fire", fired(trigger), 20)
    with pytest.raises(AirflowFailException, match=r"was aborted.*clear this task to migrate it"):
        operator.ended(CONTEXT, event)


async def test_a_task_that_a_person_marks_leaves_the_migration_alone(at: World) -> None:
    held = at.hold(Phase.DRAIN_TRANSACTIONS)
    trigger = await deferred(migrate(at.topic))
    await reach(at, Phase.DRAIN_TRANSACTIONS)
    await trigger.on_kill()
    held.set()
    assert (await fired(trigger))["outcome"]["outcome"] == "hybrid"


async def test_a_cancelled_workflow_fails_the_task(
    at: World, temporal: WorkflowEnvironment
) -> None:
    at.hold(Phase.DRAIN_TRANSACTIONS)
    operator = migrate(at.topic)
    trigger = await deferred(operator)
    await reach(at, Phase.DRAIN_TRANSACTIONS)
    await temporal.client.get_workflow_handle(trigger.workflow_id).cancel()
    event = await within("the trigger to fire", fired(trigger), 20)
    assert event["status"] == "failed"
    with pytest.raises(AirflowFailException, match=r"the migration has ended: .*[Cc]ancel"):
        operator.ended(CONTEXT, event)


async def test_without_temporal_a_start_is_tried_again_and_names_the_address(
    at: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELINE_TEMPORAL_ADDRESS", NOWHERE)
    with pytest.raises(AirflowException, match=f"Temporal at {NOWHERE} does not answer") as failed:
        await asyncio.to_thread(migrate(at.topic).execute, CONTEXT)
    assert not isinstance(failed.value, AirflowFailException)


async def test_a_wait_outlasts_a_short_silence_of_temporal(
    at: World, temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = at.hold(Phase.DRAIN_TRANSACTIONS)
    async with Relay(temporal.client.service_client.config.target_host) as relay:
        monkeypatch.setenv("TIDELINE_TEMPORAL_ADDRESS", relay.address)
        monkeypatch.setenv("TIDELINE_AIRFLOW_TEMPORAL_PATIENCE_MS", "600000")
        trigger = await deferred(migrate(at.topic))
        waiting = asyncio.create_task(fired(trigger))
        await reach(at, Phase.DRAIN_TRANSACTIONS)
        await relay.stop()
        held.set()
        await lasts_async("it waits while Temporal is silent", lambda: not waiting.done(), 0.5)
        await relay.start()
        assert (await within("the trigger to fire", waiting, 20))["status"] == "ended"


async def test_a_wait_ends_after_a_long_silence_of_temporal_and_is_tried_again(
    at: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = migrate(at.topic)
    trigger = await deferred(operator)
    monkeypatch.setenv("TIDELINE_TEMPORAL_ADDRESS", NOWHERE)
    monkeypatch.setenv("TIDELINE_AIRFLOW_TEMPORAL_PATIENCE_MS", "1000")
    event = await within("the trigger to fire", fired(trigger), 20)
    assert event["status"] == "silent"
    with pytest.raises(AirflowException, match=f"{NOWHERE}.*the next try joins it") as failed:
        operator.ended(CONTEXT, event)
    assert not isinstance(failed.value, AirflowFailException)


async def test_an_unknown_topic_or_a_wrong_option_is_not_tried_again(at: World) -> None:
    with pytest.raises(AirflowFailException, match="'ordres' does not exist: check the spelling"):
        await asyncio.to_thread(migrate("ordres").execute, CONTEXT)
    with pytest.raises(AirflowFailException, match=r"options.durability: 'maybe'; choose among"):
        await asyncio.to_thread(migrate(at.topic, options={"durability": "maybe"}).execute, CONTEXT)


# The checks before it


def checked(monkeypatch: pytest.MonkeyPatch, *checks: CheckResult) -> TopicPreflightOperator:
    async def check(given: TopicMigrationInput) -> PreflightReport:
        return PreflightReport(given.topic, "0" * 32, 1, checks)

    monkeypatch.setattr(migrations, "check", check)
    return TopicPreflightOperator(task_id="check", topic="orders")


def test_passed_checks_are_the_tasks_value(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = CheckResult("in_sync", Verdict.PASSED, "all replicas")
    assert checked(monkeypatch, passed).execute(CONTEXT) == {"in_sync": "passed"}


def test_a_check_that_refuses_names_topic_check_and_remedy_and_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = CheckResult("cleanup_policy", Verdict.REFUSED, "it is compact", "migrate another topic")
    with pytest.raises(
        AirflowFailException,
        match=r"orders may not migrate.*cleanup_policy: it is compact \(migrate another topic\)",
    ):
        checked(monkeypatch, bad).execute(CONTEXT)


def test_a_refusal_that_may_pass_by_itself_is_tried_again_unless_another_will_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    behind = CheckResult("replicas_in_sync", Verdict.REFUSED, "2 is behind", "wait for it")
    compact = CheckResult("cleanup_policy", Verdict.REFUSED, "it is compact", "migrate another")
    with pytest.raises(AirflowException, match="2 is behind") as failed:
        checked(monkeypatch, behind).execute(CONTEXT)
    assert not isinstance(failed.value, AirflowFailException)
    with pytest.raises(AirflowFailException, match=r"2 is behind.*it is compact"):
        checked(monkeypatch, behind, compact).execute(CONTEXT)


def test_a_check_that_could_not_be_made_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELINE_POSTGRES_DSN", "postgresql://worker:secret@pg:15432/tideline")
    monkeypatch.setenv("TIDELINE_KAFKA_BOOTSTRAP", "kafka:9092")
    unknown = CheckResult("gateways_alive", Verdict.UNKNOWN, "no answer", "bring Postgres back")
    with pytest.raises(AirflowException, match="gateways_alive: no answer") as failed:
        checked(monkeypatch, unknown).execute(CONTEXT)
    assert "Asked: Postgres at pg:15432, Kafka at kafka:9092, S3 at AWS" in str(failed.value)
    assert "secret" not in str(failed.value)
    assert not isinstance(failed.value, AirflowFailException)


def test_a_part_that_does_not_answer_the_checks_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(given: TopicMigrationInput) -> PreflightReport:
        raise UnreachableError("Postgres at 127.0.0.1:15432 does not answer")

    monkeypatch.setattr(migrations, "check", check)
    with pytest.raises(AirflowException, match=r"orders: Postgres at 127.0.0.1:15432") as failed:
        TopicPreflightOperator(task_id="check", topic="orders").execute(CONTEXT)
    assert not isinstance(failed.value, AirflowFailException)
