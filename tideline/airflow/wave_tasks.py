"""The small tasks of a wave: which topics begin now, and what the next batch gets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import Variable, get_current_context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from tideline.airflow import plans
from tideline.airflow.wave import PLAN_VARIABLE, Wave, plan_of, read_wave
from tideline.airflow.wiring import settings
from tideline.errors import RefusedError, TidelineError, UsageError


def the_wave() -> Wave:
    """Of the run whose task asks. A batch of a plan is one only as long as the Variable still plans
    just that: who edits it, or takes it away, ends the wave, and begins another."""
    params: dict[str, Any] = dict(get_current_context()["params"])
    planned = None
    if not params.get("topics") or params.get("plan"):
        planned = Variable.get(PLAN_VARIABLE, default=None, deserialize_json=True)
    try:
        if (plan := params.get("plan")) and plan != plan_of(planned):
            raise AirflowSkipException(changed(plan))
        wave = read_wave(params, planned, settings().migration_parallel_topics)
    except UsageError as error:
        raise AirflowFailException(str(error)) from error
    if wave is None:
        raise AirflowSkipException(
            f"no topics were given and the Variable {PLAN_VARIABLE} plans none: nothing to do"
        )
    return wave


def changed(plan: str) -> str:
    return (
        f"the Variable {PLAN_VARIABLE} was changed meanwhile: plan {plan} ends here. What it says "
        "now begins when coverage is found complete the next time"
    )


def batch() -> list[dict[str, Any]]:
    """The topics of this batch, each with its options."""
    wave = the_wave()
    try:
        chosen = plans.next_batch(wave, get_current_context()["run_id"])
    except RefusedError as error:
        raise AirflowSkipException(str(error)) from error
    except TidelineError as error:
        raise AirflowException(str(error)) from error
    if not chosen:
        raise AirflowSkipException("nothing is left to migrate")
    return chosen


def next_batch() -> dict[str, Any] | None:
    """The parameters of the next batch; nothing after the last one ends the wave."""
    context = get_current_context()
    this: list[dict[str, Any]] = context["ti"].xcom_pull(task_ids="batch")
    wave = the_wave()
    last = this[-1]["topic"]
    if this[-1]["plan"] != wave.plan or last not in wave.topics:
        raise AirflowSkipException(changed(this[-1]["plan"]))
    begun = context["dag_run"].start_date or datetime.now(UTC)
    return wave.rest(context["run_id"], plans.milliseconds(begun), last)
