"""What all DAGs share: owner, retries, pools, assets, deadlines."""

from __future__ import annotations

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
TIERING_POOL = "tideline_tiering"
GC_POOL = "tideline_gc"
VERIFY_POOL = "tideline_verify"
JOB_POOLS = (COVERAGE_POOL, RETENTION_POOL, TIERING_POOL, GC_POOL, VERIFY_POOL)
"""One slot and one DAG each: a job never runs beside itself, and never waits for the slot of one
that fails again and again (docs/decisions/0008-a-slot-for-each-job.md)."""
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
"""Updated when merge has run."""


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
        "on_failure_callback": task_failed,
        "weight_rule": "absolute",
    }


def deadline(given: AirflowSettings) -> DeadlineAlert:
    """An alert when a run is not done in time."""
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(milliseconds=given.airflow_deadline_ms),
        callback=SyncCallback(deadline_missed),
        name="not done in time",
    )
