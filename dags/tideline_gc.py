"""Garbage collection of objects that nothing refers to."""

from __future__ import annotations

from airflow.sdk import DAG
from airflow.timetables.trigger import CronTriggerTimetable

from tideline.airflow import job_tasks, wiring

DOC = """
Deletes WAL objects without a live batch, and merged segments that have expired or are of deleted
topics, each after `TIDELINE_GC_GRACE_MS`; orphans and what nobody finished only days after a run
has reported them (`TIDELINE_GC_ORPHAN_GRACE_MS`). The brokers' own segments are never touched. What
each run deleted is listed in the bucket under `gc-reports/`.

**The task failed?** Its last line says why:

- a store is away: a second run goes on where the first was, and it is tried again by itself;
- it was held, because it would delete more than it may at once: nothing was deleted. Look at
  `tideline gc --dry-run`, and let exactly that go with `tideline gc allow RUN --reason …`;
- a run has collected in this bucket that Postgres does not know: Postgres was restored, or another
  one collects there. Nothing is deleted: docs/failures.md.
"""

settings = wiring.settings()
timeout_ms = settings.airflow_gc_timeout_ms

with DAG(
    "tideline_gc",
    description="Deletes objects that nothing refers to",
    doc_md=DOC,
    schedule=CronTriggerTimetable(settings.airflow_gc_schedule, timezone="UTC"),
    tags=["tideline", "spark", "deletes"],
    **wiring.of_job(settings, timeout_ms, wiring.SCHEDULED),
):
    job_tasks.job("gc", pool=wiring.GC_POOL, timeout_ms=timeout_ms)
