"""What all DAGs share: owner, retries, pools, assets, deadlines, time limits."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from airflow.sdk import Asset
from airflow.sdk.definitions.callback import SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from tideline.airflow.alerts import deadline_missed, task_failed
from tideline.settings import AirflowSettings, load

OWNER = "tideline"

COVERAGE_POOL = "tideline_coverage"
RETENTION_POOL = "tideline_retention"
SPLIT_POOL = "tideline_split"
MERGE_POOL = "tideline_merge"
GC_POOL = "tideline_gc"
VERIFY_POOL = "tideline_verify"
JOB_POOLS = (COVERAGE_POOL, RETENTION_POOL, SPLIT_POOL, MERGE_POOL, GC_POOL, VERIFY_POOL)
"""One slot and one DAG each: a job never runs beside itself, and never waits for the slot of one
that fails again and again (docs/airflow.md)."""
MIGRATIONS_POOL = "tideline_migrations"
"""Topics that migrate at once, over all waves; a deferred wait counts."""

COVERAGE = Asset("tideline_coverage", uri="tideline://coverage", group="tideline")
"""Updated when coverage has judged every migrated partition, whatever it found."""
COVERAGE_COMPLETE = Asset(
    "tideline_coverage_complete", uri="tideline://coverage-complete", group="tideline"
)
"""Updated when coverage has found every migrated partition whole; a planned wave waits for it."""
MERGED_SEGMENTS = Asset(
    "tideline_merged_segments", uri="tideline://merged-segments", group="tideline"
)
"""Updated when merge has run; how many segments it made is in the event."""

SCHEDULED, BY_ASSETS = "scheduled", "asset_triggered"
BY_HAND = ("manual", "operator_triggered", "asset_materialization")
"""Kinds of runs that a DAG may have; see :func:`kinds`."""


def settings() -> AirflowSettings:
    """From the environment and the settings file; touches no store."""
    return load(AirflowSettings)


def default_args(given: AirflowSettings) -> dict[str, Any]:
    """Of every task: a failure is tried again with growing waits, then it is an alert."""
    return {
        "owner": OWNER,
        "retries": given.airflow_retries,
        "retry_delay": timedelta(milliseconds=given.airflow_retry_delay_ms),
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(milliseconds=given.airflow_max_retry_delay_ms),
        "execution_timeout": timedelta(milliseconds=given.airflow_task_timeout_ms),
        "on_failure_callback": task_failed,
        "weight_rule": "absolute",
    }


def of_job(given: AirflowSettings, timeout_ms: int, *starts: str) -> dict[str, Any]:
    """Arguments of a job's DAG. ``timeout_ms``: of one try; ``starts``: how its runs begin beside
    those by hand, :data:`SCHEDULED` or :data:`BY_ASSETS`."""
    return {
        "catchup": False,
        "max_active_runs": 1,
        "default_args": default_args(given),
        "deadline": late_after(given.airflow_deadline_ms),
        "dagrun_timeout": longest_run(given, timeout_ms),
        "allowed_run_types": kinds(starts),
    }


def of_wave(given: AirflowSettings) -> dict[str, Any]:
    """Arguments of the waves' DAG. A batch may wait for a person, or for brokers, for days: it is
    never ended, and late only if the settings say when."""
    late_ms = given.airflow_wave_deadline_ms
    return {
        "catchup": False,
        "max_active_runs": 1,
        "default_args": default_args(given),
        "deadline": None if late_ms is None else late_after(late_ms),
        "allowed_run_types": kinds((BY_ASSETS,)),
    }


def kinds(starts: Iterable[str]) -> list[str]:
    """No backfill: a job looks at what is there now, whatever date it is given."""
    return [*starts, *BY_HAND]


def late_after(limit_ms: int) -> DeadlineAlert:
    """An alert when a run is not done in time."""
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(milliseconds=limit_ms),
        callback=SyncCallback(deadline_missed, {"limit_ms": limit_ms}),
        name="not done in time",
    )


def longest_run(given: AirflowSettings, timeout_ms: int) -> timedelta:
    """What all tries of a job may take, and the small tasks beside it: a run that stands still for
    longer is ended, so that the next one begins."""
    tries = (given.airflow_retries + 1) * timeout_ms
    waits = given.airflow_retries * given.airflow_max_retry_delay_ms
    return timedelta(milliseconds=tries + waits + 2 * given.airflow_task_timeout_ms)
