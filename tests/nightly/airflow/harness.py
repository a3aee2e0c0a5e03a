"""Airflow beside the run's embedded stack, started for one file of tests and stopped after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from tideline.demo.airflow_api import AirflowApi
from tideline.stack import Stack
from tideline.stack.parts.airflow import COMPONENTS

NEVER = "0 0 1 1 *"
SETTINGS = {
    "TIDELINE_AIRFLOW_COVERAGE_SCHEDULE": NEVER,
    "TIDELINE_AIRFLOW_RETENTION_SCHEDULE": NEVER,
    "TIDELINE_AIRFLOW_GC_SCHEDULE": NEVER,
    "TIDELINE_AIRFLOW_VERIFY_SCHEDULE": NEVER,
    "TIDELINE_TIERING_SPLITTER_INTERVAL_MS": "2000",
    "TIDELINE_TIERING_MERGER_INTERVAL_MS": "2000",
    "TIDELINE_AIRFLOW_RETRIES": "30",
    "TIDELINE_AIRFLOW_RETRY_DELAY_MS": "10000",
    "TIDELINE_AIRFLOW_MAX_RETRY_DELAY_MS": "15000",
    "TIDELINE_AIRFLOW_TEMPORAL_PATIENCE_MS": "3000",
}
"""Runs begin when a test says so; work of tiering is seen at once. Tries again come when the store
that a test took away is back: one that comes sooner costs a JVM."""

DAGS = {
    "tideline_coverage",
    "tideline_retention",
    "tideline_split",
    "tideline_merge",
    "tideline_gc",
    "tideline_verify",
    "tideline_migration_wave",
}


@contextmanager
def airflow_of(stack: Stack) -> Iterator[AirflowApi]:
    """Airflow with every DAG read. Only its programs are stopped at the end."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in SETTINGS.items():
            environment.setenv(name, value)
        extended = Stack.up(stack.home, parts=("airflow",))
    api = AirflowApi.of_home(stack.home, stack.endpoints.airflow)
    try:
        api.until("every DAG", lambda: set(api.dags()) >= DAGS, 240, lambda: set(api.dags()))
        yield api
    finally:
        api.close()
        for component in COMPONENTS:
            extended.stop(f"airflow-{component}")


@contextmanager
def no_run_left(api: AirflowApi) -> Iterator[None]:
    """A test that failed leaves no run that the next one would have to wait for."""
    try:
        yield
    finally:
        for dag in DAGS:
            for run in api.runs(dag):
                if run["state"] in ("queued", "running"):
                    api.give_up(dag, run["dag_run_id"])


def failed_with(
    api: AirflowApi,
    dag: str,
    run: str,
    tasks: Sequence[str],
    says: Sequence[str],
    *,
    index: int = -1,
    timeout_s: float = 240,
) -> bool:
    """Wait for an attempt of one of ``tasks`` that has failed with all of ``says`` in its message,
    for at most ``timeout_s`` without a step of the run.

    False when the run has come to success instead: it was through before the fault.
    """

    read: dict[tuple[str, int], list[str]] = {}

    def read_failures(task: str) -> None:
        """Messages of the attempts that have failed since the last look."""
        found = api.task(dag, run, task, index) or {"try_number": 0, "state": None}
        last = found["try_number"] - (found["state"] not in ("up_for_retry", "failed"))
        for attempt in range(1, last + 1):
            if (task, attempt) not in read:
                read[task, attempt] = api.failures(dag, run, task, attempt, index)

    def ended() -> str:
        for task in tasks:
            read_failures(task)
        messages = [message for found in read.values() for message in found]
        if any(all(text in message for text in says) for message in messages):
            return "as it should"
        return "well" if api.run(dag, run)["state"] == "success" else ""

    found = api.until(f"{dag} to fail with {says}", ended, timeout_s, lambda: api.steps(dag, run))
    return found != "well"
