"""A job whose tasks run in its driver's process: ``python -m tests.spark_without_jvm MODULE …``.

Jobs write to Postgres and to S3 in Python alone, on the driver or in the function of a task; what
Spark's JVM does is to hand rows to tasks. Where a job needs frames for that only, its driver and
its tasks are run here as they stand, in one process that starts for a quarter of the CPU and dies
by one kill.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from spark.common import session as sessions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

CORES = 2
Task = Callable[[], Iterator[pa.RecordBatch]]
Work = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True)
class Frame:
    """What :mod:`spark.common.rows` needs of a frame. Work is done when rows are asked for."""

    schema: pa.Schema
    tasks: tuple[Task, ...]

    def repartition(self, tasks: int) -> Frame:
        return in_tasks(self.toArrow(), tasks)

    coalesce = repartition

    def where(self, condition: str) -> Frame:
        """Of the one that rows are dealt out of, which is the first here, too."""
        assert condition == "spark_partition_id() = 0"
        assert len(self.tasks) <= 1
        return self

    def mapInArrow(self, work: Work, schema: StructType) -> Frame:
        def task(before: Task) -> Task:
            return lambda: iter(work(before()))

        return Frame(to_arrow_schema(schema), tuple(map(task, self.tasks)))

    def toArrow(self) -> pa.Table:
        """As many tasks at once as there are cores. Raises what a task raises."""
        with ThreadPoolExecutor(CORES, "task") as pool:
            batches = [b for some in pool.map(lambda task: list(task()), self.tasks) for b in some]
        return pa.Table.from_batches(batches, None if batches else self.schema)


def in_tasks(table: pa.Table, tasks: int) -> Frame:
    """Rows that follow each other mostly share a task."""
    size = max(1, -(-table.num_rows // tasks))
    slices = [table.slice(start, size) for start in range(0, table.num_rows, size)]

    def task(part: pa.Table) -> Task:
        return lambda: iter(part.to_batches())

    return Frame(table.schema, tuple(map(task, slices)))


@dataclass
class Session:
    """What a job needs of a Spark session that does nothing but hand out rows."""

    sparkContext: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(
            defaultParallelism=CORES, applicationId="app-without-jvm", master="local"
        )
    )

    def createDataFrame(self, table: pa.Table, schema: StructType) -> Frame:
        return in_tasks(table, 1)

    def stop(self) -> None:
        pass


def make_session(
    name: str, master: str | None = None, config: Mapping[str, str] | None = None
) -> Session:
    return Session()


if __name__ == "__main__":
    sessions.make_session = make_session  # type: ignore[assignment]
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
