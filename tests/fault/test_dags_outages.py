"""A store away: the task says which and where, and the run comes to success by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.airflow_harness import airflow_of, failed_with, no_run_left
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


@dataclass(frozen=True)
class Outage:
    """Programs to kill, and what a task must say meanwhile."""

    programs: tuple[str, ...]
    job_says: tuple[str, ...]
    wave_says: tuple[str, ...] = ()
    """Empty: no wave meets this outage."""


def outages(stack: Stack) -> list[Outage]:
    postgres = stack.endpoints.postgres_dsn("worker").rpartition("@")[2].partition("/")[0]
    broker = stack.endpoints.brokers[1]
    s3 = stack.endpoints.s3.url
    return [
        Outage(
            ("postgres",),
            ("Postgres", f"port {postgres.rpartition(':')[2]}"),
            ("Postgres did not answer", f"Postgres at {postgres}"),
        ),
        Outage(("s3",), ("S3 is away", s3)),
        Outage(
            tuple(f"kafka-{node}" for node in stack.endpoints.brokers),
            ("Kafka is away: no broker answers", broker),
            ("no broker answers", broker),
        ),
    ]


def test_each_store_away_is_named_by_a_job_and_by_a_wave_and_both_succeed_by_themselves(
    stack: Stack, api: AirflowApi
) -> None:
    coverage = ""
    for outage in outages(stack):
        with migration_case(stack, name="away", history=20) as case:
            with killed(stack, *outage.programs):
                coverage = running(api, coverage)
                wave = api.trigger(WAVE, topics=[case.topic]) if outage.wave_says else ""
                if wave:
                    failed_with(api, WAVE, wave, "check", outage.wave_says, index=0)
                failed_with(api, COVERAGE, coverage, "coverage", outage.job_says)
            if wave:
                assert api.ended(WAVE, wave, RUN_S) == "success"
                assert min(case.boundaries()) >= 0
    assert api.ended(COVERAGE, coverage, RUN_S) == "success"


def running(api: AirflowApi, run: str) -> str:
    """A run of coverage that has not ended: ``run``, or a new one when that has succeeded."""
    state = api.run(COVERAGE, run)["state"] if run else "success"
    assert state != "failed"
    return api.trigger(COVERAGE) if state == "success" else run


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
        says = (f"Temporal at {stack.endpoints.temporal}", "the next try joins it")
        failed_with(api, WAVE, wave, "migrate", says, index=0)
    stop.release()
    assert api.ended(WAVE, wave, RUN_S) == "success"
    assert api.value(WAVE, wave, "migrate", 0)["boundaries"] == {"0": case.boundaries()[0]}
