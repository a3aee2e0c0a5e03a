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

WRITERS_POOL = "tideline_writers"
"""One slot: retention, split, merge and gc change the same partitions, one at a time."""
FIRST = 10
"""Priority of retention in the pool: it is short and needs no object store, so what fails again and
again because S3 is away must not keep it from the slot."""
COVERAGE_POOL = "tideline_coverage"
"""One slot: coverage reads everything; it may run beside a writer, never beside itself."""
MIGRATIONS_POOL = "tideline_migrations"
"""Topics that migrate at once, over all waves; a deferred wait counts."""

COVERAGE = Asset("tideline_coverage", uri="tideline://coverage", group="tideline")
"""Updated when coverage has judged every migrated partition; the DAG of the waves waits for it."""
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
