"""The control plane's rows as frames: partitions, batches, merged segments, WAL files.

The keys in use are cut into ranges, and each task reads its ranges page by page: as many
connections as tasks run at once, and no more memory than a page. Columns are the fields of the
row classes in :mod:`tideline.control_plane.tiering_model`; ids are their 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, get_args, get_type_hints
from uuid import UUID

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from tideline.control_plane.jobs import JobsControlPlane, connect_jobs
from tideline.control_plane.tiering_model import (
    BatchRow,
    MergedSegmentRow,
    PartitionRow,
    WalFileRow,
)
from tideline.settings import JobsSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APPLICATION = "tideline-jobs"
ROWS_AT_ONCE = 5_000
RANGES_PER_TASK = 4
"""Key ranges hold unlike numbers of rows: several per task even them out."""
_PLAIN: dict[type, pa.DataType] = {
    int: pa.int64(),
    str: pa.string(),
    bool: pa.bool_(),
    UUID: pa.binary(),
}


@dataclass(frozen=True, slots=True)
class Relation:
    """What can be read by key range."""

    row: type
    key_range: Callable[[JobsControlPlane], tuple[int, int]]
    read: Callable[[JobsControlPlane, int, int], Iterator[Any]]


PARTITIONS = Relation(
    PartitionRow, JobsControlPlane.log_id_range, lambda plane, lo, hi: plane.partitions(lo, hi)
)
BATCHES = Relation(
    BatchRow, JobsControlPlane.log_id_range, lambda plane, lo, hi: plane.batches(lo, hi)
)
MERGED_SEGMENTS = Relation(
    MergedSegmentRow,
    JobsControlPlane.log_id_range,
    lambda plane, lo, hi: plane.merged_segments(lo, hi),
)
WAL_FILES = Relation(
    WalFileRow, JobsControlPlane.file_id_range, lambda plane, lo, hi: plane.wal_files(lo, hi)
)


def read(spark: SparkSession, settings: JobsSettings, relation: Relation, tasks: int) -> DataFrame:
    """Every row of ``relation``, read by the executors.

    The range of keys is asked for now; the rows are read when the frame is. Raises
    :class:`tideline.control_plane.errors.ControlPlaneUnavailable`, then also through Spark.
    """
    with connect_jobs(settings, application_name=APPLICATION) as plane:
        ranges = key_ranges(*relation.key_range(plane), tasks * RANGES_PER_TASK)
    schema = arrow_schema(relation.row)
    rows_of, names = relation.read, schema.names

    def read_ranges(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with connect_jobs(settings, application_name=APPLICATION) as plane:
            for batch in batches:
                for lo, hi in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                    rows = rows_of(plane, lo, hi)
                    while some := list(islice(rows, ROWS_AT_ONCE)):
                        yield pa.RecordBatch.from_pylist(
                            [{n: _value(getattr(row, n)) for n in names} for row in some],
                            schema=schema,
                        )

    frame = spark.createDataFrame(ranges or [(0, 0)], "lo bigint, hi bigint")
    parts = frame.repartition(max(1, min(tasks, len(ranges))))
    return parts.mapInArrow(read_ranges, from_arrow_schema(schema))


def key_ranges(lo: int, hi: int, pieces: int) -> list[tuple[int, int]]:
    """``[lo, hi)`` in at most ``pieces`` parts without a gap, none of them empty."""
    size = max(1, -(-(hi - lo) // max(1, pieces)))
    return [(start, min(start + size, hi)) for start in range(lo, hi, size)]


@cache
def arrow_schema(row: type) -> pa.Schema:
    """The columns of a row class."""
    hints = get_type_hints(row)
    return pa.schema([_column(field.name, hints[field.name]) for field in fields(row)])


def _column(name: str, hint: Any) -> pa.Field:
    nullable = type(None) in get_args(hint)
    kind = next((a for a in get_args(hint) if a is not type(None)), hint) if nullable else hint
    if getattr(hint, "__origin__", None) is dict:
        return pa.field(name, pa.map_(pa.string(), pa.string()), nullable=False)
    if issubclass(kind, Enum):
        kind = str
    return pa.field(name, _PLAIN[kind], nullable=nullable)


def _value(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, Enum):
        return value.value
    return list(value.items()) if isinstance(value, dict) else value


def partitions(settings: JobsSettings) -> Iterator[PartitionRow]:
    """Every partition, on the driver, page by page: what a job plans its work by."""
    with connect_jobs(settings, application_name=APPLICATION) as plane:
        yield from plane.partitions(*plane.log_id_range())
