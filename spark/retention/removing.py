"""Retention's orders as a frame: some partitions at a time, by as many tasks as Spark has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa

from spark.retention.remove_records import RemovalOrder, Removed, remove
from tideline.control_plane.jobs import connect_jobs
from tideline.kafka.admin import RecordDeletion
from tideline.kafka.client import KafkaCluster
from tideline.settings import JobsSettings

if TYPE_CHECKING:
    from spark.common.entry import Job

AT_ONCE = 200
"""Partitions of one round of requests."""
ORDERS = """log_id bigint, topic string, topic_id binary, partition int, boundary bigint,
prefix_start bigint, prefix_moved boolean, prefix_before bigint, suffix_before bigint"""
RESULTS = """log_id bigint, prefix_start bigint, suffix_start bigint, problem string,
retriable boolean"""
_RESULTS = pa.schema(
    [
        ("log_id", pa.int64()),
        ("prefix_start", pa.int64()),
        ("suffix_start", pa.int64()),
        ("problem", pa.string()),
        ("retriable", pa.bool_()),
    ]
)


def carry_out(job: Job, orders: Sequence[RemovalOrder]) -> list[Removed]:
    """Remove what ``orders`` say. Raises, through Spark, what an unreachable store raises."""
    rows = [tuple({**asdict(o), "topic_id": o.topic_id.bytes}.values()) for o in orders]
    tasks = max(1, min(job.parallelism, -(-len(rows) // AT_ONCE)))
    frame = job.spark.createDataFrame(rows, ORDERS).repartition(tasks)
    settings = job.settings

    def act(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in range(0, batch.num_rows, AT_ONCE):
                wanted = [
                    RemovalOrder(**{**row, "topic_id": UUID(bytes=row["topic_id"])})
                    for row in batch.slice(start, AT_ONCE).to_pylist()
                ]
                done = asyncio.run(_remove(settings, wanted))
                yield pa.RecordBatch.from_pylist([asdict(r) for r in done], schema=_RESULTS)

    return [Removed(**row.asDict()) for row in frame.mapInArrow(act, RESULTS).collect()]


async def _remove(settings: JobsSettings, orders: Sequence[RemovalOrder]) -> list[Removed]:
    async with KafkaCluster(
        settings.kafka_bootstrap,
        client_id="tideline-retention",
        timeout_ms=settings.kafka_request_timeout_ms,
    ) as cluster:
        deletion = RecordDeletion(cluster, settings.kafka_request_timeout_ms)
        with connect_jobs(settings, application_name="tideline-retention") as plane:
            return await remove(orders, deletion, plane)
