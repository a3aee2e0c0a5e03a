"""The DAG files hold schedules and wiring only, and say in the UI what they are."""

from __future__ import annotations

import json
import runpy
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag

from tideline.airflow import wiring
from tideline.airflow.clusters import LAUNCHER
from tideline.airflow.jobs import TidelineJobOperator
from tideline.installation import shipped

DAGS = Path(__file__).parents[3] / "dags"
IDS = {
    "tideline_coverage",
    "tideline_retention",
    "tideline_split",
    "tideline_merge",
    "tideline_gc",
    "tideline_verify",
    "tideline_migration_wave",
}
WAVE = "tideline_migration_wave"
STARTED_BY_WORK = ("tideline_split", "tideline_merge")


def parsed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The DAGs, in a process that can reach nothing."""

    def refuse(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"parsing a DAG file connects to {address}")

    with monkeypatch.context() as patched:
        patched.setattr(socket.socket, "connect", refuse)
        bag = DagBag(str(DAGS))
    assert bag.import_errors == {}
    return bag.dags


@pytest.fixture
def dags(monkeypatch: pytest.MonkeyPatch) -> Any:
    return parsed(monkeypatch)


def test_every_dag_is_read_without_touching_a_store_and_explains_itself(dags: Any) -> None:
    assert set(dags) == IDS
    for dag in dags.values():
        assert "again" in dag.doc_md, f"{dag.dag_id} says what happens after a failure"
        assert "tideline" in dag.tags
        assert dag.description
        assert not dag.catchup
        assert dag.max_active_runs == 1


def test_every_task_has_an_owner_and_is_tried_again_with_growing_waits(dags: Any) -> None:
    for dag in dags.values():
        for task in dag.tasks:
            assert task.owner == wiring.OWNER
            assert task.retries > 0
            assert task.retry_exponential_backoff > 1
            assert task.max_retry_delay >= task.retry_delay


def test_the_launcher_knows_the_job_of_every_dag(dags: Any) -> None:
    launcher = runpy.run_path(str(shipped("infra/spark") / LAUNCHER))
    named = {
        task.job
        for dag in dags.values()
        for task in dag.tasks
        if isinstance(task, TidelineJobOperator)
    }
    assert named <= set(launcher["JOBS"])
    assert len(named) == len(wiring.JOB_POOLS)


def test_no_job_runs_beside_itself_or_waits_for_the_slot_of_another(dags: Any) -> None:
    pools = json.loads((DAGS / "pools.json").read_text())
    users: dict[str, set[str]] = {}
    for dag in dags.values():
        for task in dag.tasks:
            users.setdefault(task.pool, set()).add(dag.dag_id)
            if task.task_type == "TidelineJobOperator":
                assert task.pool in wiring.JOB_POOLS
    for pool in wiring.JOB_POOLS:
        assert pools[pool]["slots"] == 1
        assert len(users[pool]) == 1, f"{pool}: which DAG is first would be Airflow's choice"
    assert pools[wiring.MIGRATIONS_POOL]["include_deferred"], "a topic that is waited for counts"
    assert set(users) <= {*pools, "default_pool"}


def test_a_wave_waits_for_complete_coverage(dags: Any) -> None:
    wave, coverage = dags[WAVE], dags["tideline_coverage"]
    assert coverage.get_task("coverage").outlets == [wiring.COVERAGE]
    assert list(wave.timetable.asset_condition.objects) == [wiring.COVERAGE_COMPLETE]
    complete = coverage.get_task("complete")
    assert complete.outlets == [wiring.COVERAGE_COMPLETE]
    assert complete.upstream_task_ids == {"coverage"}


def test_merge_waits_for_no_file_that_cannot_be_split(dags: Any) -> None:
    assert set(dags["tideline_split"].task_ids) == {"split"}
    assert set(dags["tideline_merge"].task_ids) == {"merge"}


def test_a_job_is_ended_and_told_when_it_is_late_and_a_wave_waits_for_as_long_as_it_takes(
    dags: Any,
) -> None:
    for name, dag in dags.items():
        for task in dag.tasks:
            if task.task_id == "approve":
                assert task.execution_timeout is None
                assert task.response_timeout is None
            else:
                assert task.execution_timeout > timedelta(0), f"{name}.{task.task_id}"
        if name == WAVE:
            assert (dag.deadline, dag.dagrun_timeout) == (None, None)
        else:
            (task,) = [t for t in dag.tasks if t.pool in wiring.JOB_POOLS]
            tries = (task.retries + 1) * task.execution_timeout
            assert dag.dagrun_timeout > tries + task.retries * task.max_retry_delay
            assert dag.deadline[0].interval == timedelta(hours=1)


def test_the_time_limits_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, job in enumerate(("COVERAGE", "RETENTION", "SPLIT", "MERGE", "GC", "TASK")):
        monkeypatch.setenv(f"TIDELINE_AIRFLOW_{job}_TIMEOUT_MS", str((number + 1) * 60_000))
    monkeypatch.setenv("TIDELINE_AIRFLOW_WAVE_DEADLINE_MS", "90000")
    dags = parsed(monkeypatch)
    limits = [
        dags[f"tideline_{job}"].get_task(job).execution_timeout.total_seconds()
        for job in ("coverage", "retention", "split", "merge", "gc")
    ]
    assert limits == [60, 120, 180, 240, 300]
    assert dags[WAVE].get_task("batch").execution_timeout == timedelta(minutes=6)
    (late,) = dags[WAVE].deadline
    assert (late.interval, late.callback.kwargs) == (timedelta(seconds=90), {"limit_ms": 90_000})


def test_nothing_is_run_for_days_that_have_passed(dags: Any) -> None:
    for name, dag in dags.items():
        kinds = {str(kind.value) for kind in dag.allowed_run_types}
        assert "backfill" not in kinds, name
        assert {"manual", "operator_triggered"} <= kinds
        assert ("scheduled" in kinds) == (name != WAVE)
        assert ("asset_triggered" in kinds) == (name in (WAVE, *STARTED_BY_WORK))


def test_split_and_merge_start_when_there_is_work_and_once_an_hour(dags: Any) -> None:
    for name in STARTED_BY_WORK:
        (watcher,) = dags[name].timetable.asset_condition.watchers
        job = name.removeprefix("tideline_")
        path, arguments = watcher.trigger.serialize()
        assert path == "tideline.airflow.watch.WorkTrigger"
        assert arguments["job"] == job
        assert dags[name].timetable.timetable.delta == timedelta(hours=1)


def test_split_and_merge_start_by_their_intervals_where_a_setting_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIDELINE_AIRFLOW_TIERING_STARTS", "schedule")
    monkeypatch.setenv("TIDELINE_TIERING_SPLITTER_INTERVAL_MS", "30000")
    monkeypatch.setenv("TIDELINE_TIERING_MERGER_INTERVAL_MS", "90000")
    dags = parsed(monkeypatch)
    assert dags["tideline_split"].timetable.delta == timedelta(seconds=30)
    assert dags["tideline_merge"].timetable.delta == timedelta(seconds=90)


def test_a_wave_checks_every_topic_of_a_batch_before_the_first_migrates(dags: Any) -> None:
    wave = dags["tideline_migration_wave"]
    assert [task.task_id for task in wave.topological_sort()] == [
        "batch",
        "check",
        "migrate",
        "next_batch",
        "approve",
        "start_next",
    ]


def test_schedules_and_delays_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELINE_AIRFLOW_COVERAGE_SCHEDULE", "* * * * *")
    monkeypatch.setenv("TIDELINE_AIRFLOW_RETRY_DELAY_MS", "500")
    monkeypatch.setenv("TIDELINE_TIERING_SPLITTER_INTERVAL_MS", "30000")
    monkeypatch.setenv("TIDELINE_TIERING_MERGER_INTERVAL_MS", "90000")
    monkeypatch.setenv("TIDELINE_MIGRATION_PARALLEL_TOPICS", "7")
    dags = parsed(monkeypatch)
    coverage = dags["tideline_coverage"]
    assert coverage.timetable.summary == "* * * * *"
    assert coverage.get_task("coverage").retry_delay == timedelta(milliseconds=500)
    for job, every_ms in (("split", 30_000), ("merge", 90_000)):
        work = dags[f"tideline_{job}"].timetable.asset_condition
        assert work.watchers[0].trigger.serialize()[1]["every_ms"] == every_ms
    described = dags["tideline_migration_wave"].params.get_param("batch_size").description
    assert "empty: 7" in described


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topics", ["two words"]),
        ("topics", "orders"),
        ("batch_size", 0),
        ("durability", "maybe"),
        ("quiesce_hold_ms", 1),
        ("approve_each_batch", "yes"),
    ],
)
def test_a_wrong_parameter_of_a_wave_is_refused_by_its_schema(
    dags: Any, name: str, value: object
) -> None:
    from airflow.sdk.exceptions import ParamValidationError

    with pytest.raises(ParamValidationError):
        dags["tideline_migration_wave"].params.get_param(name).resolve(value)
