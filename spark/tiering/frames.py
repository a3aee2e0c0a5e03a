"""Split and merge as frames: what was claimed or is ready in, what became of each out.

One row is one WAL file, or one partition; they are independent of each other, so any task may take
any of them, and a task that Spark runs twice finds its work done or its claim lost. Both fail the
job when a store stays away from a task.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING
from uuid import UUID

from spark.common.rows import map_rows
from spark.tiering.merge_partition import MergeOrder, MergeOutcome, merge_partition
from spark.tiering.services import OpenServices, Services
from spark.tiering.split_file import SplitOutcome, split_file
from tideline.control_plane.tiering_model import ClaimedFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILES_AT_ONCE = 4
"""Of one task, each with a connection of its own and at most two WAL objects in memory: small
files cost round trips, not work."""
ONE_BY_ONE = 1
"""What is done already is reported even if a later row fails the task."""


def split(claimed: DataFrame, worker: UUID, open_services: OpenServices) -> DataFrame:
    """Rows of :class:`ClaimedFile` in, of :class:`SplitOutcome` out."""

    def work(files: Iterator[ClaimedFile]) -> Iterator[SplitOutcome]:
        with ExitStack() as opened:
            idle: SimpleQueue[Services] = SimpleQueue()
            for _ in range(FILES_AT_ONCE):
                idle.put(opened.enter_context(open_services()))

            def one(file: ClaimedFile) -> SplitOutcome:
                services = idle.get()
                try:
                    return split_file(services, worker, file)
                finally:
                    idle.put(services)

            pool = opened.enter_context(ThreadPoolExecutor(FILES_AT_ONCE, "split"))
            yield from pool.map(one, files)

    return map_rows(claimed, ClaimedFile, SplitOutcome, work, ONE_BY_ONE)


def merge(
    orders: DataFrame,
    worker: UUID,
    open_services: OpenServices,
    *,
    claim_ms: int,
    root: Path | None = None,
) -> DataFrame:
    """Rows of :class:`MergeOrder` in, of :class:`MergeOutcome` out, one for each segment. ``root``:
    where segments are built, on each executor; default: its temporary directory."""

    def work(partitions: Iterator[MergeOrder]) -> Iterator[MergeOutcome]:
        with open_services() as services:
            for order in partitions:
                yield from merge_partition(services, worker, order, claim_ms=claim_ms, root=root)

    return map_rows(orders, MergeOrder, MergeOutcome, work, ONE_BY_ONE)
