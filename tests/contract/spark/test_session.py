"""The session of the tests is the one that jobs have on one machine."""

from __future__ import annotations

from pyspark.sql import SparkSession

from spark.common.session import cores


def test_a_local_session_stays_on_loopback(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


def test_frames_are_cut_for_the_cores_unless_told_otherwise(spark: SparkSession) -> None:
    assert cores(spark) == 2
    assert cores(spark, 7) == 7
