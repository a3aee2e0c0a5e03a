"""Retention of hybrid topics: prefix and suffix as one log."""

from __future__ import annotations

from airflow.sdk import DAG
from airflow.timetables.trigger import CronTriggerTimetable

from tideline.airflow import wiring
from tideline.airflow.jobs import TidelineJobOperator

DOC = """
Applies `retention.ms` and `retention.bytes` to every migrated topic, prefix and suffix counted as
one log: the prefix through Kafka's DeleteRecords, the suffix through Postgres. B0 never moves.

**What would it delete?** `tideline retention --dry-run`. **The task failed?** Its last line names
the store that is away; nothing is half deleted, and it is tried again by itself.
"""

settings = wiring.settings()

with DAG(
    "tideline_retention",
    description="retention.ms and retention.bytes over prefix and suffix as one log",
    doc_md=DOC,
    schedule=CronTriggerTimetable(settings.airflow_retention_schedule, timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args=wiring.default_args(settings),
    deadline=wiring.deadline(settings),
    tags=["tideline", "spark", "deletes"],
):
    TidelineJobOperator(task_id="retention", job="retention", pool=wiring.RETENTION_POOL)
