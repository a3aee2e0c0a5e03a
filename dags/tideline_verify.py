"""Verification: is what object storage holds of hybrid topics what gateways serve?"""

from __future__ import annotations

from airflow.sdk import DAG
from airflow.timetables.trigger import CronTriggerTimetable

from tideline.airflow import job_tasks, wiring

DOC = """
Reads a sample of every hybrid topic twice, from object storage as the table reads it and through
the gateways with a stock consumer, and compares every record: count, continuity, CRC, order,
timestamps and bytes. Offsets on either side of each B0 are always among them, and ranges where the
last run found a difference. Changes nothing.

**The task failed?** Its last line says why: a store is away, then it is tried again by itself; or
there is a difference, named by topic, partition and offset, and it is not. `tideline status TOPIC`
shows the verdict, `tideline verify TOPIC` looks at the whole topic; docs/table.md says what to do.
"""

settings = wiring.settings()
timeout_ms = settings.airflow_verify_timeout_ms

with DAG(
    "tideline_verify",
    description="Compares hybrid topics in object storage with what gateways serve",
    doc_md=DOC,
    schedule=CronTriggerTimetable(settings.airflow_verify_schedule, timezone="UTC"),
    tags=["tideline", "spark", "check"],
    **wiring.of_job(settings, timeout_ms, wiring.SCHEDULED),
):
    job_tasks.job(
        "verify",
        pool=wiring.VERIFY_POOL,
        timeout_ms=timeout_ms,
        arguments=("--sample", str(settings.airflow_verify_sample)),
    )
