"""What runs of the jobs tell in tables of Apache Iceberg: one row class for each table.

Each row also has the columns of :class:`OfRun`. Times are UTC, sizes bytes, offsets as said. The
rule of change: a column is only ever added, may be null, and keeps its name, type and meaning; a
table that lacks it is given it before the next append.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from spark.common.rows import arrow_schema


@dataclass(frozen=True, slots=True)
class OfRun:
    """Which run tells a row."""

    run_id: str
    """A retry by a scheduler may have that of the run before it, and its own ``started_at``."""
    started_at: datetime
    """Of the run; tables are partitioned by its day."""
    job: str
    part: int
    """Runs tell in parts: (run_id, started_at, part) is told once."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """``[start, end)``, and why remote storage does not have it."""

    start: int
    end: int
    cause: str


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """``coverage_verdicts``: one partition as a run of coverage has judged it."""

    topic: str
    topic_id: str
    partition: int
    state: str
    generation: int
    boundary: int
    """B0."""
    observed_at: datetime | None
    """When the observation began; null: it could not be looked at, ``reason`` says why."""
    complete: bool | None
    """Whether every replica may serve the prefix; null: it could not be looked at."""
    complete_before: bool
    reason: str
    remedies: tuple[str, ...]
    wanted_start: int | None
    wanted_end: int | None
    """Exclusive."""
    missing_offsets: int | None
    gaps: tuple[OffsetRange, ...]
    """The first of them; ``missing_offsets`` counts all."""
    segments: int | None
    bad_segments: int | None
    orphaned_segments: int | None
    merged_segments: int | None
    bad_merged_segments: int | None
    anomalies: int | None


@dataclass(frozen=True, slots=True)
class RemovalRow:
    """``retention_removals``: what retention took from the left of one partition."""

    topic: str
    topic_id: str
    partition: int
    state: str
    boundary: int
    """B0; -1 while it is unset."""
    log_start_before: int
    log_start_after: int
    """As planned; the whole log's, whatever range it lies in."""
    prefix_before: int | None
    """Kafka's records below it (exclusive) were to go; null: none there."""
    suffix_before: int | None
    """The same of the suffix."""
    units_by_time: int
    """Segments, of both ranges, and WAL batches that retention.ms took."""
    units_by_size: int
    """Those that retention.bytes took."""
    bytes: int
    outcome: str
    """``removed``; ``noted``: Kafka had moved its start by itself; ``refused``: ``problem`` says
    why; ``unknown``: the run failed while it removed."""
    problem: str | None


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """``segments``: one segment that merge made, or could not make."""

    topic: str
    topic_id: str
    partition: int
    segment_id: str
    base_offset: int
    last_offset: int
    """Inclusive; -1 without a plan."""
    size_bytes: int
    batches: int
    records: int
    outcome: str
    """``done`` or ``failed``; what another worker or retention made needless is not told."""
    error: str | None


@dataclass(frozen=True, slots=True)
class DeletedRow:
    """``deleted_objects``: one object that S3 has confirmed to be gone."""

    run_number: int
    bucket: str
    object_key: str
    kind: str
    """``wal``, ``split``, ``segment`` or ``orphan``."""
    reason: str
    size_bytes: int | None
    """Null where Postgres does not keep it."""
    reported_at: datetime | None
    """Of an orphan: when a run first found nothing that refers to it."""
    deleted_at: datetime


@dataclass(frozen=True, slots=True)
class RunRow:
    """``job_runs``: one run. It is told last: a run that has a row here has told all the others."""

    ended_at: datetime
    elapsed_ms: int
    whole: bool
    """All topics."""
    outcome: str
    """``ok``, ``failed``, ``usage``, ``unreachable``, ``refused``, or ``defect``."""
    error: str | None
    counts: dict[str, int]
    """Figures of the run's result, by name; those of a part of it as ``merge.segments``."""
    lost_rows: int
    """Rows of this run that could not be kept for the tables."""
    version: str
    """Of tideline."""


RUNS = "job_runs"
TABLES: Mapping[str, type] = {
    "coverage_verdicts": VerdictRow,
    "retention_removals": RemovalRow,
    "segments": SegmentRow,
    "deleted_objects": DeletedRow,
    RUNS: RunRow,
}
"""In the order in which they are told."""


def table_of(row: type) -> str:
    """The table of a row class."""
    return next(name for name, kind in TABLES.items() if kind is row)


def columns(table: str) -> pa.Schema:
    """Every column of a table; those of the run first. All others may be null, as a column that is
    added later must be."""
    own = (column.with_nullable(True) for column in arrow_schema(TABLES[table]))
    return pa.schema([*arrow_schema(OfRun), *own])
