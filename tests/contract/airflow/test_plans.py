"""A planned wave starts each topic once; what a person aborted or rejected stays so."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tideline.airflow import migrations, plans
from tideline.airflow.operators import (
    BatchApproval,
    TopicMigrationOperator,
    TopicPreflightOperator,
)
from tideline.airflow.results import doubts
from tideline.airflow.temporal.following import WorkflowRun
from tideline.airflow.wave import Wave, read_wave, schemas
from tideline.control_plane.memory import MemoryControlPlane
from tideline.control_plane.model import PlannedOutcome, TrackingKind
from tideline.domain.messages import TopicMigrationInput
from tideline.domain.preflight import CheckResult, PreflightReport, Verdict
from tideline.errors import UnreachableError

DEFAULTS = {name: schema["default"] for name, schema in schemas(5).items()}
ABORTED = {"outcome": "aborted", "reason": "", "boundaries": {}}


def planned(*topics: str, **fields: Any) -> Wave:
    wave = read_wave(DEFAULTS, {"topics": list(topics), **fields}, 1)
    assert wave is not None
    return wave


def by_hand(*topics: str, **more: Any) -> Wave:
    wave = read_wave(DEFAULTS | {"topics": list(topics)} | more, None, 1)
    assert wave is not None
    return wave


async def migrating(plane: MemoryControlPlane, name: str) -> Any:
    topic_id = uuid4()
    await plane.begin_tracking(name, topic_id, TrackingKind.MIGRATED, 1, "CreateTime", 1_000_000)
    return topic_id


async def aborted(plane: MemoryControlPlane, name: str) -> None:
    await plane.abort_migration(await migrating(plane, name))


def context(run: str, began: timedelta = timedelta(0), **values: Any) -> Any:
    return {
        "run_id": run,
        "dag_run": SimpleNamespace(start_date=datetime.now(UTC) + began),
        "ti": SimpleNamespace(xcom_pull=lambda task_ids: values.get(task_ids)),
        "params": DEFAULTS,
    }


def migrate(topic: str, plan: str) -> TopicMigrationOperator:
    return TopicMigrationOperator(task_id="migrate", topic=topic, plan=plan)


def ended(topic: str, plan: str, run: str, **event: Any) -> None:
    migrate(topic, plan).ended(context(run), {"status": "ended", **event})


async def test_a_planned_wave_leaves_an_aborted_topic_out_whoever_aborted_it(
    plane: MemoryControlPlane,
) -> None:
    await aborted(plane, "orders")
    wave = planned("orders", "payments")
    left_out = await plans.left_out(wave, "run-1")
    assert list(left_out) == ["orders"]
    assert "was aborted at" in left_out["orders"]
    assert [entry["topic"] for entry in wave.batch(left_out)] == ["payments"]


async def test_a_person_who_names_a_topic_asks_anew_for_it(plane: MemoryControlPlane) -> None:
    await aborted(plane, "orders")
    assert await plans.left_out(by_hand("orders"), "run-1") == {}


async def test_a_further_batch_leaves_out_what_was_aborted_since_the_person_asked(
    plane: MemoryControlPlane,
) -> None:
    await aborted(plane, "orders")
    now = plans.milliseconds(datetime.now(UTC))
    for asked_at, left_out in ((now - 60_000, ["orders"]), (now + 60_000, [])):
        wave = by_hand("orders", "payments", batch=2, asked_at=asked_at)
        assert list(await plans.left_out(wave, "run-2")) == left_out


@pytest.mark.parametrize("outcome", [o for o in PlannedOutcome if o not in plans.GOES_ON])
async def test_a_plan_halts_at_a_topic_that_did_not_become_hybrid_and_says_why(
    plane: MemoryControlPlane, outcome: PlannedOutcome
) -> None:
    wave = planned("orders", "payments")
    await plane.record_plan_outcome(wave.plan, ["orders"], outcome, "as it was", "run-1")
    with pytest.raises(plans.PlanHalted, match=f"orders was {outcome} by run run-1: as it was"):
        await plans.left_out(wave, "run-2")
    assert await plans.left_out(wave, "run-1") == {}, "who clears that run asks anew"
    assert await plans.left_out(planned("payments"), "run-2") == {}, "another plan"


async def test_a_rejected_topic_is_left_out_of_every_other_plan_and_of_a_wave_asked_for_before(
    plane: MemoryControlPlane,
) -> None:
    wave = planned("orders", "payments")
    await plane.record_plan_outcome(
        wave.plan, ["orders"], PlannedOutcome.REJECTED, "rejected by ada", "run-1"
    )
    edited = planned("orders", "payments", "users")
    left_out = await plans.left_out(edited, "run-2")
    assert list(left_out) == ["orders"]
    assert "it was rejected by ada in run run-1" in left_out["orders"]
    now = plans.milliseconds(datetime.now(UTC))
    for asked_at, names in ((now - 60_000, ["orders"]), (now + 60_000, [])):
        earlier = by_hand("orders", "payments", batch=2, wave="manual__1", asked_at=asked_at)
        assert list(await plans.left_out(earlier, "run-2")) == names
    assert await plans.left_out(by_hand("orders"), "run-3") == {}, "a person names it"
    await plane.record_plan_outcome(edited.plan, ["orders"], PlannedOutcome.DONE, "", "run-4")
    assert await plans.left_out(planned("orders"), "run-5") == {}, "it was let through since"


async def test_a_plan_migrates_the_topics_that_are_left(plane: MemoryControlPlane) -> None:
    wave = planned("orders", "payments")
    await plane.record_plan_outcome(wave.plan, ["orders"], PlannedOutcome.DONE, "", "run-1")
    assert [e["topic"] for e in wave.batch(await plans.left_out(wave, "run-2"))] == ["payments"]
    asking = planned("orders", "payments", approve_each_batch=True)
    await plane.record_plan_outcome(asking.plan, ["orders"], PlannedOutcome.DONE, "", "run-1")
    with pytest.raises(plans.PlanHalted, match="nobody has allowed the next one"):
        await plans.left_out(asking, "run-2")


async def test_a_try_starts_nothing_that_was_aborted_after_its_run_began(
    plane: MemoryControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    async def start(given: TopicMigrationInput) -> WorkflowRun:
        started.append(given.topic)
        raise UnreachableError("Temporal is silent")

    monkeypatch.setattr(migrations, "start_or_join", start)
    await aborted(plane, "orders")
    earlier, later = context("r", timedelta(minutes=-1)), context("r", timedelta(minutes=1))
    with pytest.raises(AirflowFailException, match=r"not started again\. Clear this task"):
        await asyncio.to_thread(migrate("orders", "p").execute, earlier)
    assert (started, await plane.plan_outcomes("p")) == ([], [])
    with pytest.raises(AirflowException, match="Temporal is silent"):
        await asyncio.to_thread(migrate("orders", "p").execute, later)
    assert started == ["orders"]
    (told,) = await plane.plan_outcomes("p")
    assert told.outcome is PlannedOutcome.STARTED, "kept before anything was started"


async def test_a_plan_goes_on_without_a_topic_that_was_left_behind_and_starts_it_no_second_time(
    plane: MemoryControlPlane,
) -> None:
    wave = planned("orders", "payments", patience_minutes=90, batch_size=1)
    (entry,) = wave.batch()
    assert (entry["topic"], entry["patience_minutes"]) == ("orders", 90)
    left = {"status": "left", "message": "it goes on. It is in crossing: a transaction is open"}
    operator = TopicMigrationOperator(task_id="migrate", **(entry | {"plan": wave.plan}))
    value = await asyncio.to_thread(operator.ended, context("run-1"), left)
    assert (value["topic"], value["outcome"]) == ("orders", "left_behind")
    (told,) = await plane.plan_outcomes(wave.plan)
    assert (told.outcome, told.reason) == (PlannedOutcome.LEFT_BEHIND, left["message"])
    left_out = await plans.left_out(wave, "run-2")
    assert list(left_out) == ["orders"]
    assert [one["topic"] for one in wave.batch(left_out)] == ["payments"]


async def test_the_end_of_each_topic_is_kept(plane: MemoryControlPlane) -> None:
    hybrid = {"outcome": "hybrid", "reason": "", "boundaries": {"0": 7}}
    await asyncio.to_thread(ended, "a", "p", "r", outcome=hybrid)
    with pytest.raises(AirflowFailException, match="was aborted"):
        await asyncio.to_thread(ended, "b", "p", "r", outcome=ABORTED)
    failed = {"status": "failed", "message": "refused: compacted"}
    with pytest.raises(AirflowFailException):
        await asyncio.to_thread(migrate("c", "p").ended, context("r"), failed)
    told = {one.topic: (one.outcome, one.reason) for one in await plane.plan_outcomes("p")}
    assert told == {
        "a": (PlannedOutcome.DONE, ""),
        "b": (PlannedOutcome.ABORTED, ""),
        "c": (PlannedOutcome.FAILED, "refused: compacted"),
    }


@pytest.mark.parametrize(("check", "kept"), [("cleanup_policy", 1), ("replicas_in_sync", 0)])
async def test_a_refusal_is_kept_unless_it_may_pass_by_itself(
    plane: MemoryControlPlane, monkeypatch: pytest.MonkeyPatch, check: str, kept: int
) -> None:
    async def refuse(given: TopicMigrationInput) -> PreflightReport:
        result = CheckResult(check, Verdict.REFUSED, "it is so", "change it")
        return PreflightReport(given.topic, "0" * 32, 1, (result,))

    monkeypatch.setattr(migrations, "check", refuse)
    operator = TopicPreflightOperator(task_id="check", topic="orders", plan="p")
    with pytest.raises(AirflowException):
        await asyncio.to_thread(operator.execute, context("r"))
    outcomes = [one.outcome for one in await plane.plan_outcomes("p")]
    assert outcomes == [PlannedOutcome.REFUSED] * kept


async def answered(wave: Wave, run: str, last: str, choice: str) -> None:
    """A person is asked before the batch behind ``last``."""
    following = wave.rest(run, 0, last)
    asks = BatchApproval(task_id="approve", subject="Go on?", following="next_batch", defaults=None)
    event = {
        "chosen_options": [choice],
        "params_input": {},
        "responded_at": datetime.now(UTC),
        "responded_by_user": {"id": "1", "name": "ada"},
    }
    await asyncio.to_thread(asks.execute_complete, context(run, next_batch=following), event)


async def test_a_rejection_is_kept_for_every_topic_that_was_to_come(
    plane: MemoryControlPlane,
) -> None:
    wave = planned("a", "b", "c", approve_each_batch=True)
    await answered(wave, "run-1", "a", "Reject")
    told = await plane.plan_outcomes(wave.plan)
    assert [(one.topic, one.outcome, one.reason) for one in told] == [
        ("b", PlannedOutcome.REJECTED, "rejected by ada"),
        ("c", PlannedOutcome.REJECTED, "rejected by ada"),
    ]
    await plane.record_plan_outcome(wave.plan, ["a"], PlannedOutcome.DONE, "", "run-1")
    with pytest.raises(plans.PlanHalted, match="b was rejected by run run-1: rejected by ada"):
        await plans.left_out(wave, "run-2")


async def test_a_person_who_thinks_again_lets_exactly_the_next_batch_begin(
    plane: MemoryControlPlane,
) -> None:
    wave = planned("a", "b", "c", approve_each_batch=True)
    await plane.record_plan_outcome(wave.plan, ["a"], PlannedOutcome.DONE, "", "run-1")
    await answered(wave, "run-1", "a", "Reject")
    await answered(wave, "run-1", "a", "Approve")
    assert wave.batch(await plans.left_out(wave, "run-2"))[0]["topic"] == "b", "asked already"
    await plane.record_plan_outcome(wave.plan, ["b"], PlannedOutcome.DONE, "", "run-2")
    with pytest.raises(plans.PlanHalted, match="c was rejected by run run-1"):
        await plans.left_out(wave, "run-3")


async def test_what_was_rejected_in_a_wave_by_hand_no_plan_begins(
    plane: MemoryControlPlane,
) -> None:
    wave = by_hand("a", "b", approve_each_batch=True)
    await answered(wave, "manual__1", "a", "Reject")
    assert list(await plans.left_out(planned("b", "c"), "run-2")) == ["b"]
    second = by_hand("b", batch=2, wave="manual__1", asked_at=1)
    assert list(await plans.left_out(second, "manual__1__batch_2")) == ["b"]
    await answered(wave, "manual__1", "a", "Approve")
    assert await plans.left_out(second, "manual__1__batch_2") == {}


CLEAN = {
    "ok": True, "dry_run": False, "not_covered": 0, "unobserved": 0
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"not_covered": 2}, "not_covered 2"),
        ({"not_covered": 1, "unobserved": 3}, "not_covered 1, unobserved 3"),
        ({"dry_run": True}, "judged nothing"),
        ({"ok": None}, "judged nothing"),
        ({"unobserved": None}, "does not tell unobserved"),
    ],
)
def test_coverage_is_complete_only_when_nothing_is_in_doubt(
    changed: dict[str, Any], said: str
) -> None:
    assert said in doubts(CLEAN | changed)
    assert bool(doubts(CLEAN | changed)) == bool(said)
