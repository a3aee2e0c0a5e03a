"""Merge as frames: partitions that have enough for a segment in, the segments made out.

One row is one partition, which one worker merges at a time: Postgres hands out its merge token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from spark.tiering.merge_partition import MergeOrder, MergeOutcome, merge_partition
from spark.tiering.services import OpenServices
from tideline.domain.remote_log import EpochStart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = (
    "topic string, topic_id string, partition int, log_id long, pending_bytes long, "
    "requested boolean, limit_bytes long, enough_bytes long, index_interval_bytes int, "
    "lineage array<struct<epoch: int, start_offset: long>>"
)
OUTCOMES = (
    "topic string, topic_id string, partition int, ended string, segment_id string, "
    "base_offset long, last_offset long, size_bytes long, batches long, records long, "
    "split_files long, elapsed_ms long, error string"
)


def orders_frame(session: SparkSession, orders: Iterable[MergeOrder], tasks: int) -> DataFrame:
    """Orders as a frame of at most ``tasks`` partitions."""
    rows = [asdict(order) | {"topic_id": str(order.topic_id)} for order in orders]
    return session.createDataFrame(rows, ORDERS).repartition(max(1, min(tasks, len(rows))))


def merge(
    orders: DataFrame,
    worker: UUID,
    open_services: OpenServices,
    *,
    claim_ms: int,
    root: Path | None = None,
) -> DataFrame:
    """Do the work. ``root``: where segments are built, on each executor; default: its temporary
    directory. Fails the job when a store stays away from a task."""
    return orders.mapInArrow(_merger(worker, open_services, claim_ms, root), OUTCOMES)


def outcomes(frame: DataFrame) -> Iterator[MergeOutcome]:
    """The rows of :func:`merge`, here. Starts the work."""
    for row in frame.collect():
        yield MergeOutcome(**row.asDict())


def _merger(
    worker: UUID, open_services: OpenServices, claim_ms: int, root: Path | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with open_services() as services:
            for chunk in chunks:
                for row in chunk.to_pylist():
                    for made in merge_partition(
                        services, worker, _order(row), claim_ms=claim_ms, root=root
                    ):
                        yield pa.RecordBatch.from_pylist([asdict(made)], schema=_ARROW)

    return work


def _order(row: dict[str, Any]) -> MergeOrder:
    lineage = tuple(EpochStart(**entry) for entry in row["lineage"])
    return MergeOrder(**(row | {"topic_id": UUID(row["topic_id"]), "lineage": lineage}))


_ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("ended", pa.string()),
        ("segment_id", pa.string()),
        *((name, pa.int64()) for name in
          ("base_offset", "last_offset", "size_bytes", "batches", "records", "split_files",
           "elapsed_ms")),
        ("error", pa.string()),
    ]
)  # fmt: skip
