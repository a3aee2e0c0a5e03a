"""What a wave may start: a plan starts a topic once, and nothing that a person aborted or rejected
is started again until a person asks anew. Postgres decides, not the conf of a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import structlog

from tideline import control_plane
from tideline.airflow.wave import PLAN_VARIABLE, Wave, by_hand
from tideline.control_plane.model import PlannedOutcome, PlannedTopic
from tideline.control_plane.plane import ControlPlane
from tideline.errors import RefusedError
from tideline.settings import WorkerSettings, load

log = structlog.get_logger()

ANEW = "a person who wants it migrates it by name, with this DAG's parameters or `tideline migrate`"


GOES_ON = (PlannedOutcome.DONE, PlannedOutcome.ALLOWED, PlannedOutcome.LEFT_BEHIND)
"""Outcomes at which a plan does not halt."""


class PlanHalted(RefusedError):
    """A topic of the plan has not become hybrid: no further one is started."""


class AbortedMeanwhile(RefusedError):
    """Nothing starts again what was aborted after the run had begun."""


@asynccontextmanager
async def connected() -> AsyncIterator[ControlPlane]:
    """The control plane, with the rights of the worker's role."""
    settings = load(WorkerSettings)
    async with control_plane.connect(settings, application_name="tideline-airflow") as plane:
        yield plane


def next_batch(wave: Wave, run_id: str) -> list[dict[str, Any]]:
    """Arguments of the operators for what ``wave`` may begin now. Raises as :func:`left_out`."""
    reasons = asyncio.run(left_out(wave, run_id))
    for topic, why in reasons.items():
        log.info("a topic is left out", topic=topic, why=why)
    return wave.batch(reasons)


async def left_out(wave: Wave, run_id: str) -> dict[str, str]:
    """Topics of ``wave`` that its next batch leaves out, with the reason.

    What this very run has told does not count: who clears its tasks asks anew. Raises
    :class:`PlanHalted` and :class:`~tideline.errors.UnreachableError`.
    """
    if wave.is_asked_for_now:
        return {}
    async with connected() as plane:
        aborted = await plane.aborted_topics(wave.topics)
        rejected = await plane.rejected_topics(wave.topics)
        told = await plane.plan_outcomes(wave.plan) if wave.plan else []
    reasons = {
        one.topic: f"its migration was aborted at {one.aborted_at:%Y-%m-%d %H:%M:%S %Z}: {ANEW}"
        for one in aborted
        if wave.plan or milliseconds(one.aborted_at) >= wave.asked_at
    }
    reasons |= {
        one.topic: f"it was {one.reason} in run {one.run}: {ANEW}"
        for one in rejected
        if one.plan != wave.plan and milliseconds(one.changed_at) >= wave.asked_at
    }
    done = {one.topic for one in told if one.outcome is PlannedOutcome.DONE}
    reasons |= dict.fromkeys(done, "the plan has migrated it")
    left = {one.topic for one in told if one.outcome is PlannedOutcome.LEFT_BEHIND}
    reasons |= dict.fromkeys(left, f"the wave went on without it, its migration goes on: {ANEW}")
    begins = {entry["topic"] for entry in wave.batch(reasons)}
    for one in told:
        if one.run != run_id and _halts(one, begins):
            why = f": {one.reason}" if one.reason else ""
            raise PlanHalted(
                f"plan {wave.plan}: {one.topic} was {one.outcome} by run {one.run}{why}. Nothing "
                f"further of the plan is started: repair it and clear its task, or take it out of "
                f"the Variable {PLAN_VARIABLE}; {ANEW}"
            )
    allowed = {one.topic for one in told if one.outcome is PlannedOutcome.ALLOWED}
    if wave.plan and wave.number == 1 and wave.approve_each_batch and done and begins - allowed:
        raise PlanHalted(
            f"plan {wave.plan}: a batch is done and nobody has allowed the next one: clear the "
            f"task `approve` of the last run; {ANEW}"
        )
    return reasons


def _halts(told: PlannedTopic, begins: Collection[str]) -> bool:
    """A rejection halts the batch that was rejected, until a person allows just that."""
    if told.outcome is PlannedOutcome.REJECTED:
        return told.topic in begins
    return told.outcome not in GOES_ON


async def begin(topic: str, plan: str, run_id: str, since: datetime) -> None:
    """Before a topic is started or joined, at every try. ``since``: when the run began.

    Raises :class:`AbortedMeanwhile` and :class:`~tideline.errors.UnreachableError`.
    """
    async with connected() as plane:
        for found in await plane.aborted_topics([topic]):
            if found.aborted_at >= since:
                raise AbortedMeanwhile(
                    f"the migration was aborted at {found.aborted_at:%Y-%m-%d %H:%M:%S %Z}, after "
                    "this run began: it is not started again. Clear this task when the run has "
                    f"ended; or {ANEW}"
                )
        if plan:
            await plane.record_plan_outcome(plan, [topic], PlannedOutcome.STARTED, "", run_id)


async def tell(
    plan: str, topics: Collection[str], outcome: PlannedOutcome, reason: str, run_id: str
) -> None:
    """Keep what became of these topics; without a plan there is nothing to keep."""
    if plan:
        async with connected() as plane:
            await plane.record_plan_outcome(plan, topics, outcome, reason, run_id)


async def decide(following: Mapping[str, Any], allowed: bool, who: str, run_id: str) -> None:
    """Keep what a person says of the next batch, also of a wave without a plan, so that no planned
    one begins what was rejected. A rejection is of every topic that was to come.

    ``following``: the parameters of the next batch. Raises
    :class:`~tideline.errors.UnreachableError`.
    """
    plan = following["plan"] or by_hand(following["wave"])
    topics: list[str] = following["topics"]
    if allowed:
        outcome, topics = PlannedOutcome.ALLOWED, topics[: following["batch_size"]]
        reason = f"allowed by {who}"
    else:
        outcome, reason = PlannedOutcome.REJECTED, f"rejected by {who}"
    await tell(plan, topics, outcome, reason, run_id)


def milliseconds(at: datetime) -> int:
    """Since the epoch."""
    return int(at.astimezone(UTC).timestamp() * 1000)
