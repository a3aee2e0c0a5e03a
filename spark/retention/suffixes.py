"""What retention reads of suffixes, by tasks that each ask for some logs at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from spark.common.retry import insist
from tideline.control_plane.jobs import connect_jobs
from tideline.control_plane.tiering_model import CutRequest
from tideline.settings import JobsSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

APPLICATION = "tideline-retention"
LOGS_AT_ONCE = 50
"""Logs of one call: some of them may have 100,000 batches to add up."""
UNITS = """log_id bigint, region int, start_offset bigint, end_offset bigint, size_bytes bigint,
max_timestamp bigint"""
CUTS = """log_id bigint, cut_before bigint, cut_by_time bigint, cut_by_size bigint,
cut_bytes bigint"""
_UNITS = pa.schema(
    [
        ("log_id", pa.int64()),
        ("region", pa.int32()),
        ("start_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("size_bytes", pa.int64()),
        ("max_timestamp", pa.int64()),
    ]
)
_CUTS = pa.schema([(name.split()[0], pa.int64()) for name in CUTS.replace("\n", " ").split(", ")])


def suffix_units(logs: DataFrame, settings: JobsSettings) -> DataFrame:
    """Merged segments (region 1) and, as one row, the WAL batches (region 2) of ``logs``; the
    latter only where size is limited. Columns: :data:`UNITS`."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with connect_jobs(settings, application_name=APPLICATION) as plane:
            for batch in pieces(batches):
                ids = batch["log_id"].to_pylist()
                sized = [limit >= 0 for limit in batch["retention_bytes"].to_pylist()]
                rows = insist(partial(plane.retention_suffix, ids, sized))
                columns = {n: [getattr(row, n) for row in rows] for n in _UNITS.names}
                yield pa.RecordBatch.from_pydict(columns, schema=_UNITS)

    wanted = logs.where("boundary >= 0").select("log_id", "retention_bytes")
    return wanted.mapInArrow(read, UNITS)


def wal_cuts(reached: DataFrame, settings: JobsSettings) -> DataFrame:
    """Where retention cuts the WAL region of logs whose segments all go. Columns: :data:`CUTS`."""

    def cut(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with connect_jobs(settings, application_name=APPLICATION) as plane:
            for batch in pieces(batches):
                wanted = [CutRequest(**row) for row in batch.to_pylist()]
                found = insist(partial(plane.retention_wal_cut, wanted))
                columns = [
                    [c.log_id for c in found],
                    [c.before_offset for c in found],
                    [c.by_time for c in found],
                    [c.by_size for c in found],
                    [c.removed_bytes for c in found],
                ]
                arrays = [pa.array(values, pa.int64()) for values in columns]
                yield pa.RecordBatch.from_arrays(arrays, schema=_CUTS)

    requests = reached.selectExpr(
        "log_id",
        "greatest(before_offset, boundary, suffix_start) AS from_offset",
        "cutoff AS cutoff_ms",
        "excess AS excess_bytes",
    )
    return requests.mapInArrow(cut, CUTS)


def pieces(batches: Iterator[pa.RecordBatch], size: int = LOGS_AT_ONCE) -> Iterator[pa.RecordBatch]:
    """The same rows, at most ``size`` at a time."""
    for batch in batches:
        for start in range(0, batch.num_rows, size):
            yield batch.slice(start, size)
