"""The DAG files hold schedules and wiring only, and say in the UI what they are."""

from __future__ import annotations

import json
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag

from tideline.airflow import wiring

DAGS = Path(__file__).parents[3] / "dags"
IDS = {
    "tideline_coverage",
    "tideline_retention",
    "tideline_tiering",
    "tideline_gc",
    "tideline_verify",
    "tideline_migration_wave",
}


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
        assert dag.deadline
        assert not dag.catchup
        assert dag.max_active_runs == 1


def test_every_task_has_an_owner_and_is_tried_again_with_growing_waits(dags: Any) -> None:
    for dag in dags.values():
        for task in dag.tasks:
            assert task.owner == wiring.OWNER
            assert task.retries > 0
            assert task.retry_exponential_backoff > 1
            assert task.max_retry_delay >= task.retry_delay


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


def test_a_wave_waits_for_complete_coverage_and_merge_for_split(dags: Any) -> None:
    wave, coverage = dags["tideline_migration_wave"], dags["tideline_coverage"]
    assert coverage.get_task("coverage").outlets == [wiring.COVERAGE]
    assert list(wave.timetable.asset_condition.objects) == [wiring.COVERAGE_COMPLETE]
    complete = coverage.get_task("complete")
    assert complete.outlets == [wiring.COVERAGE_COMPLETE]
    assert complete.upstream_task_ids == {"coverage"}
    tiering = dags["tideline_tiering"]
    assert tiering.get_task("merge").get_flat_relative_ids(upstream=True) == {
        "split",
        "merge_is_due",
    }


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
    monkeypatch.setenv("TIDELINE_MIGRATION_PARALLEL_TOPICS", "7")
    dags = parsed(monkeypatch)
    coverage = dags["tideline_coverage"]
    assert coverage.timetable.summary == "* * * * *"
    assert coverage.get_task("coverage").retry_delay == timedelta(milliseconds=500)
    assert "0:00:30" in dags["tideline_tiering"].timetable.summary
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
