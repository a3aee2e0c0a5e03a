"""Coverage of a fleet, by the job's own logic and by DuckDB, on the same generated metadata.

Both read the same Parquet files (metadata records, listed objects, logs with their lineages) and
answer the same question: per partition, whether ``[log start, B0)`` is covered, up to where, how
many offsets are missing and how many segments have bad objects. The truth is known: it is made
together with the data.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.beside import spread
from benchmarks.page import Figure
from spark.common import packing
from spark.common.metadata_records import MetadataRecord
from spark.common.packing import Packed, PackedEvents
from spark.common.rows import arrow_schema, spark_schema
from spark.common.session import make_session
from spark.coverage import frames as coverage
from tideline.domain.coverage import OWN_KINDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

METADATA_PARTITIONS = 50
RECORDS_PER_SEGMENT = 1_000
SEGMENT_BYTES = 1 << 20
ROWS_AT_ONCE = 200_000
DEFECTS = ("none", "gap_at_start", "gap_in_the_middle", "gap_at_the_end", "started_only",
           "deleted", "missing_object", "truncated_object", "divergent_epoch")  # fmt: skip
"""Partition n has defect n modulo their number: in its first segment, its last, or the last but
two."""
NOW_MS = 1_800_000_000_000
Answer = dict[int, tuple[bool, int, int, int]]
"""By log: complete, covered to, missing offsets, segments with bad objects."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Generated metadata in a directory, and what is true of it."""

    directory: Path
    partitions: int
    segments: int
    truth: Answer


def generate(directory: Path, partitions: int, segments: int) -> Fleet:
    """Write ``events``, ``objects`` and ``logs`` as Parquet, a file per metadata partition."""
    for name in ("events", "objects", "logs"):
        (directory / name).mkdir(parents=True)
    truth: Answer = {}
    for place in range(min(METADATA_PARTITIONS, partitions)):
        logs = np.arange(place, partitions, METADATA_PARTITIONS)
        truth |= _write_part(directory, place, logs, segments)
    return Fleet(directory, partitions, segments, truth)


def _write_part(directory: Path, place: int, logs: np.ndarray, segments: int) -> Answer:
    defect = logs % len(DEFECTS)
    hit = np.where(
        defect == 1, 0, np.where(defect == 3, segments - 1, max(0, segments - 3))
    )  # index of the segment that the defect hits
    # Brokers write as time goes on: the logs' records lie between each other.
    numbers, rows_of_logs = np.meshgrid(np.arange(segments), np.arange(len(logs)), indexing="ij")
    number, row = numbers.ravel(), rows_of_logs.ravel()
    log, kind = logs[row], defect[row]
    is_hit = (number == hit[row]) & (kind != 0)
    start = number * RECORDS_PER_SEGMENT
    end = start + RECORDS_PER_SEGMENT - 1
    epoch = number // 500
    epoch_start = epoch * 500 * RECORDS_PER_SEGMENT
    ids = np.stack((log.astype(">u8"), (number + 1).astype(">u8") * 2654435761), axis=1)
    segment_id = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(number), [None, pa.py_buffer(ids.astype(">u8").tobytes())]
    ).cast(pa.binary())
    absent = is_hit & np.isin(kind, (1, 2, 3))
    divergent = is_hit & (kind == 8)
    lists = np.arange(len(number) + 1, dtype=np.int32)
    registered = pa.table(
        {
            "kind": pa.array(np.zeros(len(number), np.int8)),
            "topic_id": _topic_ids(log),
            "partition": pa.array(np.zeros(len(number), np.int32)),
            "segment_id": segment_id,
            "start_offset": start,
            "end_offset": end,
            "size_bytes": np.full(len(number), SEGMENT_BYTES),
            "state": pa.array(np.zeros(len(number), np.int8)),
            "txn_index_empty": np.ones(len(number), bool),
            "epochs": pa.ListArray.from_arrays(
                lists, pa.array(np.where(divergent, 77, epoch), pa.int32())
            ),
            "epoch_starts": pa.ListArray.from_arrays(
                lists, pa.array(np.where(divergent, start, epoch_start), pa.int64())
            ),
        }
    )
    kept = np.flatnonzero(~absent)
    ended = np.flatnonzero(~absent & ~(is_hit & (kind == 4)))
    deleted = np.flatnonzero(is_hit & (kind == 5))
    records = [registered.take(kept)]
    for state, rows in ((1, ended), (2, deleted), (3, deleted)):
        update = registered.select(["topic_id", "partition", "segment_id"]).take(rows)
        update = update.append_column("kind", pa.array(np.ones(len(rows), np.int8)))
        records.append(update.append_column("state", pa.array(np.full(len(rows), state, np.int8))))
    events = pa.concat_tables(records, promote_options="default")
    steps = [rows * 4 + step for step, rows in enumerate((kept, ended, deleted, deleted))]
    events = events.take(np.concatenate(steps).argsort(kind="stable"))
    places = pa.array(np.full(len(events), place, np.int32))
    events = events.append_column("metadata_partition", places)
    events = events.append_column("record_offset", pa.array(np.arange(len(events))))
    for name in ("max_timestamp", "event_timestamp"):
        column = pa.array(np.ones(len(events)), pa.int64())
        events = events.append_column(name, column)
    _write(directory / "events", place, events.select(arrow_schema(MetadataRecord).names))

    there = ~absent & ~(is_hit & np.isin(kind, (5, 6)))
    log_bytes = np.where(is_hit & (kind == 7), SEGMENT_BYTES - 1, SEGMENT_BYTES)
    listed = pa.table(
        {
            "log_id": log,
            "segment_id": segment_id,
            "start_offset": start,
            "log_bytes": log_bytes,
            "kinds": pa.array(np.full(len(log), packing.kind_bits(OWN_KINDS)), pa.int32()),
            "last_modified": np.full(len(log), NOW_MS),
        }
    ).filter(there)
    _write(directory / "objects", place, listed)

    boundary = segments * RECORDS_PER_SEGMENT
    epochs = list(range((segments - 1) // 500 + 1))
    _write(
        directory / "logs",
        place,
        pa.table(
            {
                "log_id": logs,
                "topic_id": _topic_ids(logs),
                "partition": pa.array(np.zeros(len(logs), np.int32)),
                "log_start": np.zeros(len(logs), np.int64),
                "boundary": np.full(len(logs), boundary),
                "suffix_start": np.full(len(logs), boundary),
                "merge_frontier": np.full(len(logs), boundary),
                "epochs": pa.array([epochs] * len(logs), pa.list_(pa.int32())),
                "epoch_starts": pa.array(
                    [[e * 500 * RECORDS_PER_SEGMENT for e in epochs]] * len(logs)
                ),
            }
        ),
    )
    return {
        int(log): (
            (True, boundary, 0, 0)
            if fault == 0
            else (
                False,
                int(at) * RECORDS_PER_SEGMENT,
                RECORDS_PER_SEGMENT,
                int(DEFECTS[fault] in ("missing_object", "truncated_object")),
            )
        )
        for log, fault, at in zip(logs, defect, hit, strict=True)
    }


def _topic_ids(logs: np.ndarray) -> pa.Array:
    raw = np.stack((np.zeros(len(logs), ">u8"), (logs + 1).astype(">u8")), axis=1)
    ids = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(logs), [None, pa.py_buffer(raw.tobytes())]
    )
    return ids.cast(pa.binary())


def _write(directory: Path, place: int, table: pa.Table) -> None:
    pq.write_table(table, directory / f"{place:03d}.parquet", compression="snappy")


def by_spark(spark: SparkSession, fleet: Fleet) -> Answer:
    """What the job's logic says. The files are read in the executors and handed over packed, as
    the job's own sources hand over what they read."""

    def read(name: str, packing: Callable[[pa.RecordBatch], pa.RecordBatch], to: type) -> DataFrame:
        def read_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for path in batch["path"].to_pylist():
                    for rows in pq.ParquetFile(path).iter_batches(ROWS_AT_ONCE):
                        yield packing(rows)

        files = sorted(str(path) for path in (fleet.directory / name).iterdir())
        tasks = spark.sparkContext.defaultParallelism * 2
        frame = spark.createDataFrame([(path,) for path in files], "path string")
        return frame.repartition(tasks).mapInArrow(read_all, spark_schema(to))

    merged = spark.createDataFrame(
        [], "log_id bigint, segment_id binary, base_offset bigint, last_offset bigint, "
        "size_bytes bigint, state string"
    )  # fmt: skip
    found = coverage.verdicts(
        spark.read.parquet(str(fleet.directory / "logs")),
        read("events", packing.pack_events, PackedEvents),
        merged,
        read("objects", packing.pack_objects, Packed),
        NOW_MS,
    )
    rows = found.select(
        "log_id", "complete", "covered_to", "missing_offsets", "broken_count"
    ).toArrow()
    return _answer(rows)


def _answer(rows: pa.Table) -> Answer:
    log, *values = (column.to_pylist() for column in rows.columns)
    return dict(zip(log, zip(*values, strict=True), strict=True))


DUCKDB = f"""
WITH folded AS (
    SELECT topic_id, "partition", segment_id,
           arg_max(state, (metadata_partition, record_offset)) AS state,
           any_value(start_offset) FILTER (kind = 0) AS first,
           any_value(end_offset) FILTER (kind = 0) AS last,
           any_value(size_bytes) FILTER (kind = 0) AS size,
           any_value(epochs) FILTER (kind = 0) AS epochs,
           any_value(epoch_starts) FILTER (kind = 0) AS epoch_starts
    FROM read_parquet('{{directory}}/events/*.parquet') WHERE kind IN (0, 1)
    GROUP BY topic_id, "partition", segment_id
), finished AS (
    SELECT logs.log_id, segment_id, first, last, size, folded.epochs, folded.epoch_starts
    FROM folded JOIN read_parquet('{{directory}}/logs/*.parquet') AS logs
        USING (topic_id, "partition")
    WHERE state = 1
), lineage AS (
    SELECT log_id, unnest(epochs) AS epoch, unnest(epoch_starts) AS own_start,
           unnest(list_append(epoch_starts[2:], 9223372036854775807)) AS own_end
    FROM read_parquet('{{directory}}/logs/*.parquet')
), pieces AS (
    SELECT log_id, segment_id, size, unnest(epochs) AS epoch,
           greatest(unnest(epoch_starts), first) AS first,
           least(unnest(list_append(epoch_starts[2:], 9223372036854775807)), last + 1) AS last
    FROM finished
), own AS (
    SELECT log_id, segment_id, size, greatest(first, own_start) AS first,
           least(last, own_end) AS last
    FROM pieces JOIN lineage USING (log_id, epoch)
    WHERE greatest(first, own_start) < least(last, own_end)
), checked AS (
    SELECT own.*, objects.log_bytes IS NOT DISTINCT FROM size
                  AND objects.kinds & {packing.kind_bits(OWN_KINDS)}
                      = {packing.kind_bits(OWN_KINDS)} AS whole
    FROM own LEFT JOIN read_parquet('{{directory}}/objects/*.parquet') AS objects
        USING (log_id, segment_id)
), good AS (
    SELECT log_id, greatest(first, log_start) AS first, least(last, boundary) AS last
    FROM checked JOIN read_parquet('{{directory}}/logs/*.parquet') USING (log_id)
    WHERE whole AND greatest(first, log_start) < least(last, boundary)
    UNION ALL
    SELECT log_id, boundary, boundary FROM read_parquet('{{directory}}/logs/*.parquet')
), reached AS (
    SELECT good.log_id, first, coalesce(max(last) OVER (PARTITION BY good.log_id
               ORDER BY first, last ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
               log_start) AS upto
    FROM good JOIN read_parquet('{{directory}}/logs/*.parquet') USING (log_id)
), holes AS (
    SELECT log_id, min(upto) FILTER (first > upto) AS hole,
           coalesce(sum(first - upto) FILTER (first > upto), 0) AS missing
    FROM reached GROUP BY log_id
), bad AS (
    SELECT log_id, count(DISTINCT segment_id) AS broken FROM checked WHERE NOT whole GROUP BY log_id
)
SELECT log_id, hole IS NULL, coalesce(hole, boundary), missing::BIGINT, coalesce(broken, 0)
FROM holes JOIN read_parquet('{{directory}}/logs/*.parquet') USING (log_id)
    LEFT JOIN bad USING (log_id)
"""


def by_duckdb(fleet: Fleet, threads: int) -> Answer:
    """What one SQL statement says."""
    with duckdb.connect() as database:
        database.execute(f"SET threads = {threads}; SET memory_limit = '8GB'")
        sql = DUCKDB.format(directory=fleet.directory)
        return _answer(database.sql(sql).to_arrow_table())


@dataclass(slots=True)
class CoverageResult:
    """Seconds of each run."""

    fleet: Fleet
    spark: list[float] = field(default_factory=list)
    duckdb: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Median time of the job's logic by that of DuckDB."""
        return statistics.median(self.spark) / statistics.median(self.duckdb)


def measure(
    directory: Path, partitions: int, segments: int, rounds: int, step: Callable[[str], None]
) -> CoverageResult:
    """Alternate both ways ``rounds`` times, after one of each that does not count."""
    step(f"coverage: generating {partitions} x {segments} segments")
    result = CoverageResult(generate(directory, partitions, segments))
    cores = os.cpu_count() or 2
    session = make_session("tideline-bench", f"local[{cores}]", {"spark.driver.memory": "3g"})
    try:
        for number in range(rounds + 1):
            step(f"coverage: round {number} of {rounds}")
            ways: list[tuple[str, list[float], Callable[[], Answer]]] = [
                ("Spark", result.spark, lambda: by_spark(session, result.fleet)),
                ("DuckDB", result.duckdb, lambda: by_duckdb(result.fleet, cores)),
            ]
            for name, times, way in ways:
                started = time.monotonic()
                answer = way()
                if number:
                    times.append(time.monotonic() - started)
                if answer != result.fleet.truth:
                    result.wrong.append(f"{name}, round {number}")
    finally:
        session.stop()
    return result


def figure(result: CoverageResult) -> Figure:
    beside = f"one statement in DuckDB: {spread(result.duckdb, '.1f')}"
    return Figure(spread(result.spark, ".1f"), beside, result.ratio)


def to_markdown(result: CoverageResult, machine: str) -> str:
    """The report."""
    fleet = result.fleet
    return "\n".join(
        [
            f"{fleet.partitions} partitions x {fleet.segments} segments, "
            f"{len(result.spark)} rounds in turn. Machine: {machine}.",
            "",
            "| same Parquet files, same verdicts | seconds: median (min to max) |",
            "| --- | --- |",
            f"| the coverage job's logic in Spark | {spread(result.spark, '.1f')} |",
            f"| one SQL statement in DuckDB | {spread(result.duckdb, '.1f')} |",
            f"| ratio of the medians | {result.ratio:.2f} |",
            "",
            "Wrong verdicts: " + ("; ".join(result.wrong) or "none") + ".",
        ]
    )
