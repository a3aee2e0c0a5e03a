"""The first half of the tiering pipeline: what of aged WAL files is merged is recorded."""

from __future__ import annotations

from airflow.sdk import DAG

from tideline.airflow import job_tasks, watch, wiring

DOC = """
Records the runs of each partition's offsets in aged WAL files, of which `tideline_merge` makes
segments; nothing is read or copied. May be killed at any step and run again. Starts when the
triggerer, which looks every `TIDELINE_TIERING_SPLITTER_INTERVAL_MS`, finds something to split, and
once an hour (`TIDELINE_AIRFLOW_TIERING_STARTS`).

**A partition does not move on?** `tideline tiering status TOPIC` shows what it waits for, or why it
is parked. **The task failed?** Its last line names the store that is away, or the file that could
not be split; it is tried again by itself, and what could be split is split and merged meanwhile.
"""

settings = wiring.settings()
timeout_ms = settings.airflow_split_timeout_ms

with DAG(
    "tideline_split",
    description="Records what of aged WAL files is merged, by partition",
    doc_md=DOC,
    schedule=watch.start_of("split", settings, settings.tiering_splitter_interval_ms),
    tags=["tideline", "spark", "tiering"],
    **wiring.of_job(settings, timeout_ms, wiring.SCHEDULED, wiring.BY_ASSETS),
):
    job_tasks.job("split", pool=wiring.SPLIT_POOL, timeout_ms=timeout_ms)
