"""What Spark's Python workers are copies of."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from spark.common.daemon import IMPORTED
from tests.support.waiting import HANGS_S

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


def test_what_a_worker_was_copied_with_is_not_looked_through_for_garbage(
    spark: SparkSession,
) -> None:
    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc

        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict(
            {"aside": [gc.get_freeze_count()], "left": [len(gc.get_objects())]}
        )

    frame = spark.range(0, 1, 1, 1).mapInArrow(told, "aside long, left long")
    (row,) = frame.collect()
    assert row.aside > row.left


def test_what_is_copied_has_no_thread_that_could_hold_a_lock() -> None:
    code = """
from unittest import mock
from spark.common import daemon
with mock.patch("pyspark.daemon.manager", lambda: print(daemon.threads())):
    daemon.main()
"""
    assert ran(code) == "1"


def test_where_a_library_starts_one_all_the_same_pysparks_own_daemon_goes_on() -> None:
    code = """
import os, threading
from unittest import mock
from spark.common import daemon
threading.Thread(target=threading.Event().wait, daemon=True).start()
with mock.patch("os.execv", lambda program, words: (print(*words[1:3], flush=True), os._exit(0))):
    daemon.main()
"""
    assert ran(code) == "-m pyspark.daemon"


def ran(code: str) -> str:
    """What a new interpreter says."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANGS_S
    ).stdout.strip()
