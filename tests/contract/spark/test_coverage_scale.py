"""The benchmark's question at a small scale: both ways know the truth."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.coverage import by_duckdb, by_spark, generate


def test_spark_and_duckdb_answer_what_is_true(spark: SparkSession, tmp_path: Path) -> None:
    fleet = generate(tmp_path / "fleet", partitions=27, segments=600)
    assert len(set(fleet.truth.values())) > 4
    assert by_spark(spark, fleet) == fleet.truth
    assert by_duckdb(fleet, threads=2) == fleet.truth
