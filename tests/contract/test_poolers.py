"""A pooler in transaction mode is noticed before anything is trusted to it; one in session mode
that passes on what a connection is started with is none of Tideline's business."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.contract.conftest import Database, PostgresServer
from tests.contract.pooler import Pooler, pooling
from tests.contract.tiering import jobs_settings
from tideline.control_plane import connect
from tideline.control_plane.calls import SERVER_IDENTITY
from tideline.control_plane.errors import UnfitSession
from tideline.control_plane.pool import JobsConnection
from tideline.migration import doctor
from tideline.rebuild.postgres import RebuildPostgres
from tideline.settings import ControlPlaneSettings

POOLERS = {
    "drops options": {},
    "lends by turns": {"passes_options": True, "newest_first": False},
    "lends by turns of two": {"passes_options": True, "newest_first": False, "servers": 2},
    "lends the newest": {"passes_options": True},
    "has one": {"passes_options": True, "servers": 1},
    "by session, drops options": {"by_transaction": False},
}
SAYS = r"Postgres at 127\.0\.0\.1:\d+: .*a pooler in transaction mode.*in session mode"


def through(database: Database, pooler: Pooler) -> ControlPlaneSettings:
    dsn = make_conninfo(database.dsn, host="127.0.0.1", port=pooler.port, sslmode="disable")
    return Database(dsn).settings(postgres_connect_timeout_ms=2_000)


@pytest.fixture
def port(postgres_server: PostgresServer) -> int:
    return postgres_server.port


@pytest.mark.parametrize("kind", POOLERS)
async def test_a_pooler_that_changes_sessions_is_named_at_the_first_call(
    database: Database, port: int, kind: str
) -> None:
    async with pooling(Pooler(port, **cast("dict[str, Any]", POOLERS[kind]))) as pooler:
        settings = through(database, pooler)
        with pytest.raises(UnfitSession, match=SAYS):
            await doctor._postgres(cast("Any", SimpleNamespace(settings=settings)))
        async with connect(settings, application_name="pooled") as plane:
            with pytest.raises(UnfitSession, match=SAYS):
                await plane.identity()


async def test_a_job_notices_it_too(database: Database, port: int) -> None:
    async with pooling(Pooler(port)) as pooler:
        through_it = Database(through(database, pooler).postgres_dsn.get_secret_value())
        jobs = JobsConnection(jobs_settings(through_it, None), "pooled")
        with pytest.raises(UnfitSession, match=SAYS):
            await asyncio.to_thread(jobs.call, SERVER_IDENTITY, None, None)


async def test_a_rebuild_notices_it_at_each_call(database: Database, port: int) -> None:
    async with pooling(Pooler(port)) as pooler:
        rebuild = RebuildPostgres(through(database, pooler))
        for _ in range(2):
            with pytest.raises(UnfitSession, match=SAYS):
                await asyncio.to_thread(rebuild.identity)


async def test_one_in_session_mode_is_no_hindrance(database: Database, port: int) -> None:
    async with (
        pooling(Pooler(port, by_transaction=False, passes_options=True)) as pooler,
        connect(through(database, pooler), application_name="pooled") as plane,
    ):
        assert await plane.list_gateways() == []


@pytest.fixture
def role(postgres_server: PostgresServer) -> Iterator[str]:
    name = f"unfit_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_server.dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN SUPERUSER").format(sql.Identifier(name)))
        yield name
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.mark.parametrize(
    ("name", "value"), [("transaction_timeout", "1min"), ("session_replication_role", "replica")]
)
async def test_what_a_session_cannot_be_started_with_is_looked_at(
    database: Database, role: str, name: str, value: str
) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as admin:
        change = sql.SQL("ALTER ROLE {} SET {} = {}")
        admin.execute(change.format(sql.Identifier(role), sql.Identifier(name), value))
    settings = Database(make_conninfo(database.dsn, user=role)).settings()
    async with connect(settings, application_name="unfit") as plane:
        with pytest.raises(UnfitSession, match=f"{name} is .* RESET {name}"):
            await plane.identity()
