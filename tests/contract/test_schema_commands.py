"""``tideline db`` on a Postgres that has nothing, the schema, another version's functions, and a
later version's migration."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from tests.contract.conftest import PASSWORDS, Database, PostgresServer, a_server
from tests.contract.schema import new_database
from tideline.cli.app import app
from tideline.control_plane import connect
from tideline.control_plane.migrate import has_this_versions_schema, rights_of, schema_directory
from tideline.control_plane.server_probe import probe
from tideline.errors import RefusedError


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One server has one installation: the tests' own has many databases."""
    with a_server("tideline-schema-") as found:
        found.start()
        yield found


@pytest.fixture
def empty(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with new_database(server) as (_, dsn):
        monkeypatch.setenv("TIDELINE_SCHEMA_POSTGRES_DSN", dsn)
        set_passwords(monkeypatch)
        yield dsn


@pytest.fixture
def administered(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    """A server as managed ones are: its administrator is no superuser. It logs statements."""
    with a_server("tideline-administered-") as server:
        server.start(log_statement="all")
        with psycopg.connect(server.dsn, autocommit=True) as superuser:
            superuser.execute("CREATE ROLE administrator LOGIN CREATEROLE PASSWORD 'secret'")
            superuser.execute("CREATE DATABASE tideline OWNER administrator")
        monkeypatch.setenv(
            "TIDELINE_SCHEMA_POSTGRES_DSN",
            make_conninfo(server.dsn, user="administrator", password="secret", dbname="tideline"),
        )
        set_passwords(monkeypatch)
        yield server


def set_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    for role, password in PASSWORDS.items():
        short = role.removeprefix("tideline_")
        if short == "gateway_1":
            monkeypatch.setenv("TIDELINE_SCHEMA_GATEWAY_PASSWORDS", f"1={password}")
        else:
            monkeypatch.setenv(f"TIDELINE_SCHEMA_{short.upper()}_PASSWORD", password)


def db(command: str) -> tuple[int, dict[str, object]]:
    done = CliRunner().invoke(app, ["db", command, "-o", "json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, json.loads(done.stdout)


def test_an_empty_database_is_brought_up_to_date_once(empty: str) -> None:
    code, found = db("check")
    assert (code, found["up_to_date"]) == (1, False)
    code, made = db("migrate")
    assert code == 0
    assert made["applied"] == found["pending"] != []
    assert made["roles"] == ["tideline_gateway_1", "tideline_jobs", "tideline_worker"]
    assert db("check") == (
        0,
        {"up_to_date": True, "pending": [], "newer": [], "functions_agree": True},
    )
    assert db("migrate")[1] == {
        "applied": [],
        "functions_replaced": False,
        "roles": made["roles"],
    }


def test_functions_of_another_version_are_told_and_replaced(empty: str) -> None:
    db("migrate")
    with psycopg.connect(empty) as connection:
        connection.execute("COMMENT ON SCHEMA tideline IS 'functions sha256 of before'")
    code, found = db("check")
    assert (code, found["pending"], found["functions_agree"]) == (1, [], False)
    assert db("migrate")[1]["functions_replaced"]
    assert db("check")[0] == 0


def test_a_later_version_is_told_and_refused(empty: str) -> None:
    db("migrate")
    with psycopg.connect(empty) as connection:
        connection.execute(
            "INSERT INTO tideline._yoyo_migration (migration_hash, migration_id) "
            "VALUES ('x', 'V99__Later')"
        )
    code, found = db("check")
    assert (code, found["newer"]) == (1, ["V99__Later"])
    with pytest.raises(RefusedError, match="V99__Later, which this version"):
        db("migrate")


async def test_who_may_create_roles_needs_no_more_and_no_log_has_the_passwords(
    administered: PostgresServer,
) -> None:
    assert db("migrate")[0] == 0
    code, again = db("migrate")
    assert (code, again["applied"]) == (0, [])
    assert db("check")[0] == 0
    database = Database(make_conninfo(administered.dsn, dbname="tideline"))
    for role in PASSWORDS:
        async with connect(database.settings(role), application_name="test") as plane:
            await plane.identity()
    logged = administered.data.with_name("postgres.log").read_text()
    assert "ALTER ROLE" in logged
    assert [password for password in PASSWORDS.values() if password in logged] == []


async def test_a_login_role_hears_of_a_migration_that_changes_no_function(
    database: Database, tmp_path: Path
) -> None:
    later = tmp_path / "postgres"
    shutil.copytree(schema_directory(), later)
    (later / "migrations" / "V99__Add_an_index.sql").write_text("SELECT 1;")
    async with await psycopg.AsyncConnection.connect(
        database.as_role("tideline_worker")
    ) as connection:
        assert await has_this_versions_schema(connection)
        assert not await has_this_versions_schema(connection, later)


async def test_the_probe_tells_whose_rights_it_has(database: Database) -> None:
    for role in PASSWORDS:
        found = await probe(database.settings(role), "test")
        assert (found.user, found.rights) == (role, (rights_of(role),))


def test_a_run_that_was_killed_holds_up_no_later_one(empty: str) -> None:
    """It has left its row in yoyo's table of locks, with the number of a process."""
    db("migrate")
    with psycopg.connect(empty, options="-c search_path=tideline") as connection:
        connection.execute(
            "INSERT INTO yoyo_lock (locked, ctime, pid) VALUES (1, clock_timestamp(), 4194304)"
        )
    code, made = db("migrate")
    assert (code, made["applied"]) == (0, [])
