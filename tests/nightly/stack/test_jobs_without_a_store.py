"""Each job where a store that it needs does not answer: it names the store and its address, and
ends with the exit code for that. How Airflow tries such a run again is in tests/nightly/airflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg.conninfo
import pytest

from spark.common.entry import Job, Outcome, failure_of
from spark.coverage.job import coverage
from spark.gc.job import gc
from spark.retention.job import retention
from spark.tiering.job import tiering
from tideline.errors import ExitCode
from tideline.settings import JobsSettings
from tideline.stack import Stack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS: dict[str, Callable[[Job], Outcome]] = {
    "coverage": coverage,
    "retention": retention,
    "tiering": tiering,
    "gc": gc,
}
NOBODY = "127.0.0.1:9"


def without(stack: Stack, store: str) -> JobsSettings:
    """The jobs' settings, with an address of ``store`` where nobody listens."""
    environment = stack.environment("jobs")
    dsn = environment["TIDELINE_JOBS_POSTGRES_DSN"]
    elsewhere = {
        "S3": {"TIDELINE_S3_ENDPOINT": f"http://{NOBODY}"},
        "Kafka": {"TIDELINE_KAFKA_BOOTSTRAP": NOBODY},
        "Postgres": {"TIDELINE_JOBS_POSTGRES_DSN": psycopg.conninfo.make_conninfo(dsn, port=9)},
    }
    return JobsSettings.of(environment | elsewhere[store])


@pytest.mark.parametrize("store", ["S3", "Kafka", "Postgres"])
@pytest.mark.parametrize("name", JOBS)
def test_a_job_names_the_store_that_is_away_and_its_address(
    stack: Stack, spark: SparkSession, name: str, store: str
) -> None:
    job = Job(name, without(stack, store))
    job.__dict__ |= {"spark": spark, "parallelism": 2}
    with pytest.raises(Exception, match=r"127\.0\.0\.1") as raised:
        JOBS[name](job)
    failure = failure_of(raised.value)
    assert failure is not None
    assert (failure.store, failure.exit_code) == (store, ExitCode.UNREACHABLE)
    assert ("port 9" if store == "Postgres" else NOBODY) in failure.message
