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

from spark.common.rows import from_frame, map_rows, to_frame
from tideline.domain.remote_log import EpochStart
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import DEBUG_CONSUMER, KafkaObserver, OffsetSpec, PartitionLayout
from tideline.kafka.security import KafkaSecurity
from tideline.settings import KafkaSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_ONCE = 32
"""Partitions that one task asks for side by side."""


@dataclass(frozen=True, slots=True)
class WantedLog:
    log_id: int
    topic: str
    topic_id: UUID
    partition: int
    boundary: int
    """End of the prefix, see ``PartitionRow.prefix_end``. Asked for the lineage only if its log
    starts below."""
    ask_replicas: bool = False
    """Whether every replica is asked if it has rolled there. What sets tieringComplete must know;
    what keeps it need not, because a replica with a stale high watermark serves nothing past it."""


@dataclass(frozen=True, slots=True)
class ObservedLog:
    """One partition's log in Kafka, or why it could not be observed."""

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
    log_id, topic, partition = wanted.log_id, wanted.topic, wanted.partition
    try:
        found = await observer.topic(topic)
        if found is None or found.topic_id != wanted.topic_id:
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
    starts = await observer.on_replicas(wanted.topic, layout, OffsetSpec.EARLIEST_LOCAL)
    behind = [
        f"replica {node} has not rolled to B0: it still has offset {start}"
        if isinstance(start, int)
        else f"replica {node} did not answer: {start}"
        for node, start in sorted(starts.items())
        if isinstance(start, str) or start < wanted.boundary
    ]
    return "; ".join(behind) or None


def observed_logs(
    spark: SparkSession, settings: KafkaSettings, wanted: Sequence[WantedLog], tasks: int
) -> list[ObservedLog]:
    """The partitions as their leaders see them, asked from the executors.

    A list and no frame: what is observed first must stay what it was, and a frame that lost a
    block would be made anew later. Raises as :func:`observe`, through Spark.
    """
    if not wanted:
        return []
    bootstrap, timeout_ms = settings.kafka_bootstrap, settings.kafka_request_timeout_ms
    security = KafkaSecurity.of(settings)

    async def ask(logs: Sequence[WantedLog]) -> list[ObservedLog]:
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(observer: KafkaObserver, log: WantedLog) -> ObservedLog:
            async with slots:
                return await observe(observer, log)

        async with KafkaCluster(
            bootstrap, client_id="tideline-jobs", timeout_ms=timeout_ms, security=security
        ) as cluster:
            observer = KafkaObserver(cluster, timeout_ms)
            return list(await asyncio.gather(*(one(observer, log) for log in logs)))

    def work(logs: Iterator[WantedLog]) -> list[ObservedLog]:
        return asyncio.run(ask(list(logs)))

    frame = to_frame(spark, WantedLog, wanted, tasks)
    return from_frame(ObservedLog, map_rows(frame, WantedLog, ObservedLog, work))
