"""What each partition's leader says of its log: its start, and the lineage of leader epochs.

Tasks ask for many partitions at once, a bounded number at a time. A broker that does not answer
fails the job; a partition that has no leader, or is another topic by now, is a row with a problem.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from spark.coverage.tasks import ListedPartition
from tideline.domain.remote_log import EpochStart
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import DEBUG_CONSUMER, KafkaObserver, OffsetSpec, PartitionLayout
from tideline.settings import KafkaSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_ONCE = 32
"""Partitions that one task asks for side by side."""
SCHEMA = """log_id bigint, log_start bigint, epochs array<int>, epoch_starts array<bigint>,
unrolled string, problem string"""
ARROW = pa.schema(
    [
        pa.field("log_id", pa.int64(), nullable=False),
        pa.field("log_start", pa.int64(), nullable=True),
        pa.field("epochs", pa.list_(pa.int32()), nullable=True),
        pa.field("epoch_starts", pa.list_(pa.int64()), nullable=True),
        pa.field("unrolled", pa.string(), nullable=True),
        pa.field("problem", pa.string(), nullable=True),
    ]
)


@dataclass(frozen=True, slots=True)
class WantedLog:
    """A partition to ask about."""

    listed: ListedPartition
    boundary: int
    ask_replicas: bool = False
    """Whether every replica is asked if it has rolled to B0."""


@dataclass(frozen=True, slots=True)
class ObservedLog:
    """One partition's log in Kafka, or why it could not be told."""

    log_id: int
    log_start: int = -1
    lineage: tuple[EpochStart, ...] = ()
    unrolled: str | None = None
    """Which replicas have not rolled to B0, or did not answer."""
    problem: str | None = None


async def observe(observer: KafkaObserver, wanted: WantedLog) -> ObservedLog:
    """The log start, then the lineage down to it, then the replicas.

    Raises :class:`tideline.kafka.errors.KafkaUnavailable`.
    """
    log_id, topic, partition = wanted.listed.log_id, wanted.listed.topic, wanted.listed.partition
    try:
        found = await observer.topic(topic)
        if found is None or found.topic_id != wanted.listed.topic_id:
            return ObservedLog(log_id, problem="Kafka has no such topic any more")
        layout = found.partitions.get(partition)
        if layout is None or layout.leader < 0:
            return ObservedLog(log_id, problem="the partition has no leader")
        start = await observer.offset(
            topic, partition, OffsetSpec.EARLIEST, node=layout.leader, replica_id=DEBUG_CONSUMER
        )
        if start.offset >= wanted.boundary:
            return ObservedLog(log_id, start.offset)
        lineage = await observer.lineage(topic, layout, start.offset)
        unrolled = await _unrolled(observer, wanted, layout) if wanted.ask_replicas else None
    except KafkaError as error:
        return ObservedLog(log_id, problem=str(error))
    return ObservedLog(log_id, start.offset, lineage, unrolled)


async def _unrolled(
    observer: KafkaObserver, wanted: WantedLog, layout: PartitionLayout
) -> str | None:
    starts = await observer.on_replicas(wanted.listed.topic, layout, OffsetSpec.EARLIEST_LOCAL)
    behind = [
        f"replica {node} has not rolled to B0: it still has offset {start}"
        if isinstance(start, int)
        else f"replica {node} did not answer: {start}"
        for node, start in sorted(starts.items())
        if isinstance(start, str) or start < wanted.boundary
    ]
    return "; ".join(behind) or None


def observed_logs(
    spark: SparkSession,
    settings: KafkaSettings,
    partitions: Sequence[tuple[ListedPartition, int]],
    tasks: int,
    ask_replicas: Container[int] = (),
) -> list[ObservedLog]:
    """The partitions (each with its B0) as their leaders see them, asked from the executors.

    ``ask_replicas``: log ids of which every replica is asked if it has rolled to B0. What sets
    tieringComplete must know; what keeps it need not, because a replica with a stale high
    watermark serves nothing past it.

    A list and no frame: what is observed first must stay what it was, and a frame that lost a
    block would be made anew later. Raises as :func:`observe`, through Spark.
    """
    if not partitions:
        return []
    frame = spark.createDataFrame(
        [
            (p.log_id, p.topic, p.topic_id.bytes, p.partition, b0, p.log_id in ask_replicas)
            for p, b0 in partitions
        ],
        "log_id bigint, topic string, topic_id binary, partition int, boundary bigint, "
        "ask_replicas boolean",
    ).repartition(max(1, min(tasks, len(partitions))))
    bootstrap, timeout_ms = settings.kafka_bootstrap, settings.kafka_request_timeout_ms

    async def ask(logs: list[WantedLog]) -> list[ObservedLog]:
        places = asyncio.Semaphore(AT_ONCE)

        async def one(observer: KafkaObserver, log: WantedLog) -> ObservedLog:
            async with places:
                return await observe(observer, log)

        async with KafkaCluster(
            bootstrap, client_id="tideline-jobs", timeout_ms=timeout_ms
        ) as cluster:
            observer = KafkaObserver(cluster, timeout_ms)
            return list(await asyncio.gather(*(one(observer, log) for log in logs)))

    def ask_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [
                {
                    "log_id": found.log_id,
                    "log_start": found.log_start,
                    "epochs": [e.epoch for e in found.lineage],
                    "epoch_starts": [e.start_offset for e in found.lineage],
                    "unrolled": found.unrolled,
                    "problem": found.problem,
                }
                for found in asyncio.run(ask([_wanted(row) for row in batch.to_pylist()]))
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=ARROW)

    return [
        ObservedLog(
            row["log_id"],
            row["log_start"],
            tuple(map(EpochStart, row["epochs"], row["epoch_starts"])),
            row["unrolled"],
            row["problem"],
        )
        for row in frame.mapInArrow(ask_all, SCHEMA).collect()
    ]


def _wanted(row: Mapping[str, Any]) -> WantedLog:
    listed = ListedPartition(
        row["log_id"], row["topic"], UUID(bytes=row["topic_id"]), row["partition"]
    )
    return WantedLog(listed, row["boundary"], row["ask_replicas"])
