"""One query over topics as tables: how many records each partition has on either side of its B0.

``python -m spark.table --topic …``. An example of the format ``tideline``, and a quick look.
"""

from __future__ import annotations

from typing import Any

from spark.common.entry import Job, Outcome, TopicsOption
from spark.table.plan import look
from spark.table.source import NAME, register
from tideline.errors import UsageError

QUERY = (
    "SELECT partition, b0, count_if(offset < b0) AS below_b0, count_if(offset >= b0) AS from_b0, "
    "min(offset) AS first, max(offset) AS last "
    "FROM topic JOIN boundaries USING (partition) GROUP BY partition, b0 ORDER BY partition"
)


def count(job: Job, topic: TopicsOption = None) -> Outcome:
    """Count the records of topics by partition and side of B0, from object storage."""
    if not topic:
        raise UsageError("name at least one --topic")
    register(job.spark, job.settings)
    details: dict[str, Any] = {"query": QUERY, "topics": {}}
    for name in topic:
        plan = look(job.settings, name, pinned=False)
        boundaries = [(partition, row.boundary) for partition, row in plan.rows.items()]
        job.spark.createDataFrame(boundaries, "partition int, b0 long").createOrReplaceTempView(
            "boundaries"
        )
        table = job.spark.read.format(NAME).option("topic", name).load()
        table.createOrReplaceTempView("topic")
        rows = [row.asDict() for row in job.spark.sql(QUERY).collect()]
        details["topics"][name] = rows
        records = sum(row["below_b0"] + row["from_b0"] for row in rows)
        job.progress(f"{name}: {records} records in {len(rows)} partitions")
    return Outcome(details)
