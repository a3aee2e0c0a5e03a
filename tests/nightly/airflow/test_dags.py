"""Every DAG, run by Airflow itself: from its schedule or a trigger to success, and through the
absence of each store that it needs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import httpx
import psutil
import pytest

from tests.harness import Breakpoint, Case, killed, migration_case
from tests.nightly.airflow.harness import airflow_of, failed_with, no_run_left
from tests.tiering_topic import diskless_topic
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.demo.airflow_api import AirflowApi, AirflowRefused
from tideline.domain.migration import Phase
from tideline.settings import JobsSettings
from tideline.stack import Stack
from tideline.stack.ports import LOOPBACK
from tideline.stack.processes import family

pytestmark = pytest.mark.timeout(3600)

WAVE = "tideline_migration_wave"
JOBS = {
    "tideline_coverage": ("coverage",),
    "tideline_retention": ("retention",),
    "tideline_split": ("split",),
    "tideline_merge": ("merge",),
    "tideline_gc": ("gc",),
}
"""DAG: the tasks that meet a store."""
RUN_S = 240.0
"""Longer than any run stands still on a slow machine; one that goes on may take longer."""
THINKING_S = 2.0
TURNS = 2
"""How often a job may begin while another one waits for its turn."""


@pytest.fixture(scope="module")
def airflow(stack: Stack) -> Iterator[AirflowApi]:
    with airflow_of(stack) as found:
        yield found


@pytest.fixture
def api(airflow: AirflowApi) -> Iterator[AirflowApi]:
    with no_run_left(airflow):
        yield airflow


def run_by_schedule(api: AirflowApi, dag: str, kind: str, but: Collection[str] = ()) -> str:
    """The id of the first run that nobody triggered, and that is none of ``but``."""

    def found() -> str | None:
        runs = [r["dag_run_id"] for r in api.runs(dag) if r["run_type"] == kind]
        return next((run for run in reversed(runs) if run not in but), None)

    return api.until(f"a {kind} run of {dag}", found, RUN_S)


def known_runs(api: AirflowApi) -> set[str]:
    return {run["dag_run_id"] for dag in JOBS for run in api.runs(dag)}


class Person:
    """Says yes to a question that stands for a moment: Airflow tries a task again that is answered
    before its scheduler has seen it end."""

    def __init__(self, api: AirflowApi, run: str) -> None:
        self._api, self._run = api, run
        self._seen: dict[int, float] = {}

    def approved(self) -> bool:
        """Whether the answer has arrived; gives it when it is time."""
        asked = self._api.task(WAVE, self._run, "approve") or {}
        if asked.get("state") == "awaiting_input":
            since = self._seen.setdefault(asked["try_number"], time.monotonic())
            if time.monotonic() - since > THINKING_S:
                with suppress(AirflowRefused):
                    self._api.answer(WAVE, self._run, "approve", "Approve")
        return asked.get("state") == "success"


def returned(api: AirflowApi, dag: str, run: str, task: str) -> Any:
    assert api.ended(dag, run, RUN_S) == "success", api.tasks(dag, run)
    return api.value(dag, run, task)


def test_split_and_merge_run_once_in_a_while_without_work(api: AirflowApi) -> None:
    for job in ("split", "merge"):
        run = run_by_schedule(api, f"tideline_{job}", "scheduled")
        assert returned(api, f"tideline_{job}", run, job)["ok"]


def test_a_wave_goes_from_batch_to_batch_as_a_person_allows_and_ends_hybrid(
    stack: Stack, api: AirflowApi
) -> None:
    with migration_case(stack, name="wave") as one, migration_case(stack, name="wave") as two:
        first = api.trigger(
            WAVE, topics=[one.topic, two.topic], batch_size=1, approve_each_batch=True
        )
        api.until(
            "the question before the second batch",
            lambda: (api.task(WAVE, first, "approve") or {}).get("state") == "awaiting_input",
            RUN_S,
        )
        assert min(one.boundaries()) >= 0
        assert two.boundaries() in ([], [-1]), "no second batch without a person's word"
        api.until("the second batch", Person(api, first).approved, RUN_S)
        assert api.ended(WAVE, first, RUN_S) == "success"
        second = f"{first}__batch_2"
        assert api.ended(WAVE, second, RUN_S) == "success"
        outcome = api.value(WAVE, second, "migrate", 0)
        assert outcome["outcome"] == "hybrid"
        assert outcome["boundaries"] == {"0": two.boundaries()[0]}
        workflow = f"tideline/topic/{two.topic}/"
        page = unquote(api.links(WAVE, second, "migrate", 0)["Temporal UI"])
        assert page.startswith(stack.endpoints.temporal_ui), page
        assert workflow in page


def test_a_wave_stops_before_its_batch_when_a_check_fails_and_names_topic_check_and_remedy(
    stack: Stack, api: AirflowApi
) -> None:
    with migration_case(stack, name="good", history=0) as good:
        run = api.trigger(WAVE, topics=[good.topic, "no-such-topic"])
        assert api.ended(WAVE, run, RUN_S) == "failed"
        said = api.log(WAVE, run, "check", 1, index=1)
        assert "no-such-topic may not migrate" in said
        assert "topic_exists: topic 'no-such-topic' does not exist (check the spelling" in said
        migrations = [task for task in api.tasks(WAVE, run) if task["task_id"] == "migrate"]
        assert {task["state"] for task in migrations} == {"upstream_failed"}
        assert good.boundaries() in ([], [-1])


@dataclass(frozen=True)
class Outage:
    """Programs to kill, the jobs whose runs meet it, and what tasks must say meanwhile."""

    programs: tuple[str, ...]
    jobs: tuple[str, ...]
    """Triggered while it lasts."""
    jobs_say: tuple[str, ...]
    wave_says: tuple[str, ...] = ()
    """Empty: no wave meets this outage."""
    starts: str = ""
    """A DAG that starts by itself while it lasts, because there is work."""


def outages(stack: Stack) -> list[Outage]:
    """Each job meets one; how each fails for each is in integration/test_jobs_without_a_store."""
    postgres = stack.endpoints.postgres_dsn("worker").rpartition("@")[2].partition("/")[0]
    broker = stack.endpoints.brokers[1]
    return [
        Outage(
            ("s3",),
            ("tideline_coverage",),
            ("S3 is away", stack.endpoints.s3.url),
            starts="tideline_split",
        ),
        Outage(
            ("postgres",),
            ("tideline_gc",),
            ("Postgres", f"port {postgres.rpartition(':')[2]}"),
            ("Postgres did not answer", f"Postgres at {postgres}"),
        ),
        Outage(
            tuple(f"kafka-{node}" for node in stack.endpoints.brokers),
            ("tideline_retention",),
            ("Kafka is away: no broker answers", broker),
            ("no broker answers", broker),
        ),
    ]


def test_each_store_away_is_named_by_jobs_and_by_a_wave_and_all_succeed_by_themselves(
    stack: Stack, api: AirflowApi
) -> None:
    runs: dict[str, str] = {}
    with (
        migration_case(stack, name="away", history=20) as case,
        diskless_topic(stack) as aged,
        connect_jobs(JobsSettings.of(stack.environment("jobs")), application_name="test") as plane,
    ):
        aged.produce(6)
        known = known_runs(api)
        for outage in outages(stack):
            with killed(stack, *outage.programs):
                runs |= {dag: api.trigger(dag) for dag in outage.jobs}
                if dag := outage.starts:
                    plane.request_tiering(aged.name)
                    runs[dag] = run_by_schedule(api, dag, "asset_triggered", known)
                    assert failed_with(api, dag, runs[dag], JOBS[dag], outage.jobs_say)
                wave = api.trigger(WAVE, topics=[case.topic]) if outage.wave_says else ""
                if wave:
                    assert failed_with(api, WAVE, wave, ["check"], outage.wave_says, index=0)
                for dag in outage.jobs:
                    while not failed_with(api, dag, runs[dag], JOBS[dag], outage.jobs_say):
                        runs[dag] = api.trigger(dag)
            # Before the next store goes: an attempt that only meets that one, too, costs a JVM.
            if wave:
                assert api.ended(WAVE, wave, RUN_S) == "success"
                assert min(case.boundaries()) >= 0
            for dag in (*outage.jobs, *filter(None, [outage.starts])):
                assert all(returned(api, dag, runs[dag], task)["ok"] for task in JOBS[dag])
        # What was split is work for merge, which nobody starts either.
        dag = "tideline_merge"
        runs[dag] = run_by_schedule(api, dag, "asset_triggered", known)
        merged = returned(api, dag, runs[dag], "merge")["merge"]
        (event,) = api.asset_events(dag, runs[dag])
        assert event["extra"]["merge"]["segments"] == merged["segments"] > 0
        assert runs.keys() == JOBS.keys()
        api.until("all that was asked for to be merged", lambda: aged.rows_left() == 0, RUN_S)
        assert aged.read() == aged.records
    assert_turns(job_attempts(api))
    by_asset = run_by_schedule(api, WAVE, "asset_triggered")
    assert api.ended(WAVE, by_asset, RUN_S) == "success"
    batch = api.task(WAVE, by_asset, "batch")
    assert batch is not None
    assert batch["state"] == "skipped", "nothing is planned, so there is nothing to migrate"


@dataclass(frozen=True)
class Attempt:
    """Of a job, as Airflow recorded it."""

    dag: str
    scheduled: datetime
    """It could have begun."""
    began: datetime


def job_attempts(api: AirflowApi) -> list[Attempt]:
    """All that have begun, of every run."""
    return [
        Attempt(
            dag,
            datetime.fromisoformat(found["scheduled_when"]),
            datetime.fromisoformat(found["start_date"]),
        )
        for dag, tasks in JOBS.items()
        for run in api.runs(dag)
        for task in tasks
        for found in api.attempts(dag, run["dag_run_id"], task)
        if found["scheduled_when"] and found["start_date"]
    ]


def assert_turns(attempts: list[Attempt]) -> None:
    """However slow the machine is: while an attempt waits, no other job begins time and again."""
    for one in attempts:
        began = Counter(
            other.dag
            for other in attempts
            if other.dag != one.dag and one.scheduled < other.began < one.began
        )
        assert max(began.values(), default=0) <= TURNS, (one, began)


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
        assert failed_with(api, WAVE, wave, ["migrate"], says, index=0)
    stop.release()
    assert api.ended(WAVE, wave, RUN_S) == "success"
    assert api.value(WAVE, wave, "migrate", 0)["boundaries"] == {"0": case.boundaries()[0]}


def test_airflow_lists_the_provider(api: AirflowApi) -> None:
    assert "tideline" in api.providers()


def test_airflow_opens_nothing_beyond_loopback_and_wants_a_password(
    stack: Stack, api: AirflowApi
) -> None:
    running = Stack.attach(stack.home)
    airflow = [name for name in running.programs if name.startswith("airflow-")]
    listening = {address for name in airflow for address in listens(running.pid(name))}
    assert listening == {LOOPBACK}
    assert httpx.get(f"{api.url}/api/v2/dags", timeout=60).status_code == 401
    assert api.import_errors() == []


def listens(pid: int) -> set[str]:
    """Addresses at which a process and its children wait for connections."""
    found: set[str] = set()
    for process in family(pid):
        with suppress(psutil.NoSuchProcess):  # a child that has done its work
            found |= {
                connection.laddr.ip
                for connection in process.net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            }
    return found
