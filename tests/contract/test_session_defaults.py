"""Whatever a database administrator has set for a server, a database or a role, a session of
Tideline holds what it was written for; what cannot be held is refused with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from tests.contract.conftest import PostgresServer, create_database
from tideline.control_plane import connect, migrate
from tideline.control_plane.session import SESSION
from tideline.errors import RefusedError
from tideline.settings import ControlPlaneSettings

DEFAULTS: dict[str, str] = {
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kolkata",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "client_encoding": "LATIN1",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "standard_conforming_strings": "off",
    "transform_null_equals": "on",
    "array_nulls": "off",
    "plpgsql.extra_errors": "all",
    "exit_on_error": "on",
    "row_security": "off",
    "synchronous_commit": "off",
    "statement_timeout": "1ms",
    "lock_timeout": "1ms",
    "idle_session_timeout": "1s",
    "idle_in_transaction_session_timeout": "1ms",
    "search_path": "nowhere",
    "check_function_bodies": "off",
    "quote_all_identifiers": "on",
}


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[str]:
    name = f"defaults_{uuid4().hex[:12]}"
    yield create_database(postgres_server, name)
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} (FORCE)").format(sql.Identifier(name)))


def set_for(dsn: str, whom: sql.Composable, defaults: dict[str, str]) -> None:
    with psycopg.connect(dsn, autocommit=True, options="-c default_transaction_read_only=off") as c:
        for name, value in defaults.items():
            change = sql.SQL("ALTER {} SET {} = {}")
            # A list of names is no string.
            given = sql.SQL(value) if "," in value else sql.Literal(value)
            c.execute(change.format(whom, sql.Identifier(name), given))


async def works(dsn: str) -> None:
    """What a gateway does first: it registers, and what it is told are times, durations, bytes."""
    settings = ControlPlaneSettings.model_validate({"postgres_dsn": SecretStr(dsn)})
    async with connect(settings, application_name="defaults") as plane:
        seen = await plane.identity()
        await plane.identity(seen)
        await plane.register_gateway(1, 1, uuid4(), "127.0.0.1:1", "zürich", 10_000)
        (gateway,) = await plane.list_gateways()
        assert gateway.version == "zürich"
        assert abs((datetime.now(UTC) - gateway.registered_at).total_seconds()) < 600
        durability = await plane.check_synchronous_commit()
        assert durability.settings["synchronous_commit"] == "on"


@pytest.mark.parametrize("name", DEFAULTS)
async def test_a_default_of_the_database_changes_nothing(database: str, name: str) -> None:
    set_for(database, sql.SQL("DATABASE {}").format(database_of(database)), {name: DEFAULTS[name]})
    migrate.apply(database)
    await works(database)


async def test_nor_do_all_of_them_together(database: str) -> None:
    set_for(database, sql.SQL("DATABASE {}").format(database_of(database)), DEFAULTS)
    migrate.apply(database)
    await works(database)


def means_what_it_says(dsn: str) -> None:
    with psycopg.connect(migrate.in_session(dsn), autocommit=True) as session:
        (row,) = session.execute("SELECT %s::text[], 'NULL'::text", [["a", None]])
        assert row == (["a", None], "NULL")
        # What the functions say is allowed in PL/pgSQL, and a refusal ends no connection.
        session.execute(
            "DO $$ DECLARE a int; BEGIN SELECT n INTO a FROM (VALUES (1), (2)) v (n); END $$"
        )
        with pytest.raises(psycopg.errors.DivisionByZero):
            session.execute("SELECT 1 / 0")
        session.execute("SELECT 1")


def test_no_setting_changes_what_a_statement_means(database: str) -> None:
    set_for(database, sql.SQL("DATABASE {}").format(database_of(database)), DEFAULTS)
    means_what_it_says(database)


def database_of(dsn: str) -> sql.Identifier:
    return sql.Identifier(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])


async def test_what_the_connection_string_says_itself_is_outweighed(database: str) -> None:
    migrate.apply(database)
    await works(make_conninfo(database, options="-c DateStyle=German -c synchronous_commit=off"))


def test_each_of_them_is_one_that_a_database_may_set_otherwise() -> None:
    assert SESSION.keys() <= DEFAULTS.keys()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_of_another_encoding_is_refused_with_a_remedy(
    postgres_server: PostgresServer, encoding: str
) -> None:
    name = f"encoding_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0".encode()
        )
    try:
        with pytest.raises(RefusedError, match=f"{name} has the encoding {encoding}.*UTF8"):
            migrate.apply(make_conninfo(postgres_server.dsn, dbname=name))
    finally:
        with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} (FORCE)".encode())
