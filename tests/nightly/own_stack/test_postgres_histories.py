"""Postgres is promoted without a loss, promoted with one, and rolled back, under live clients
(docs/restore.md)."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import HOMES_VARIABLE
from tests.harness import Case, Command, create_topics, id_of, migration_case
from tests.support.waiting import HANGS_S, Wait, flushed, until
from tests.two_servers import Role, TwoServers, high_watermarks, serving, two_servers
from tideline.demo.ledger import Ledger
from tideline.demo.rehearsal import leave_empty
from tideline.errors import ExitCode
from tideline.object_store.client import ObjectStoreClient
from tideline.ownership import fleet_position
from tideline.settings import ObjectStoreSettings
from tideline.stack import Stack
from tideline.stack.credentials import SUPERUSER

PROMOTION_S = 60.0
"""From a promotion to the first acknowledgement, at most."""
PATIENT = {"delivery.timeout.ms": 900_000}
"""A rebuild watches for a while that nobody lives."""


@pytest.fixture(scope="module")
def stack(request: pytest.FixtureRequest) -> Iterator[TwoServers]:
    process = os.environ.get("PYTEST_XDIST_WORKER", "one")
    home = Path(os.environ[HOMES_VARIABLE]) / f"{process}-histories"
    home.mkdir(mode=0o755)
    try:
        with two_servers(home) as found:
            yield found
    finally:
        (Stack.take_down if request.session.testsfailed else Stack.purge)(home)


@contextmanager
def classic_under_load(stack: TwoServers) -> Iterator[Case]:
    with migration_case(stack, name="classic", history=0) as case:
        load(case)
        yield case


@contextmanager
def hybrid_under_load(stack: TwoServers) -> Iterator[Case]:
    """A topic with both sides of B0."""
    with migration_case(stack, name="hybrid") as case:
        load(case)
        case.trigger()
        case.until_ready()
        case.until_acknowledged(20)
        yield case


@contextmanager
def born_under_load(stack: TwoServers) -> Iterator[Case]:
    """A topic that was born diskless."""
    bootstrap = stack.endpoints.gateway_bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    name, partitions = f"born-{time.monotonic_ns() % 1_000_000}", 2
    new = NewTopic(name, partitions, 1, config={"diskless.enable": "true"})
    create_topics(admin, new)
    case = Case(stack, name, partitions, id_of(admin, name), Ledger(), admin, bootstrap)
    try:
        load(case)
        yield case
    finally:
        case.stop()


def load(case: Case) -> None:
    case.produce(**PATIENT)
    case.consume()
    case.until_acknowledged(20)


def test_a_promotion_that_lost_nothing_is_gone_along_with_in_the_middle_of_traffic(
    stack: TwoServers,
) -> None:
    stack.begin_to_follow(synchronous=True)
    with serving(stack) as (gateway, worker), hybrid_under_load(stack) as case:
        until("the fleet to have seen that commits wait", lambda: fleet_knows_of_standby(stack))
        stack.primary.kill()
        killed = time.monotonic()
        until("produces to wait", lambda: gateway.metric("inkless_wal_buffered_bytes") > 0)
        until("the lease to lapse", lambda: not gateway.metric("inkless_gateway_lease_valid"))
        promoted = time.monotonic()  # before: it is over before it is told
        wait, had = Wait("answers after the promotion", PROMOTION_S), case.ledger.counts()[0]
        stack.promote()
        while case.ledger.counts()[0] < had + 80:
            wait.check()
            wait.pause()
        told = [ack for ack in case.ledger.acknowledgements(0) if ack.at > killed]
        late = [ack for ack in told if ack.at > promoted]
        waited = [ack for ack in late if ack.at - ack.latency_ms / 1000 < promoted]
        assert len(waited) > 1, "no produce waited for the promotion"
        first = min(ack.at for ack in late) - promoted
        print(f"{len(waited)} records waited; {first:.1f} s from the promotion to the first answer")
        assert first < PROMOTION_S * wait.slowness
        until("the worker to go along", lambda: worker.metric("tideline_postgres_timeline") > 1)
        until("the gateway to go along", lambda: gateway.said("tracking.promotion_adopted"))
        assert gateway.runs
        assert worker.runs
        assert not gateway.said("tracking.stopped")
        case.settle()


def fleet_knows_of_standby(stack: TwoServers) -> bool:
    """What lies in the bucket was seen where commits waited; or nothing lies there yet."""
    settings = ObjectStoreSettings.of(stack.environment("worker"))
    position = fleet_position(ObjectStoreClient(settings), settings)
    return position is None or position.waits_for_standby


def test_a_promotion_that_lost_commits_stops_tracked_topics_until_a_rebuild_brings_them_back(
    stack: TwoServers,
) -> None:
    stack.begin_to_follow(synchronous=False)
    with under_load(stack) as (roles, classic, tracked):
        stack.let_standby_fall_behind()
        for case in tracked:
            case.until_acknowledged(40)
        had = ends(stack, tracked)
        stack.primary.kill()
        shutil.rmtree(stack.primary.data)
        stack.promote()
        assert_behind(ends(stack, tracked), had)
        tracked_traffic_stops(roles)
        everybody_refuses(stack, roles, classic, tracked)
        rebuild(stack, tracked)
        clients_go_on(roles, tracked)


def test_a_volume_that_was_rolled_back_stops_tracked_topics_until_a_rebuild_brings_them_back(
    stack: TwoServers,
) -> None:
    """System identifier and timeline stay the same."""
    server = stack.primary
    with under_load(stack) as (roles, classic, tracked):
        server.stop()
        copy = server.copy_volume()
        server.start(fsync="on")
        for case in tracked:
            case.until_acknowledged(40)
        had, who = ends(stack, tracked), stack.identity()
        server.stop()
        server.roll_back(copy)
        server.start(fsync="on")
        assert stack.identity() == who
        assert_behind(ends(stack, tracked), had)
        tracked_traffic_stops(roles)
        everybody_refuses(stack, roles, classic, tracked)
        rebuild(stack, tracked)
        clients_go_on(roles, tracked)


@contextmanager
def under_load(stack: TwoServers) -> Iterator[tuple[tuple[Role, Role], Case, list[Case]]]:
    """Gateway and worker; a classic topic; one that is hybrid and one that was born diskless."""
    with ExitStack() as held:
        roles = held.enter_context(serving(stack))
        tracked = [held.enter_context(made(stack)) for made in (hybrid_under_load, born_under_load)]
        yield roles, held.enter_context(classic_under_load(stack)), tracked


def ends(stack: TwoServers, cases: Sequence[Case]) -> dict[tuple[str, int], int]:
    return high_watermarks(stack.primary, [case.topic for case in cases])


def assert_behind(now: dict[tuple[str, int], int], had: dict[tuple[str, int], int]) -> None:
    """Of each log commits are missing."""
    print(f"high watermarks {had} became {now}")
    assert now.keys() == had.keys()
    assert all(now[log] < had[log] for log in had)


def tracked_traffic_stops(roles: tuple[Role, Role]) -> None:
    gateway, _ = roles
    stopped = "inkless_gateway_tracked_traffic_stopped"
    until("tracked traffic to stop", lambda: gateway.metric(stopped))


def everybody_refuses(
    stack: TwoServers, roles: tuple[Role, Role], classic: Case, tracked: Sequence[Case]
) -> None:
    """Gateway, worker and jobs, those that run and those that are started again. Clients of a
    classic topic notice nothing for as long as the gateway runs."""
    gateway, worker = roles
    assert {told(case) for case in tracked} == {KafkaError.KAFKA_STORAGE_ERROR}
    assert worker.ended() == ExitCode.REFUSED
    jobs = {
        name: Command(stack, [], module=f"spark.{name}", role="jobs")
        for name in ("gc", "retention", "tiering")
    }
    worker.start()
    classic.until_acknowledged(20)
    classic.settle()
    gateway.stop()
    gateway.start()
    for name, job in jobs.items():
        assert job.wait(HANGS_S) == ExitCode.REFUSED, (name, job.output())
        assert re.search("has not got beat|was promoted from|was rolled back", job.output()), (
            job.output()
        )
    for role in roles:
        assert role.ended() == ExitCode.REFUSED


def told(case: Case) -> int:
    """How a producer that does not try again is answered."""
    codes: list[int] = []
    producer = Producer({"bootstrap.servers": case.bootstrap, "message.send.max.retries": 0})
    producer.produce(case.topic, b"", partition=0, on_delivery=lambda error, _: codes.append(
        error.code() if error else KafkaError.NO_ERROR))  # fmt: skip
    flushed(producer, 60)
    return codes[0]


def rebuild(stack: TwoServers, tracked: Sequence[Case]) -> None:
    """``tideline rebuild``: the report, then it is written. What was under way and acknowledged to
    nobody is sent again."""
    report = rebuilt(stack)
    lost = {log["topic"] for log in report["logs"] if log["behind"] > 0}
    assert {case.topic for case in tracked} <= lost
    written = rebuilt(stack, "--write", "--reason", "a test")
    assert {log["verdict"] for log in written["logs"]} == {"whole"}
    for case in tracked:
        leave_empty(written, case.topic, case.ledger)


def rebuilt(stack: TwoServers, *arguments: str) -> dict[str, Any]:
    """What it says, when all is well."""
    dsn = stack.endpoints.postgres_dsn(SUPERUSER)
    run = Command(stack, ["rebuild", "-o", "json", *arguments], TIDELINE_REBUILD_POSTGRES_DSN=dsn)
    code = run.wait(HANGS_S)
    assert code == ExitCode.OK, run.output()
    said: dict[str, Any] = json.loads(run.answer())
    return said


def clients_go_on(roles: Sequence[Role], tracked: Sequence[Case]) -> None:
    """What was acknowledged is where it was told to be, and new records come behind it."""
    for role in roles:
        role.start()
    for case in tracked:
        case.until_acknowledged(20)
        case.settle()
