"""What Postgres says of its room for connections, and what a process that starts makes of it."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from structlog.testing import capture_logs

from tests.contract.conftest import Database
from tests.contract.scenes import PostgresScene
from tideline.control_plane import connect
from tideline.control_plane.connections import check_connections
from tideline.domain.connections import ConnectionRoom
from tideline.errors import RefusedError

ROLE = "tideline_gateway"


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
        with pytest.raises(RefusedError, match="role tideline_gateway may have 5 connections"):
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
