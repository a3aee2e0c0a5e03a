"""Garbage collection's work in pieces for Spark's tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa

from spark.gc.frames import LISTED
from spark.gc.tasks import SEGMENT_NAME, SPLIT_NAME, WAL_NAME, Collector, Sweep, chunks
from tideline.control_plane.jobs import connect_jobs
from tideline.control_plane.tiering_model import Bucket
from tideline.domain.ids import TopicIdPartition, topic_id_from_base64
from tideline.object_store.client import ObjectStoreClient
from tideline.object_store.inventory import partition_prefix
from tideline.settings import JobsSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark.common.entry import Job
    from spark.coverage.tasks import ListedPartition

APPLICATION = "tideline-gc"
WAL, OBJECT = "wal", "object"
SWEPT = "listed bigint, unknown bigint, deleted bigint"
_SWEPT = pa.schema([(name, pa.int64()) for name in ("listed", "unknown", "deleted")])
_LISTED = pa.schema(
    [
        ("object_key", pa.string()),
        ("topic_id", pa.binary()),
        ("partition", pa.int32()),
        ("segment_id", pa.binary()),
    ]
)
WAL_SHARDS = tuple(f"wal/{digit}" for digit in "0123456789abcdef")
"""Keys of WAL objects are random: their first digit cuts a listing into like parts."""


@dataclass(frozen=True, slots=True)
class OpenCollector:
    """Picklable: opens a task's connections where the task runs."""

    settings: JobsSettings

    @contextmanager
    def __call__(self) -> Iterator[Collector]:
        settings = self.settings
        with connect_jobs(settings, application_name=APPLICATION) as plane:
            yield Collector(
                ObjectStoreClient(settings),
                plane,
                settings.s3_bucket,
                settings.s3_tiered_bucket,
                settings.gc_grace_ms,
            )


def delete_marked(job: Job, kind: str, marked: Sequence[tuple[Bucket, str]]) -> int:
    """Delete and forget objects that Postgres has marked; how many. ``kind``: WAL or OBJECT."""
    opened = OpenCollector(job.settings)

    def delete(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with opened() as collector:
            for batch in batches:
                gone = 0
                by_bucket: dict[str, list[str]] = {}
                for row in batch.to_pylist():
                    by_bucket.setdefault(row["bucket"], []).append(row["object_key"])
                for bucket, keys in by_bucket.items():
                    gone += (
                        collector.delete_files(keys)
                        if kind == WAL
                        else collector.delete_objects(Bucket(bucket), keys)
                    )
                yield swept_row(Sweep(deleted=gone))

    rows = [(bucket.value, key) for bucket, key in marked]
    frame = job.spark.createDataFrame(rows, "bucket string, object_key string")
    tasks = max(1, min(job.parallelism, -(-len(rows) // 1_000)))
    # coalesce keeps neighbours together: the objects of one segment, its .log first.
    return added(frame.coalesce(tasks).mapInArrow(delete, SWEPT)).deleted


def sweep_diskless(job: Job, split_prefixes: Sequence[str], dry_run: bool) -> Sweep:
    """List WAL objects and split files; mark or delete those that nothing refers to."""
    opened = OpenCollector(job.settings)

    def sweep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with opened() as collector:
            for batch in batches:
                for prefix in batch["prefix"].to_pylist():
                    name = WAL_NAME if prefix.startswith("wal/") else SPLIT_NAME
                    yield swept_row(collector.list_and_sweep(prefix, name, dry_run))

    shards = [(prefix,) for prefix in (*WAL_SHARDS, *split_prefixes)]
    frame = job.spark.createDataFrame(shards, "prefix string").repartition(job.parallelism)
    return added(frame.mapInArrow(sweep, SWEPT))


def listed_segments(job: Job, partitions: Sequence[ListedPartition]) -> DataFrame:
    """The segment objects of ``partitions`` as the bucket has them now, kept as they were."""
    settings = job.settings
    bucket, root = settings.s3_tiered_bucket, settings.s3_tiered_prefix

    def listing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = ObjectStoreClient(settings)
        for batch in batches:
            for row in batch.to_pylist():
                log = TopicIdPartition(UUID(bytes=row["topic_id"]), row["partition"])
                prefix = partition_prefix(root, row["topic"], log)
                for entries in chunks(store.list_objects(bucket, prefix)):
                    named = [(e.key, SEGMENT_NAME.search(e.key)) for e in entries]
                    found = [
                        {
                            "object_key": key,
                            "topic_id": row["topic_id"],
                            "partition": row["partition"],
                            "segment_id": topic_id_from_base64(name["segment"]).bytes,
                        }
                        for key, name in named
                        if name is not None
                    ]
                    yield pa.RecordBatch.from_pylist(found, schema=_LISTED)

    rows = [(p.topic, p.topic_id.bytes, p.partition) for p in partitions]
    wanted = job.spark.createDataFrame(rows, "topic string, topic_id binary, partition int")
    tasks = max(1, min(job.parallelism * 4, len(rows)))
    # Listed once: a listing made anew after the metadata was read would call newcomers orphans.
    return wanted.repartition(tasks).mapInArrow(listing, LISTED).localCheckpoint()


def sweep_tiered(job: Job, candidates: DataFrame, dry_run: bool) -> Sweep:
    """Mark or delete listed objects of the tiered bucket that no broker knows; Postgres answers
    for merged segments."""
    opened = OpenCollector(job.settings)

    def sweep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with opened() as collector:
            for batch in batches:
                keys = batch["object_key"].to_pylist()
                yield swept_row(collector.sweep(Bucket.TIERED, keys, dry_run))

    return added(candidates.select("object_key").mapInArrow(sweep, SWEPT))


def swept_row(sweep: Sweep) -> pa.RecordBatch:
    """A row of :data:`SWEPT`."""
    row = {"listed": sweep.listed, "unknown": sweep.unknown, "deleted": sweep.deleted}
    return pa.RecordBatch.from_pylist([row], schema=_SWEPT)


def added(frame: DataFrame) -> Sweep:
    """The sum of all rows."""
    total = Sweep()
    for row in frame.collect():
        total += Sweep(row.listed, row.unknown, row.deleted)
    return total


def in_rounds(
    claim: Callable[[], list[tuple[Bucket, str]]],
    delete: Callable[[list[tuple[Bucket, str]]], int],
) -> int:
    """Claim and delete until nothing is claimed any more, or a round makes no progress."""
    total = 0
    while marked := claim():
        gone = delete(marked)
        total += gone
        if gone == 0:
            break
    return total
