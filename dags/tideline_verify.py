"""Verification: is what object storage holds of hybrid topics what gateways serve?"""

from __future__ import annotations

from airflow.sdk import DAG
from airflow.timetables.trigger import CronTriggerTimetable

from tideline.airflow import wiring
from tideline.airflow.jobs import TidelineJobOperator

DOC = """
Reads a sample of every hybrid topic twice, from object storage as the table reads it and through
the gateways with a stock consumer, and compares every record: count, continuity, CRC, order,
timestamps and bytes. Offsets on either side of each B0 are always among them. Changes nothing.

**The task failed?** Its last line says why: a store is away, then it is tried again by itself; or
there is a difference, named by topic, partition and offset. `tideline status TOPIC` shows the
verdict, `tideline verify TOPIC` looks at the whole topic; docs/table.md says what to do.
"""

settings = wiring.settings()

with DAG(
    "tideline_verify",
    description="Compares hybrid topics in object storage with what gateways serve",
    doc_md=DOC,
    schedule=CronTriggerTimetable(settings.airflow_verify_schedule, timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args=wiring.default_args(settings),
    deadline=wiring.deadline(settings),
    tags=["tideline", "spark", "check"],
):
    TidelineJobOperator(
        task_id="verify",
        job="verify",
        arguments=("--sample", str(settings.airflow_verify_sample)),
        pool=wiring.VERIFY_POOL,
    )
