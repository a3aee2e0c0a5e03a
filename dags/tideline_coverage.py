"""Coverage: is the prefix of every migrated partition whole?"""

from __future__ import annotations

from airflow.sdk import DAG, task
from airflow.timetables.trigger import CronTriggerTimetable

from tideline.airflow import job_tasks, wiring

DOC = """
Proves for every migrated partition that `[log start, B0)` is in remote storage without a gap, from
the brokers' metadata and the objects themselves, and sets or clears `tieringComplete`. Writes a
dated report into `reports/coverage/` of the bucket.

**A partition is not covered?** The report and `tideline coverage TOPIC` say which offsets, since
when, and what to do. **The task failed?** Its last line names the store that is away; it is tried
again by itself. Assets: `tideline_coverage` when a run has ended, `tideline_coverage_complete`
only when it found every partition whole; otherwise `complete` is skipped and says why. Their events
have the run of the job and its counts as `extra`.
"""

settings = wiring.settings()
timeout_ms = settings.airflow_coverage_timeout_ms

with DAG(
    "tideline_coverage",
    description="Proves that the prefix of every migrated partition is whole",
    doc_md=DOC,
    schedule=CronTriggerTimetable(settings.airflow_coverage_schedule, timezone="UTC"),
    tags=["tideline", "spark", "check"],
    **wiring.of_job(settings, timeout_ms, wiring.SCHEDULED),
):
    coverage = job_tasks.job(
        "coverage", pool=wiring.COVERAGE_POOL, timeout_ms=timeout_ms, outlets=[wiring.COVERAGE]
    )
    coverage >> task(outlets=[wiring.COVERAGE_COMPLETE])(job_tasks.complete)()
