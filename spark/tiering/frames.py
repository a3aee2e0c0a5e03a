"""Split and merge as frames: who works or what is ready in, what became of each thing out.

Tasks of split claim for themselves, until nothing is left; a partition to merge is a row, and is
claimed by the task that has it. So a task that Spark runs again, or twice at once, finds its work
done or in hands. Both fail the job when a store stays away from a task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from spark.common.rows import map_rows
from spark.tiering.merge_partition import MergeOrder, merge_partition
from spark.tiering.outcomes import MergeOutcome, SplitOutcome
from spark.tiering.services import OpenServices
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


def split(slots: DataFrame, order: SplitOrder, open_services: OpenServices) -> DataFrame:
    """Rows of :class:`Slot` in, of :class:`SplitOutcome` out."""

    def work(some: Iterator[Slot]) -> Iterator[SplitOutcome]:
        for _ in some:
            with open_services() as services:
                yield from Splitter(services, order).rest()

    return map_rows(slots, Slot, SplitOutcome, work, ONE_BY_ONE)


def merge(
    orders: DataFrame,
    worker: UUID,
    open_services: OpenServices,
    *,
    claim_ms: int,
    whole_objects: bool = False,
) -> DataFrame:
    """Rows of :class:`MergeOrder` in, of :class:`MergeOutcome` out, one for each segment.
    ``whole_objects``: WAL objects are fetched whole, once for each host."""

    def work(partitions: Iterator[MergeOrder]) -> Iterator[MergeOutcome]:
        with open_services() as services, local_directory() as directory:
            get = services.read_range
            if whole_objects:
                get = WholeObjects(directory, services.read_object, services.read_range).get
            for order in partitions:
                yield from merge_partition(services, worker, order, claim_ms=claim_ms, get=get)

    return map_rows(orders, MergeOrder, MergeOutcome, work, ONE_BY_ONE)
