"""Every DAG, run by Airflow itself, from its schedule or a trigger to success."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import psutil
import pytest

from tests.airflow_harness import airflow_of, no_run_left
from tests.harness import migration_case
from tideline.airflow.rest import AirflowApi, AirflowRefused
from tideline.stack import Stack
from tideline.stack.ports import LOOPBACK
from tideline.stack.processes import family

WAVE = "tideline_migration_wave"
RUN_S = 240.0
"""Seconds are enough on a quiet machine; a busy one is no failure."""


pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def airflow(stack: Stack) -> Iterator[AirflowApi]:
    with airflow_of(stack) as found:
        yield found


@pytest.fixture
def api(airflow: AirflowApi) -> Iterator[AirflowApi]:
    with no_run_left(airflow):
        yield airflow


def run_by_schedule(api: AirflowApi, dag: str, kind: str) -> str:
    """The id of a run that nobody triggered."""

    def found() -> str | None:
        return next((r["dag_run_id"] for r in api.runs(dag) if r["run_type"] == kind), None)

    return api.until(f"a {kind} run of {dag}", found, RUN_S)


def approved(api: AirflowApi, run: str) -> bool:
    """Say yes as often as it is asked: Airflow may try a task again that is answered at once."""
    asked = api.task(WAVE, run, "approve") or {}
    if asked.get("state") == "awaiting_input":
        with suppress(AirflowRefused):
            api.answer(WAVE, run, "approve", "Approve")
    return asked.get("state") == "success"


def returned(api: AirflowApi, dag: str, run: str, task: str) -> Any:
    assert api.ended(dag, run, RUN_S) == "success", api.tasks(dag, run)
    return api.value(dag, run, task)


def test_tiering_runs_by_its_schedule_split_before_merge(api: AirflowApi) -> None:
    run = run_by_schedule(api, "tideline_tiering", "scheduled")
    assert returned(api, "tideline_tiering", run, "split")["ok"]
    assert api.value("tideline_tiering", run, "merge")["ok"]


def test_a_wave_goes_from_batch_to_batch_as_a_person_allows_and_ends_hybrid(
    stack: Stack, api: AirflowApi
) -> None:
    with migration_case(stack, name="wave") as one, migration_case(stack, name="wave") as two:
        first = api.trigger(
            WAVE, topics=[one.topic, two.topic], batch_size=1, approve_each_batch=True
        )
        api.until(
            "the question before the second batch",
            lambda: (api.task(WAVE, first, "approve") or {}).get("state") == "awaiting_input",
            RUN_S,
        )
        assert min(one.boundaries()) >= 0
        assert two.boundaries() in ([], [-1]), "no second batch without a person's word"
        api.until("the second batch", lambda: approved(api, first), RUN_S)
        assert api.ended(WAVE, first, RUN_S) == "success"
        second = f"{first}__batch_2"
        assert api.ended(WAVE, second, RUN_S) == "success"
        outcome = api.value(WAVE, second, "migrate", 0)
        assert outcome["outcome"] == "hybrid"
        assert outcome["boundaries"] == {"0": two.boundaries()[0]}


def test_a_wave_stops_before_its_batch_when_a_check_fails_and_names_topic_check_and_remedy(
    stack: Stack, api: AirflowApi
) -> None:
    with migration_case(stack, name="good", history=0) as good:
        run = api.trigger(WAVE, topics=[good.topic, "no-such-topic"])
        assert api.ended(WAVE, run, RUN_S) == "failed"
        said = api.log(WAVE, run, "check", 1, index=1)
        assert "no-such-topic may not migrate" in said
        assert "topic_exists: topic 'no-such-topic' does not exist (check the spelling" in said
        migrations = [task for task in api.tasks(WAVE, run) if task["task_id"] == "migrate"]
        assert {task["state"] for task in migrations} == {"upstream_failed"}
        assert good.boundaries() in ([], [-1])


def test_the_jobs_succeed_from_their_schedule_or_a_trigger_and_coverage_starts_a_wave(
    stack: Stack, api: AirflowApi
) -> None:
    with migration_case(stack, name="jobs") as case:
        wave = api.trigger(WAVE, topics=[case.topic])
        assert api.ended(WAVE, wave, RUN_S) == "success"
        runs = {dag: api.trigger(f"tideline_{dag}") for dag in ("coverage", "retention", "gc")}
        for dag, run in runs.items():
            result = returned(api, f"tideline_{dag}", run, dag)
            assert result["ok"], result
    by_asset = run_by_schedule(api, WAVE, "asset_triggered")
    assert api.ended(WAVE, by_asset, RUN_S) == "success"
    batch = api.task(WAVE, by_asset, "batch")
    assert batch is not None
    assert batch["state"] == "skipped", "nothing is planned, so there is nothing to migrate"


def test_airflow_opens_nothing_beyond_loopback_and_wants_a_password(
    stack: Stack, api: AirflowApi
) -> None:
    running = Stack.attach(stack.home)
    listening = {
        connection.laddr.ip
        for name in running.programs
        if name.startswith("airflow-")
        for process in family(running.pid(name))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {LOOPBACK}
    assert httpx.get(f"{api.url}/api/v2/dags").status_code == 401
    assert api.import_errors() == []
