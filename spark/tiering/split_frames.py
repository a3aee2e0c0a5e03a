"""Split as frames: claimed WAL files in, what became of each out.

One row is one file; files are independent of each other, so any task may take any of them, and a
task that Spark runs twice finds its work done or its claim lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from spark.tiering.services import OpenServices, Services
from spark.tiering.split_file import SplitOutcome, split_file
from tideline.control_plane.tiering_model import ClaimedBatch, ClaimedFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_AT_ONCE = 4
"""Of one task, each with a connection of its own and at most two WAL objects in memory: small
files cost round trips, not work."""

_BATCH = (
    "topic string, topic_id string, partition int, log_id long, base_offset long, "
    "last_offset long, byte_offset long, byte_size int, log_append_time boolean, "
    "append_time long, max_timestamp long, boundary_epoch int"
)
CLAIMED = f"file_id long, object_key string, token long, batches array<struct<{_BATCH}>>"
OUTCOMES = (
    "file_id long, object_key string, ended string, batches long, split_files long, "
    "bytes_read long, bytes_written long, elapsed_ms long, error string"
)


def claimed_frame(session: SparkSession, files: Iterable[ClaimedFile], tasks: int) -> DataFrame:
    """Claimed files as a frame of at most ``tasks`` partitions."""
    rows = [_row(file) for file in files]
    return session.createDataFrame(rows, CLAIMED).repartition(max(1, min(tasks, len(rows))))


def split(claimed: DataFrame, worker: UUID, open_services: OpenServices) -> DataFrame:
    """Do the work. Fails the job when a store stays away from a task."""
    return claimed.mapInArrow(_splitter(worker, open_services), OUTCOMES)


def outcomes(frame: DataFrame) -> Iterator[SplitOutcome]:
    """The rows of :func:`split`, here. Starts the work."""
    for row in frame.collect():
        yield SplitOutcome(**row.asDict())


def _splitter(
    worker: UUID, open_services: OpenServices
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with ExitStack() as opened:
            idle: SimpleQueue[Services] = SimpleQueue()
            for _ in range(FILES_AT_ONCE):
                idle.put(opened.enter_context(open_services()))

            def one(row: dict[str, Any]) -> SplitOutcome:
                services = idle.get()
                try:
                    return split_file(services, worker, _file(row))
                finally:
                    idle.put(services)

            pool = opened.enter_context(ThreadPoolExecutor(FILES_AT_ONCE, "split"))
            for chunk in chunks:
                # File by file: what is done already is told even if a later one fails the task.
                for done in pool.map(one, chunk.to_pylist()):
                    yield pa.RecordBatch.from_pylist([asdict(done)], schema=_ARROW)

    return work


_ARROW = pa.schema(
    [
        ("file_id", pa.int64()),
        ("object_key", pa.string()),
        ("ended", pa.string()),
        *((name, pa.int64()) for name in
          ("batches", "split_files", "bytes_read", "bytes_written", "elapsed_ms")),
        ("error", pa.string()),
    ]
)  # fmt: skip


def _row(file: ClaimedFile) -> dict[str, Any]:
    batches = [asdict(batch) | {"topic_id": str(batch.topic_id)} for batch in file.batches]
    return {
        "file_id": file.file_id,
        "object_key": file.object_key,
        "token": file.token,
        "batches": batches,
    }


def _file(row: dict[str, Any]) -> ClaimedFile:
    batches = tuple(
        ClaimedBatch(**(batch | {"topic_id": UUID(batch["topic_id"])})) for batch in row["batches"]
    )
    return ClaimedFile(row["file_id"], row["object_key"], row["token"], batches)
