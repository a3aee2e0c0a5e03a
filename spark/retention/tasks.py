"""What executors do for retention: read suffixes, and carry out what is to be removed.

Kafka's prefix goes first, then the suffix. The order keeps the log one log: the suffix loses
nothing before Kafka has said that its log starts at B0 or later. Killed anywhere, the next run
sees what was done and goes on; a start never moves back, so nothing is done twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from spark.common.retry import retry
from spark.common.rows import chunks, from_frame, map_rows, to_frame
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.tiering_model import CutRequest, SuffixUnit, WalCut
from tideline.domain.ids import TopicPartition
from tideline.domain.prefix import past_gap
from tideline.errors import RefusedError
from tideline.kafka.admin import Deletion, NotDeleted, RecordDeletion
from tideline.kafka.client import KafkaCluster
from tideline.settings import JobsSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark.common.entry import Job

APPLICATION = "tideline-retention"
LOGS_AT_ONCE = 50
"""Logs of one call: some of them may have 100,000 batches to add up."""
REMOVALS_AT_ONCE = 200
"""Partitions of one round of requests."""


@dataclass(frozen=True, slots=True)
class WantedSuffix:
    log_id: int
    retention_bytes: int
    """-1: size is not limited, so that nobody needs the bytes of the batches."""


def suffix_units(logs: DataFrame, settings: JobsSettings) -> DataFrame:
    """Merged segments (region 1) and, as one row, the WAL batches (region 2) of ``logs``; the
    latter only where size is limited. Rows of :class:`SuffixUnit`."""

    def read(wanted: Iterator[WantedSuffix]) -> Iterator[SuffixUnit]:
        with connect_jobs(settings, application_name=APPLICATION) as plane:
            for some in chunks(wanted, LOGS_AT_ONCE):
                ids = [log.log_id for log in some]
                sized = [log.retention_bytes >= 0 for log in some]
                yield from retry(partial(plane.retention_suffix, ids, sized))

    wanted = logs.where("boundary >= 0").select("log_id", "retention_bytes")
    return map_rows(wanted, WantedSuffix, SuffixUnit, read)


def wal_cuts(reached: DataFrame, settings: JobsSettings) -> DataFrame:
    """Where retention cuts the WAL region of logs whose segments all go: ``log_id``,
    ``cut_before`` (exclusive), ``cut_by_time``, ``cut_by_size``, ``cut_bytes``."""

    def cut(requests: Iterator[CutRequest]) -> Iterator[WalCut]:
        with connect_jobs(settings, application_name=APPLICATION) as plane:
            for some in chunks(requests, LOGS_AT_ONCE):
                yield from retry(partial(plane.retention_wal_cut, some))

    requests = reached.selectExpr(
        "log_id",
        "greatest(before_offset, boundary, suffix_start) AS from_offset",
        "cutoff AS cutoff_ms",
        "excess AS excess_bytes",
    )
    return map_rows(requests, CutRequest, WalCut, cut).selectExpr(
        "log_id",
        "before_offset AS cut_before",
        "by_time AS cut_by_time",
        "by_size AS cut_by_size",
        "removed_bytes AS cut_bytes",
    )


@dataclass(frozen=True, slots=True)
class RemovalOrder:
    """What goes of one partition. Offsets are exclusive ends; ``None``: nothing there."""

    log_id: int
    topic: str
    topic_id: UUID
    partition: int
    boundary: int
    prefix_end: int
    """Of the prefix, exclusive: B0, or where an accepted log gap begins."""
    prefix_start: int
    """Kafka's log start as it was observed; B0 where it lies in an accepted log gap."""
    prefix_moved: bool
    """Kafka has moved it by itself (its own expiry, DeleteRecords), and Postgres does not know."""
    prefix_before: int | None
    suffix_before: int | None


@dataclass(frozen=True, slots=True)
class Removed:
    """What became of an order. ``None``: that start was not touched."""

    log_id: int
    prefix_start: int | None = None
    suffix_start: int | None = None
    problem: str | None = None
    retriable: bool = False
    """The next run is expected to succeed where this one did not."""


def carry_out(job: Job, orders: Sequence[RemovalOrder]) -> list[Removed]:
    """Remove what ``orders`` say. Raises, through Spark, what an unreachable store raises."""
    settings = job.settings

    def act(wanted: Iterator[RemovalOrder]) -> Iterator[Removed]:
        for some in chunks(wanted, REMOVALS_AT_ONCE):
            yield from asyncio.run(_connect_and_remove(settings, some))

    tasks = min(job.parallelism, -(-len(orders) // REMOVALS_AT_ONCE))
    frame = to_frame(job.spark, RemovalOrder, orders, tasks)
    return from_frame(Removed, map_rows(frame, RemovalOrder, Removed, act))


async def _connect_and_remove(
    settings: JobsSettings, orders: Sequence[RemovalOrder]
) -> list[Removed]:
    async with KafkaCluster.of(settings, APPLICATION) as cluster:
        deletion = RecordDeletion(cluster, settings.kafka_request_timeout_ms)
        with connect_jobs(settings, application_name=APPLICATION) as plane:
            return await remove(orders, deletion, plane)


async def remove(
    orders: Sequence[RemovalOrder], deletion: RecordDeletion, plane: JobsControlPlane
) -> list[Removed]:
    """Carry out ``orders``. A partition that is refused does not hold up the others.

    Raises what an unreachable Postgres or cluster raises.
    """
    asked = [
        Deletion(o.topic, o.topic_id, o.partition, o.prefix_before)
        for o in orders
        if o.prefix_before is not None
    ]
    answers = await deletion.delete(asked) if asked else {}
    return [_finish(o, answers.get(TopicPartition(o.topic, o.partition)), plane) for o in orders]


def _finish(
    order: RemovalOrder, answer: int | NotDeleted | None, plane: JobsControlPlane
) -> Removed:
    if isinstance(answer, NotDeleted):
        return Removed(order.log_id, problem=answer.reason, retriable=not answer.gone)
    log_start = order.prefix_start
    if answer is not None:
        log_start = past_gap(answer, order.prefix_end, order.boundary)
    suffix_start = None
    try:
        if order.boundary >= 0 and (answer is not None or order.prefix_moved):
            retry(lambda: plane.advance_prefix_start(order.topic_id, order.partition, log_start))
        if (before := order.suffix_before) is not None:
            if log_start < order.boundary:
                return Removed(
                    order.log_id,
                    answer,
                    problem=f"Kafka's log starts at {log_start}, below B0 {order.boundary}",
                    retriable=True,
                )
            suffix_start = retry(
                lambda: plane.delete_records(order.topic_id, order.partition, before)
            )
    except RefusedError as error:
        return Removed(order.log_id, answer, problem=str(error))
    return Removed(order.log_id, answer, suffix_start)
