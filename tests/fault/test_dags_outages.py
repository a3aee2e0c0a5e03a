"""A store away: the task says which and where, and the run comes to success by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.airflow_harness import airflow_of, first_failure, no_run_left
from tests.harness import Breakpoint, Case, killed, migration_case
from tideline.airflow.rest import AirflowApi
from tideline.domain.migration import Phase
from tideline.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.fault, pytest.mark.timeout(900)]

WAVE = "tideline_migration_wave"
COVERAGE = "tideline_coverage"
RUN_S = 240.0
"""Seconds are enough on a quiet machine; a busy one is no failure."""


@pytest.fixture(scope="module")
def airflow(stack: Stack) -> Iterator[AirflowApi]:
    with airflow_of(stack) as found:
        yield found


@pytest.fixture
def api(airflow: AirflowApi) -> Iterator[AirflowApi]:
    with no_run_left(airflow):
        yield airflow


def named(log: str, store: str, *addresses: str) -> None:
    """The log of a failure says which store is away, and where it should be."""
    assert store in log, log[-3000:]
    assert any(address in log for address in addresses), log[-3000:]


def test_postgres_away_is_named_by_a_job_and_by_a_wave_and_both_recover(
    stack: Stack, api: AirflowApi
) -> None:
    where = stack.endpoints.postgres_dsn("worker").rpartition("@")[2].partition("/")[0]
    with migration_case(stack, name="away-postgres", history=20) as case:
        with killed(stack, "postgres"):
            coverage = api.trigger(COVERAGE)
            wave = api.trigger(WAVE, topics=[case.topic])
            named(first_failure(api, WAVE, wave, "check", 0), "Postgres", where)
            port = f"port {where.rpartition(':')[2]}"
            named(first_failure(api, COVERAGE, coverage, "coverage"), "Postgres", where, port)
        assert api.ended(COVERAGE, coverage, RUN_S) == "success"
        assert api.ended(WAVE, wave, RUN_S) == "success"
        case.until_crossed()


def test_kafka_away_is_named_by_a_job_and_by_a_wave_and_both_recover(
    stack: Stack, api: AirflowApi
) -> None:
    brokers = stack.endpoints.brokers
    with migration_case(stack, name="away-kafka", history=20) as case:
        with killed(stack, *(f"kafka-{node}" for node in brokers)):
            coverage = api.trigger(COVERAGE)
            wave = api.trigger(WAVE, topics=[case.topic])
            named(first_failure(api, WAVE, wave, "check", 0), "broker", *brokers.values())
            named(first_failure(api, COVERAGE, coverage, "coverage"), "Kafka", *brokers.values())
        assert api.ended(COVERAGE, coverage, RUN_S) == "success"
        assert api.ended(WAVE, wave, RUN_S) == "success"


def test_s3_away_is_named_by_a_job_and_it_recovers(stack: Stack, api: AirflowApi) -> None:
    with killed(stack, "s3"):
        coverage = api.trigger(COVERAGE)
        said = first_failure(api, COVERAGE, coverage, "coverage")
    named(said, "S3", stack.endpoints.s3.url.removeprefix("http://"))
    assert api.ended(COVERAGE, coverage, RUN_S) == "success"


@pytest.fixture
def held(stack: Stack) -> Iterator[tuple[Case, Breakpoint]]:
    """A topic whose migration will stop before its transactions are drained."""
    with migration_case(stack, name="held", history=20) as case:
        stop = Breakpoint(case.superuser_dsn, case.topic_id, Phase.DRAIN_TRANSACTIONS)
        try:
            yield case, stop
        finally:
            stop.release()


def test_temporal_away_and_a_triggerer_killed_in_the_middle_of_a_migration_delay_the_wave_only(
    stack: Stack, api: AirflowApi, held: tuple[Case, Breakpoint]
) -> None:
    case, stop = held
    wave = api.trigger(WAVE, topics=[case.topic])
    stop.wait_until_hit(RUN_S)
    api.until(
        "the wave to wait in the triggerer",
        lambda: (api.task(WAVE, wave, "migrate", 0) or {}).get("state") == "deferred",
        RUN_S,
    )
    with killed(stack, "temporal"):
        Stack.attach(stack.home).kill("airflow-triggerer")
        said = first_failure(api, WAVE, wave, "migrate", 0)
        named(said, "Temporal at", stack.endpoints.temporal)
        assert "the next try joins it" in said
    stop.release()
    assert api.ended(WAVE, wave, RUN_S) == "success"
    assert api.value(WAVE, wave, "migrate", 0)["boundaries"] == {"0": case.boundaries()[0]}
