"""Garbage collection of objects that nothing refers to."""

from __future__ import annotations

from airflow.sdk import DAG
from airflow.timetables.trigger import CronTriggerTimetable

from tideline.airflow import wiring
from tideline.airflow.jobs import TidelineJobOperator

DOC = """
Deletes WAL objects without a live batch, keys that were never committed, split files that are
merged, orphans of merges that were killed, and objects of deleted topics, each after
`TIDELINE_GC_GRACE_MS`. The brokers' own segments are never touched.

**The task failed?** Its last line names the store that is away; a second run goes on where the
first was, and it is tried again by itself.
"""

settings = wiring.settings()

with DAG(
    "tideline_gc",
    description="Deletes objects that nothing refers to",
    doc_md=DOC,
    schedule=CronTriggerTimetable(settings.airflow_gc_schedule, timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args=wiring.default_args(settings),
    deadline=wiring.deadline(settings),
    tags=["tideline", "spark", "deletes"],
):
    TidelineJobOperator(task_id="gc", job="gc", pool=wiring.GC_POOL)
