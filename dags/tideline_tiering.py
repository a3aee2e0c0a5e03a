"""The tiering pipeline: aged batches of the suffix become tiered segments."""

from __future__ import annotations

import time
from datetime import timedelta

from airflow.sdk import DAG, Variable, get_current_context, task
from airflow.timetables.trigger import DeltaTriggerTimetable

from tideline.airflow import wiring
from tideline.airflow.jobs import TidelineJobOperator

DOC = """
`split` cuts aged WAL files into one file per partition; `merge` makes tiered segments of them.
Both may be killed at any step and run again. `split` runs every
`TIDELINE_TIERING_SPLITTER_INTERVAL_MS`; `merge` after it, once
`TIDELINE_TIERING_MERGER_INTERVAL_MS` has passed since it last ended well, and in every run that a
person starts.

**A partition does not move on?** `tideline tiering status TOPIC` shows what it waits for, or why
it is parked. **The task failed?** Its last line names the store that is away; it is tried again by
itself. Asset: `tideline_merged_segments`.
"""

MERGED_AT = "tideline_merged_at"
"""Variable: when a merge last ended well, in seconds. An XCom would be a row of every run."""
settings = wiring.settings()

with DAG(
    "tideline_tiering",
    description="Turns aged batches of the suffix into tiered segments: split, then merge",
    doc_md=DOC,
    schedule=DeltaTriggerTimetable(timedelta(milliseconds=settings.tiering_splitter_interval_ms)),
    catchup=False,
    max_active_runs=1,
    default_args=wiring.default_args(settings),
    deadline=wiring.deadline(settings),
    tags=["tideline", "spark"],
):

    @task.short_circuit
    def merge_is_due() -> bool:
        """By the time of the last merge that ended well."""
        by_hand = get_current_context()["dag_run"].run_type == "manual"
        waited_ms = (time.time() - float(Variable.get(MERGED_AT, default="0"))) * 1000
        return by_hand or waited_ms >= settings.tiering_merger_interval_ms

    @task
    def note_merge() -> None:
        """For the next run's question."""
        Variable.set(MERGED_AT, str(time.time()))

    split = TidelineJobOperator(task_id="split", job="split", pool=wiring.TIERING_POOL)
    merge = TidelineJobOperator(
        task_id="merge", job="merge", pool=wiring.TIERING_POOL, outlets=[wiring.MERGED_SEGMENTS]
    )
    split >> merge_is_due() >> merge >> note_merge()
