"""The control plane's rows in jobs: merged segments as a frame, partitions.

The keys in use are cut into ranges, and each task reads its ranges page by page: as many
connections as tasks run at once, and no more memory than a page. Rows are the row classes of
:mod:`tideline.control_plane.tiering_model`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark.common.rows import map_rows, to_frame
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.tiering_model import (
    MergedSegmentRow,
    PartitionRow,
)
from tideline.settings import JobsSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APPLICATION = "tideline-jobs"
ROWS_AT_ONCE = 5_000
RANGES_PER_TASK = 4
"""Key ranges hold unlike numbers of rows: several per task even them out."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """``[lo, hi)``."""

    lo: int
    hi: int


def read_merged_segments(spark: SparkSession, settings: JobsSettings, tasks: int) -> DataFrame:
    """Every merged segment, read by the executors.

    The range of keys is asked for now; the rows are read when the frame is. Raises
    :class:`tideline.control_plane.errors.ControlPlaneUnavailable`, then also through Spark.
    """
    with connect_jobs(settings, application_name=APPLICATION) as plane:
        ranges = key_ranges(*plane.log_id_range(), tasks * RANGES_PER_TASK)

    def read_ranges(ranges: Iterator[KeyRange]) -> Iterator[MergedSegmentRow]:
        with connect_jobs(settings, application_name=APPLICATION) as plane:
            for keys in ranges:
                yield from plane.merged_segments(keys.lo, keys.hi)

    frame = to_frame(spark, KeyRange, ranges, tasks)
    return map_rows(frame, KeyRange, MergedSegmentRow, read_ranges, ROWS_AT_ONCE)


def key_ranges(lo: int, hi: int, pieces: int) -> list[KeyRange]:
    """``[lo, hi)`` in at most ``pieces`` parts without a gap, none of them empty."""
    size = max(1, -(-(hi - lo) // max(1, pieces)))
    return [KeyRange(start, min(start + size, hi)) for start in range(lo, hi, size)]


def partitions(settings: JobsSettings) -> Iterator[PartitionRow]:
    """Every partition, on the driver, page by page: what a job plans its work by."""
    with connect_jobs(settings, application_name=APPLICATION) as plane:
        yield from plane.partitions(*plane.log_id_range())
