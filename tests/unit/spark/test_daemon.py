"""What Spark's Python workers are copies of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from spark.common.daemon import IMPORTED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLIENTS = ("boto3", "confluent_kafka", "psycopg", "pyarrow")


def test_a_worker_has_what_tasks_import_before_its_first_one_and_never_has_pandas(
    spark: SparkSession,
) -> None:
    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        at_once = [name for name in (*IMPORTED, *CLIENTS) if name in sys.modules]
        for _ in batches:
            pass
        pa.array([{"a": 1}, {"a": 2}])  # looks for pandas
        later = [name for name in ("pandas",) if name in sys.modules]
        yield pa.RecordBatch.from_pydict({"name": [*at_once, *later]})

    frame = spark.range(0, 1, 1, 1).mapInArrow(told, "name string")
    assert [row.name for row in frame.collect()] == [*IMPORTED, *CLIENTS]
