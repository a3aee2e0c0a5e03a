"""What Postgres says of its room for connections, and what a process that starts makes of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from tests.contract.conftest import Database
from tests.contract.scenes import PostgresScene
from tests.contract.tiering import jobs_settings
from tests.support.waiting import until
from tideline.control_plane import connect
from tideline.control_plane.connections import check_connections
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.migrate import limit_connections
from tideline.domain.connections import ConnectionRoom
from tideline.errors import RefusedError

ROLE = "tideline_gateway_1"


@pytest.fixture
def limited(database: Database) -> Iterator[None]:
    """The gateways' role may have one connection too few for one gateway's lanes."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(f"ALTER ROLE {ROLE} CONNECTION LIMIT 5")
        yield
        connection.execute(f"ALTER ROLE {ROLE} CONNECTION LIMIT -1")


@pytest.mark.usefixtures("limited")
async def test_a_gateway_whose_role_may_not_connect_often_enough_is_refused(
    database: Database,
) -> None:
    settings = database.settings(ROLE)
    async with connect(settings, application_name="test") as plane:
        assert await plane.connection_room() == ConnectionRoom(60, 3, ROLE, 5)
        with pytest.raises(RefusedError, match="role tideline_gateway_1 may have 5 connections"):
            await check_connections(plane, settings, is_gateway=True)


async def test_a_sum_that_the_server_does_not_give_is_a_warning_with_its_parts(
    database: Database, postgres_scene: PostgresScene
) -> None:
    await postgres_scene.gateway()
    for tasks, warned in ((10, []), (60, ["1 gateway x 14 + 2 workers x 9 + 60 tasks x 1 are"])):
        settings = database.settings(ROLE, postgres_tasks=tasks)
        async with connect(settings, application_name="test") as plane:
            with capture_logs() as logs:
                await check_connections(plane, settings, is_gateway=True)
        # Others' background tasks of the same process may log meanwhile.
        said = [entry["why"] for entry in logs if entry["event"] == "connections_are_short"]
        assert [why[: len(part)] for why, part in zip(said, warned, strict=True)] == warned


JOBS = "tideline_jobs"


@pytest.fixture
def two_for_jobs(database: Database) -> Iterator[None]:
    """The jobs' role may have two connections."""
    limit_connections(database.dsn, JOBS, 2)
    yield
    limit_connections(database.dsn, JOBS, -1)


@pytest.mark.usefixtures("two_for_jobs")
def test_a_task_waits_for_its_turn_while_the_jobs_have_all_of_their_connections(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, tries = jobs_settings(database), list[str]()

    def connect(*arguments: Any, **named: Any) -> Any:
        tries.append(threading.current_thread().name)
        return open_connection(*arguments, **named)

    open_connection = psycopg.connect
    monkeypatch.setattr("tideline.control_plane.pool.psycopg.connect", connect)
    planes = [JobsControlPlane(settings, "turns-test") for _ in range(3)]
    with ThreadPoolExecutor(1, "third") as pool:
        for plane in planes[:2]:
            plane.identity()
        third = pool.submit(planes[2].identity)
        until("the third to be sent away twice", lambda: tries.count("third_0") >= 2)
        assert not third.done()
        with open_connection(database.dsn) as connection:
            query = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s"
            assert connection.execute(query, [JOBS]).fetchone() == (2,)
        planes[0].close()
        # Not where its log ends: others write meanwhile.
        until("the third to have its turn", third.done, 30)
        assert third.result().history_id == planes[1].identity().history_id
    for plane in planes[1:]:
        plane.close()
