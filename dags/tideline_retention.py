"""Retention of hybrid topics: prefix and suffix as one log."""

from __future__ import annotations

from airflow.sdk import DAG
from airflow.timetables.trigger import CronTriggerTimetable

from tideline.airflow import job_tasks, wiring

DOC = """
Applies `retention.ms` and `retention.bytes` to every migrated topic, prefix and suffix counted as
one log: the prefix through Kafka's DeleteRecords, the suffix through Postgres. B0 never moves.

**What would it delete?** `tideline retention --dry-run`. **The task failed?** Its last line names
the store that is away; nothing is half deleted, and it is tried again by itself.
"""

settings = wiring.settings()
timeout_ms = settings.airflow_retention_timeout_ms

with DAG(
    "tideline_retention",
    description="retention.ms and retention.bytes over prefix and suffix as one log",
    doc_md=DOC,
    schedule=CronTriggerTimetable(settings.airflow_retention_schedule, timezone="UTC"),
    tags=["tideline", "spark", "deletes"],
    **wiring.of_job(settings, timeout_ms, wiring.SCHEDULED),
):
    job_tasks.job("retention", pool=wiring.RETENTION_POOL, timeout_ms=timeout_ms)
