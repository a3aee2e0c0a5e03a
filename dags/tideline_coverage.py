"""Coverage: is the prefix of every migrated partition whole?"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException
from airflow.timetables.trigger import CronTriggerTimetable

from tideline.airflow import wiring
from tideline.airflow.jobs import TidelineJobOperator
from tideline.airflow.results import doubts

DOC = """
Proves for every migrated partition that `[log start, B0)` is in remote storage without a gap, from
the brokers' metadata and the objects themselves, and sets or clears `tieringComplete`. Writes a
dated report into `reports/coverage/` of the bucket.

**A partition is not covered?** The report and `tideline coverage TOPIC` say which offsets, since
when, and what to do. **The task failed?** Its last line names the store that is away; it is tried
again by itself. Assets: `tideline_coverage` when a run has ended, `tideline_coverage_complete`
only when it found every partition whole; otherwise `complete` is skipped and says why.
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
    coverage = TidelineJobOperator(
        task_id="coverage",
        job="coverage",
        pool=wiring.COVERAGE_POOL,
        outlets=[wiring.COVERAGE],
    )

    @task(outlets=[wiring.COVERAGE_COMPLETE])
    def complete() -> None:
        """Only when nothing is in doubt."""
        context = get_current_context()
        found: dict[str, Any] = context["ti"].xcom_pull(task_ids="coverage") or {}
        if found_wrong := doubts(found):
            raise AirflowSkipException(f"not complete: {found_wrong}; no planned wave starts")
        events = context["outlet_events"]
        events[wiring.COVERAGE_COMPLETE].extra = {
            name: found.get(name) for name in ("run_id", "report", "covered")
        }

    coverage >> complete()
