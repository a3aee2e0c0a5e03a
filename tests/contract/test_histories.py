"""A Postgres that may have lost commits is told apart from one that has not."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.contract.conftest import PASSWORDS, Database, PostgresServer
from tideline.control_plane import ControlPlane, connect
from tideline.control_plane.migrate import apply, provision_roles
from tideline.errors import TidelineError


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may promote."""
    directory = Path(tempfile.mkdtemp(prefix="tideline-contract-"))
    server = PostgresServer(directory)
    try:
        server.start()
        apply(server.dsn)
        provision_roles(server.dsn, PASSWORDS)
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


async def identity_once_it_answers(plane: ControlPlane) -> tuple[str, int]:
    async with asyncio.timeout(10):
        while True:
            try:
                return await plane.identity()
            except TidelineError:
                await asyncio.sleep(0.05)


async def test_a_promoted_standby_is_another_history_of_the_same_system(
    own_server: PostgresServer,
) -> None:
    """Schedule 16: what gateways pin changes by a failover, and not by a crash."""
    database = Database(own_server.dsn)
    async with connect(database.settings("tideline_gateway"), application_name="test") as plane:
        system, timeline = await plane.identity()
        own_server.stop()
        own_server.start()
        assert await identity_once_it_answers(plane) == (system, timeline)
        own_server.stop()
        own_server.become_standby()
        own_server.start()
        with pytest.raises(TidelineError):
            await plane.identity()
        with psycopg.connect(own_server.dsn, autocommit=True) as admin:
            admin.execute("SELECT pg_promote()")
        assert await identity_once_it_answers(plane) == (system, timeline + 1)


async def test_a_server_that_may_lose_commits_in_a_crash_is_named(
    control_plane: ControlPlane,
) -> None:
    """Schedule 16: the servers of these tests run without fsync, and preflight hears of it."""
    found = await control_plane.check_synchronous_commit()
    assert not found
    assert found.settings["synchronous_commit"] == "on", "our own connections always wait"
    assert "fsync or full_page_writes is off" in found.explanation
