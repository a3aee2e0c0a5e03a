"""What each partition's leader says of its log: its start, and the lineage of leader epochs.

Tasks ask for many partitions at once, a bounded number at a time. A broker that does not answer
fails the job; a partition that has no leader, or is another topic by now, is a row with a problem.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa

from spark.sources.inventory import ListedPartition
from tideline.domain.remote_log import EpochStart
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.layout import Spot
from tideline.kafka.observer import DEBUG_CONSUMER, KafkaObserver
from tideline.settings import KafkaSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_ONCE = 32
"""Partitions that one task asks for side by side."""
SCHEMA = """log_id bigint, log_start bigint, epochs array<int>, epoch_starts array<bigint>,
problem string"""
ARROW = pa.schema(
    [
        pa.field("log_id", pa.int64(), nullable=False),
        pa.field("log_start", pa.int64(), nullable=True),
        pa.field("epochs", pa.list_(pa.int32()), nullable=True),
        pa.field("epoch_starts", pa.list_(pa.int64()), nullable=True),
        pa.field("problem", pa.string(), nullable=True),
    ]
)


@dataclass(frozen=True, slots=True)
class ObservedLog:
    """One partition's log in Kafka, or why it could not be told."""

    log_id: int
    log_start: int = -1
    lineage: tuple[EpochStart, ...] = ()
    problem: str | None = None


async def observe(
    observer: KafkaObserver, wanted: ListedPartition, boundary: int | None = None
) -> ObservedLog:
    """The log start, then the lineage down to it; ``boundary``: a lineage is needed only below.

    Raises :class:`tideline.kafka.errors.KafkaUnavailable`.
    """
    try:
        found = await observer.topic(wanted.topic)
        if found is None or found.topic_id != wanted.topic_id:
            return ObservedLog(wanted.log_id, problem="Kafka has no such topic any more")
        layout = found.partitions.get(wanted.partition)
        if layout is None or layout.leader < 0:
            return ObservedLog(wanted.log_id, problem="the partition has no leader")
        start = await observer.offset(
            wanted.topic,
            wanted.partition,
            Spot.EARLIEST,
            node=layout.leader,
            replica_id=DEBUG_CONSUMER,
        )
        if boundary is not None and start.offset >= boundary:
            return ObservedLog(wanted.log_id, start.offset)
        lineage = await observer.lineage(wanted.topic, layout, start.offset)
    except KafkaError as error:
        return ObservedLog(wanted.log_id, problem=str(error))
    return ObservedLog(wanted.log_id, start.offset, lineage)


def observed_logs(
    spark: SparkSession,
    settings: KafkaSettings,
    partitions: Sequence[tuple[ListedPartition, int]],
    tasks: int,
) -> list[ObservedLog]:
    """The partitions (each with its B0) as their leaders see them, asked from the executors.

    A list and no frame: what is observed first must stay what it was, and a frame that lost a
    block would be made anew later. Raises as :func:`observe`, through Spark.
    """
    if not partitions:
        return []
    wanted = spark.createDataFrame(
        [(p.log_id, p.topic, p.topic_id.bytes, p.partition, b0) for p, b0 in partitions],
        "log_id bigint, topic string, topic_id binary, partition int, boundary bigint",
    ).repartition(max(1, min(tasks, len(partitions))))
    bootstrap, timeout_ms = settings.kafka_bootstrap, settings.kafka_request_timeout_ms

    async def ask(rows: list[dict[str, object]]) -> list[ObservedLog]:
        places = asyncio.Semaphore(AT_ONCE)

        async def one(observer: KafkaObserver, row: dict[str, object]) -> ObservedLog:
            partition = ListedPartition(
                int(str(row["log_id"])),
                str(row["topic"]),
                UUID(bytes=bytes(row["topic_id"])),  # type: ignore[call-overload]
                int(str(row["partition"])),
            )
            async with places:
                return await observe(observer, partition, int(str(row["boundary"])))

        async with KafkaCluster(
            bootstrap, client_id="tideline-jobs", timeout_ms=timeout_ms
        ) as cluster:
            observer = KafkaObserver(cluster, timeout_ms)
            return list(await asyncio.gather(*(one(observer, row) for row in rows)))

    def ask_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [
                {
                    "log_id": found.log_id,
                    "log_start": found.log_start,
                    "epochs": [e.epoch for e in found.lineage],
                    "epoch_starts": [e.start_offset for e in found.lineage],
                    "problem": found.problem,
                }
                for found in asyncio.run(ask(batch.to_pylist()))
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=ARROW)

    return [
        ObservedLog(
            row["log_id"],
            row["log_start"],
            tuple(map(EpochStart, row["epochs"], row["epoch_starts"])),
            row["problem"],
        )
        for row in wanted.mapInArrow(ask_all, SCHEMA).collect()
    ]
