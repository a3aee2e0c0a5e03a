"""Coverage: is the prefix of every migrated partition whole?"""

from __future__ import annotations

from airflow.sdk import DAG
from airflow.timetables.trigger import CronTriggerTimetable

from tideline.airflow import wiring
from tideline.airflow.jobs import TidelineJobOperator

DOC = """
Proves for every migrated partition that `[log start, B0)` is in remote storage without a gap, from
the brokers' metadata and the objects themselves, and sets or clears `tieringComplete`. Writes a
dated report into `reports/coverage/` of the bucket.

**A partition is not covered?** The report and `tideline coverage TOPIC` say which offsets, since
when, and what to do. **The task failed?** Its last line names the store that is away; it is tried
again by itself. Asset: `tideline_coverage`.
"""

settings = wiring.settings()

with DAG(
    "tideline_coverage",
    description="Proves that the prefix of every migrated partition is whole",
    doc_md=DOC,
    schedule=CronTriggerTimetable(settings.airflow_coverage_schedule, timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args=wiring.default_args(settings),
    deadline=wiring.deadline(settings),
    tags=["tideline", "spark", "check"],
):
    TidelineJobOperator(
        task_id="coverage",
        job="coverage",
        pool=wiring.COVERAGE_POOL,
        outlets=[wiring.COVERAGE],
    )
