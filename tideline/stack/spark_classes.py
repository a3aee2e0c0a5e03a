"""The classes that a Spark driver loads, as the JVM maps them: its start takes two thirds.

A class-data archive (JEP 350) of one JVM and of pyspark's jars as they are. It is a cache: a JVM
that cannot use it loads its classes from the jars, and says nothing of it. It cannot with a
directory on its class path that holds anything, such as that of ``SPARK_CONF_DIR``.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from tideline.stack.home import exclusive
from tideline.stack.kafka_classes import QUICK_START, SILENT
from tideline.stack.kafka_jars import libraries

MADE_WITHIN_S = 300
_WORK = """
import sys
from pyspark.sql import SparkSession, functions

spark = SparkSession.builder.master("local[2]").getOrCreate()
numbers = spark.range(1000).selectExpr("id % 7 AS k", "id AS v", "encode(string(id), 'utf-8') AS b")
sums = numbers.groupBy("k").agg(functions.sum("v").alias("s"), functions.max("b").alias("m"))
assert len(numbers.join(sums, "k").orderBy("v").collect()) == 1000
assert numbers.repartition(2).mapInArrow(lambda batches: batches, numbers.schema).count() == 1000
spark.createDataFrame([(1, b"x", "y")], "a int, b binary, c string").toPandas()
numbers.write.parquet(sys.argv[1])
assert spark.read.parquet(sys.argv[1]).count() == 1000
spark.stop()
"""
"""What jobs do most: frames with shuffles, Arrow to Python and back, files."""


def archive() -> Path:
    """Where that of this pyspark is, or would be."""
    return libraries().output / f"spark-{version('pyspark')}.jsa"


def driver_options() -> tuple[str, ...]:
    """Options of the JVM of a driver of seconds; with the archive if it is there."""
    found = archive()
    if not found.exists():
        return QUICK_START
    return (*QUICK_START, f"-XX:SharedArchiveFile={found}", "-Xshare:auto", SILENT)


def make_archive() -> None:
    """Run a driver of its own, and keep what it has loaded, if nobody has tried yet. Nothing is
    kept where it does not end well, or not in time; then drivers start as without."""
    wanted = archive()
    wanted.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(
        wanted.with_suffix(".lock"), 2 * MADE_WITHIN_S, f"another making of {wanted.name}"
    ):
        tried = wanted.with_suffix(".tried")
        if not wanted.exists() and not tried.exists():
            tried.touch()
            with contextlib.suppress(subprocess.TimeoutExpired):
                _make(wanted)


def _make(wanted: Path) -> None:
    with tempfile.TemporaryDirectory(dir=wanted.parent) as scratch:
        place = Path(scratch)
        made = place / wanted.name
        options = " ".join((*QUICK_START, SILENT, f"-XX:ArchiveClassesAtExit={made}"))
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": f'--driver-java-options "{options}" --conf spark.ui.enabled='
            "false --conf spark.driver.host=127.0.0.1 --conf spark.driver.bindAddress=127.0.0.1 "
            "pyspark-shell",
        }
        environment.pop("SPARK_CONF_DIR", None)
        # The JVM outlives the driver's Python and writes the archive then: the pipe is its, too.
        ended = subprocess.run(
            [sys.executable, "-c", _WORK, str(place / "parquet")],
            cwd=place, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, check=False, timeout=MADE_WITHIN_S,
        )  # fmt: skip
        wanted.with_suffix(".log").write_bytes(ended.stdout)
        if ended.returncode == 0 and made.exists():
            made.replace(wanted)
