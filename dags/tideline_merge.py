"""The second half of the tiering pipeline: recorded runs become tiered segments."""

from __future__ import annotations

from airflow.sdk import DAG

from tideline.airflow import job_tasks, watch, wiring

DOC = """
Makes a tiered segment of what `tideline_split` has recorded, for each partition that has enough of
it or has waited long enough. It does not wait for files that cannot be split: the other partitions'
are merged. May be killed at any step and run again. Starts when the triggerer, which looks every
`TIDELINE_TIERING_MERGER_INTERVAL_MS`, finds enough for a segment, and once an hour
(`TIDELINE_AIRFLOW_TIERING_STARTS`).

**A partition does not move on?** `tideline tiering status TOPIC` shows what it waits for, or why it
is parked. **The task failed?** Its last line names the store that is away, or the partition; it is
tried again by itself. Asset: `tideline_merged_segments`, whose events have the run of the job and
its counts as `extra`.
"""

settings = wiring.settings()
timeout_ms = settings.airflow_merge_timeout_ms

with DAG(
    "tideline_merge",
    description="Makes tiered segments of what split has recorded",
    doc_md=DOC,
    schedule=watch.start_of("merge", settings, settings.tiering_merger_interval_ms),
    tags=["tideline", "spark", "tiering"],
    **wiring.of_job(settings, timeout_ms, wiring.SCHEDULED, wiring.BY_ASSETS),
):
    job_tasks.job(
        "merge", pool=wiring.MERGE_POOL, timeout_ms=timeout_ms, outlets=[wiring.MERGED_SEGMENTS]
    )
