"""What a wave's run begins, by its parameters and by what the Variable plans at that time."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from tideline.airflow import job_tasks, plans, spark_link, wave_tasks
from tideline.airflow.wave import plan_of, schemas
from tideline.airflow.wiring import COVERAGE_COMPLETE
from tideline.control_plane.memory import MemoryControlPlane
from tideline.control_plane.model import PlannedOutcome
from tideline.errors import UnreachableError

DEFAULTS = {name: schema["default"] for name, schema in schemas(5).items()}


class Run:
    """Of the waves' DAG: its context, and the Variable."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.planned: object = None
        self.values: dict[str, Any] = {}
        self.context: dict[str, Any] = {
            "run_id": "run-1",
            "params": DEFAULTS,
            "dag_run": SimpleNamespace(start_date=datetime.now(UTC)),
            "ti": SimpleNamespace(xcom_pull=lambda task_ids: self.values.get(task_ids)),
        }
        for module in (wave_tasks, job_tasks):
            monkeypatch.setattr(module, "get_current_context", lambda: self.context)
        monkeypatch.setattr(wave_tasks.Variable, "get", lambda *_, **__: self.planned)

    def given(self, **params: Any) -> None:
        self.context["params"] = DEFAULTS | params

    def topics(self) -> list[str]:
        """Of the batch that begins now."""
        self.values["batch"] = wave_tasks.batch()
        return [entry["topic"] for entry in self.values["batch"]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def test_a_batch_begins_and_the_next_one_gets_what_is_left(run: Run) -> None:
    run.given(topics=["a", "b", "c"], batch_size=2)
    assert run.topics() == ["a", "b"]
    following = wave_tasks.next_batch()
    assert following is not None
    assert (following["topics"], following["batch"]) == (["c"], 2)
    run.given(**following)
    assert run.topics() == ["c"]
    assert wave_tasks.next_batch() is None


def test_without_topics_and_plan_nothing_is_done(run: Run) -> None:
    with pytest.raises(AirflowSkipException, match="nothing to do"):
        run.topics()


def test_a_wrong_plan_is_not_tried_again(run: Run) -> None:
    run.planned = "orders"
    with pytest.raises(AirflowFailException, match="write a JSON list"):
        run.topics()
    run.given(topics=["a"], plan="0123")
    with pytest.raises(AirflowFailException, match="write a JSON list"):
        run.topics()


@pytest.mark.parametrize("changed", [None, [], ["a", "b"], {"topics": ["a", "b", "c"], "batch": 2}])
def test_a_batch_of_a_plan_does_not_begin_when_the_variable_says_something_else(
    run: Run, changed: object
) -> None:
    run.planned = {"topics": ["a", "b", "c"], "batch_size": 1}
    assert run.topics() == ["a"]
    following = wave_tasks.next_batch()
    assert following is not None
    assert following["plan"] == plan_of(run.planned)
    run.given(**following)
    run.context["run_id"] = "run-1__batch_2"
    assert run.topics() == ["b"], "the plan is what it was"
    run.planned = changed
    with pytest.raises(AirflowSkipException, match="was changed meanwhile"):
        run.topics()


def test_a_plan_that_is_replaced_under_its_first_batch_ends_with_it(run: Run) -> None:
    run.planned = ["a", "b"]
    run.given(batch_size=1)
    assert run.topics() == ["a"]
    run.planned = ["a", "x"]
    with pytest.raises(AirflowSkipException, match="was changed meanwhile"):
        wave_tasks.next_batch()


async def test_a_halted_plan_and_one_that_is_done_are_skipped(
    run: Run, plane: MemoryControlPlane
) -> None:
    import asyncio

    run.planned = ["a"]
    plan = plan_of(run.planned)
    await plane.record_plan_outcome(plan, ["a"], PlannedOutcome.ABORTED, "", "run-0")
    with pytest.raises(AirflowSkipException, match="a was aborted by run run-0"):
        await asyncio.to_thread(run.topics)
    await plane.record_plan_outcome(plan, ["a"], PlannedOutcome.DONE, "", "run-0")
    with pytest.raises(AirflowSkipException, match="nothing is left"):
        await asyncio.to_thread(run.topics)


def test_while_postgres_is_away_the_choice_is_tried_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise UnreachableError("Postgres at pg:5432 does not answer")

    monkeypatch.setattr(plans, "next_batch", away)
    run.given(topics=["a"])
    with pytest.raises(AirflowException, match="pg:5432") as failed:
        run.topics()
    assert not isinstance(failed.value, AirflowFailException)


# What assets are told

RESULT = {
    "ok": True,
    "exit_code": 0,
    "dry_run": False,
    "run_id": "r",
    "report": "s3://b/reports",
    "covered": 7,
    "not_covered": 0,
    "unobserved": 0,
    "error": None,
    "merge": {"segments": 2, "bytes": 10, "failures": []},
}


def test_an_event_of_an_asset_has_the_run_and_its_counts() -> None:
    asset = object()
    events = {asset: SimpleNamespace(extra=None)}
    context: Any = {"task": SimpleNamespace(outlets=[asset]), "outlet_events": events}
    job_tasks.tell_assets(context, RESULT)
    assert events[asset].extra == {
        "run_id": "r",
        "report": "s3://b/reports",
        "covered": 7,
        "not_covered": 0,
        "unobserved": 0,
        "merge": {"segments": 2, "bytes": 10},
    }


@pytest.mark.parametrize(
    ("result", "leads"),
    [
        ({"spark_application": "app-1"}, "http://history:18080/history/app-1/jobs/"),
        ({"ok": True}, "http://history:18080"),
        (None, "http://history:18080"),
    ],
)
def test_the_button_of_a_job_leads_to_its_application(
    monkeypatch: pytest.MonkeyPatch, result: Any, leads: str
) -> None:
    monkeypatch.setattr(spark_link.XCom, "get_value", lambda **_: result)
    made = job_tasks.job("gc", pool="p", timeout_ms=1_000)
    (link,) = made.operator_extra_links
    key: Any = None
    assert link.get_link(made, ti_key=key) == "", "no history server is named"
    monkeypatch.setenv("TIDELINE_AIRFLOW_SPARK_UI", "http://history:18080/")
    assert link.get_link(made, ti_key=key) == leads


def test_coverage_is_told_complete_only_when_nothing_is_in_doubt(run: Run) -> None:
    event = SimpleNamespace(extra=None)
    run.context["outlet_events"] = {COVERAGE_COMPLETE: event}
    run.values["coverage"] = RESULT | {"not_covered": 1}
    with pytest.raises(AirflowSkipException, match="not_covered 1"):
        job_tasks.complete()
    assert event.extra is None
    run.values["coverage"] = RESULT
    job_tasks.complete()
    assert (event.extra["run_id"], event.extra["covered"]) == ("r", 7)
