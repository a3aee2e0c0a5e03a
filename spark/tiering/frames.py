"""Split and merge as frames: who works or what is ready in, what became of each thing out.

Tasks of split claim for themselves, until nothing is left; a row of merge has the partitions of a
task, which claims each when it comes to it. So a task that Spark runs again, or twice at once,
finds its work done or in hands. Both fail the job when a store stays away from a task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from spark.common.rows import map_rows
from spark.tiering.kept_memory import keep_memory
from spark.tiering.merge_partition import MergeOrder
from spark.tiering.outcomes import MergeOutcome, SplitOutcome
from spark.tiering.services import OpenServices
from spark.tiering.side_by_side import merge_partitions
from spark.tiering.split_files import SplitOrder, Splitter
from spark.tiering.whole_objects import WholeObjects, local_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ONE_BY_ONE = 1
"""What is done already is reported even if a later row fails the task."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A task of split."""

    number: int


@dataclass(frozen=True, slots=True)
class Share:
    """A task of merge."""

    orders: tuple[MergeOrder, ...]


def split(slots: DataFrame, order: SplitOrder, open_services: OpenServices) -> DataFrame:
    """Rows of :class:`Slot` in, of :class:`SplitOutcome` out."""

    def work(some: Iterator[Slot]) -> Iterator[SplitOutcome]:
        for _ in some:
            with open_services() as services:
                yield from Splitter(services, order).rest()

    return map_rows(slots, Slot, SplitOutcome, work, ONE_BY_ONE)


def merge(
    shares: DataFrame,
    worker: UUID,
    open_services: OpenServices,
    *,
    claim_ms: int,
    whole_objects: bool = False,
) -> DataFrame:
    """Rows of :class:`Share` in, of :class:`MergeOutcome` out, one for each segment.
    ``whole_objects``: WAL objects are fetched whole, once for each host."""

    def work(some: Iterator[Share]) -> Iterator[MergeOutcome]:
        keep_memory()
        with open_services() as services, local_directory() as directory:
            read = services.read_ranges
            if whole_objects:
                read = WholeObjects(directory, services.read_object, services.read_range).read
            orders = (order for share in some for order in share.orders)
            yield from merge_partitions(services, worker, orders, claim_ms=claim_ms, read=read)

    return map_rows(shares, Share, MergeOutcome, work, ONE_BY_ONE)
