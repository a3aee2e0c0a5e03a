"""What a run found and did, as rows that outlive it: kept at once, told to the tables later.

Rows go into the bucket in parts, Parquet objects below ``records/pending/``, as the work goes on:
a run that is killed has told what it did so far. What waits long enough is appended to the tables
by whichever run ends next (:mod:`spark.common.record_tables`), so that runs of every few minutes
make no file each. None of this can fail the job's work: what cannot be kept is counted, and said.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from spark.common.record_parts import Part, due, overdue_since, pending, pending_root
from spark.common.record_rows import OfRun, RunRow, columns, table_of
from spark.common.rows import chunks, to_batch
from tideline import __version__
from tideline.errors import TidelineError
from tideline.object_store.client import CallBounds, ObjectStoreClient
from tideline.settings import JobsSettings

T = TypeVar("T")
OFF = "off"
ROWS_PER_PART = 20_000
BOUNDS = CallBounds(read_timeout_s=10, attempts=2)
"""The work is done: nothing is gained by waiting for the store as long as the work itself does."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended, for its row in ``job_runs``."""

    whole: bool
    outcome: str
    error: str | None
    details: Mapping[str, object]
    """Of its result: the figures are kept."""


@dataclass(frozen=True, slots=True)
class Told:
    """What became of the rows, for the run's result and the metrics."""

    rows: int = 0
    """Of this run that were kept, its own in ``job_runs`` included."""
    lost_rows: int = 0
    """Of this run that could not be."""
    told_rows: int = 0
    """Of this run and earlier ones that were appended to the tables now."""
    waiting_parts: int = 0
    overdue_since: datetime | None = None
    """Since when a part should have been told; ``None``: none should."""
    problem: str | None = None
    """Why rows were lost, or wait."""


class Records:
    """Of one run. ``store``: of the diskless bucket, by default that of ``settings``."""

    def __init__(
        self,
        settings: JobsSettings,
        job: str,
        run_id: UUID,
        started_at: datetime,
        progress: Callable[[str], None],
        store: ObjectStoreClient | None = None,
    ) -> None:
        self._settings, self._job, self._run_id = settings, job, str(run_id)
        self._started_at, self._progress = started_at, progress
        self._store = store or ObjectStoreClient(settings, bounds=BOUNDS)
        self._parts = 0
        self._told = Told()

    @property
    def wanted(self) -> bool:
        return self._settings.records_catalog != OFF

    def add(self, row: type[T], rows: Iterable[T]) -> None:
        """Keep ``rows`` for the table of ``row``. They lie in the bucket when it returns, or are
        counted as lost: once one part could not be put, no further one is tried."""
        if not self.wanted:
            return
        for some in chunks(rows, ROWS_PER_PART):
            if self._told.lost_rows or not self._put(row, some):
                self._told = replace(self._told, lost_rows=self._told.lost_rows + len(some))
            else:
                self._told = replace(self._told, rows=self._told.rows + len(some))

    def _put(self, row: type[T], rows: list[T]) -> bool:
        started_ms = round(self._started_at.timestamp() * 1000)
        part = Part(table_of(row), started_ms, self._run_id, self._parts, len(rows))
        self._parts += 1
        of_run = OfRun(part.run_id, self._started_at, self._job, part.number)
        body = encoded(columns(part.table), [
            *to_batch(OfRun, [of_run] * len(rows)).columns, *to_batch(row, rows).columns
        ])  # fmt: skip
        settings = self._settings
        try:
            self._store.put(settings.s3_bucket, pending_root(settings) + part.key, body)
        except TidelineError as error:
            self._told = replace(self._told, problem=f"rows are not kept: {error}")
            self._progress(f"what it did is not told to {part.table}: {error}")
            return False
        return True

    def end(self, ended: Ended, *, tell: bool) -> Told:
        """Keep the run's own row, and append what has waited long enough if it is to ``tell``.
        Raises nothing."""
        if not self.wanted:
            return self._told
        now = datetime.now(UTC)
        elapsed_ms = round((now - self._started_at).total_seconds() * 1000)
        self.add(RunRow, [
            RunRow(
                now, elapsed_ms, ended.whole, ended.outcome, ended.error, figures(ended.details),
                self._told.lost_rows, __version__,
            )
        ])  # fmt: skip
        if tell and not self._told.lost_rows:
            try:
                self._tell()
            except Exception as error:
                # A catalog has errors of its own, and of what it is reached by.
                self._progress(f"what runs did is not told to the tables yet: {error}")
                problem = " ".join(f"{type(error).__name__}: {error}".split())
                self._told = replace(self._told, problem=problem)
        return self._told

    def _tell(self) -> None:
        settings = self._settings
        waiting = pending(settings, self._store)
        self._waiting(waiting)
        if any(due(parts, settings) for parts in waiting.values()):
            # A second of a core: most runs find nothing that is due.
            from spark.common.record_tables import tell

            rows = tell(settings, self._store, self._progress)
            self._told = replace(self._told, told_rows=rows)
            self._waiting(pending(settings, self._store))

    def _waiting(self, waiting: Mapping[str, Sequence[Part]]) -> None:
        self._told = replace(
            self._told,
            waiting_parts=sum(map(len, waiting.values())),
            overdue_since=overdue_since(waiting, self._settings),
        )


def encoded(schema: pa.Schema, arrays: list[pa.Array]) -> bytes:
    """As the Parquet of a part."""
    file = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), file, compression="zstd")
    return file.getvalue()


def figures(details: Mapping[str, object]) -> dict[str, int]:
    """The whole numbers of a result and of the mappings right in it."""
    return dict(_figures(details, ""))


def _figures(details: Mapping[str, object], before: str) -> Iterator[tuple[str, int]]:
    for name, value in details.items():
        if isinstance(value, int) and not isinstance(value, bool):
            yield f"{before}{name}", value
        elif isinstance(value, Mapping) and not before:
            yield from _figures(value, f"{name}.")
