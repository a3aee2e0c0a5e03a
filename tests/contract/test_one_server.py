"""One Postgres server has one installation, and its database opens to nobody else's login."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from tests.contract.conftest import PASSWORDS, PostgresServer, a_server, create_database
from tideline.cli.app import app
from tideline.control_plane.migrate import apply, provision_roles
from tideline.errors import ExitCode, RefusedError

ROLES = sorted(PASSWORDS)


@dataclass
class Site:
    """A server with an installation in database ``first``, and an empty database ``second``."""

    server: PostgresServer
    first: str
    second: str

    def login(self, role: str, database: str, password: str | None = None) -> str:
        """As ``role``: the database that opens."""
        dsn = make_conninfo(
            self.server.dsn, dbname=database, user=role, password=password or PASSWORDS[role]
        )
        with psycopg.connect(dsn) as connection:
            (found,) = connection.execute("SELECT current_database()").fetchone() or ("",)
            return str(found)

    def drop(self, name: str) -> None:
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with a_server("tideline-one-") as found:
        found.start()
        yield found


@pytest.fixture
def site(server: PostgresServer) -> Iterator[Site]:
    first, second = (create_database(server, name) for name in ("first", "second"))
    apply(first)
    provision_roles(first, PASSWORDS)
    made = Site(server, first, second)
    yield made
    with psycopg.connect(server.dsn) as connection:
        left = connection.execute(
            "SELECT datname FROM pg_database WHERE datname IN ('first', 'second', 'copy')"
        ).fetchall()
    for (name,) in left:
        made.drop(str(name))


def migrate(dsn: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    monkeypatch.setenv("TIDELINE_SCHEMA_POSTGRES_DSN", dsn)
    monkeypatch.setenv("TIDELINE_SCHEMA_GATEWAY_PASSWORDS", "1=another")
    monkeypatch.setenv("TIDELINE_SCHEMA_WORKER_PASSWORD", "another")
    monkeypatch.setenv("TIDELINE_SCHEMA_JOBS_PASSWORD", "another")
    done = CliRunner().invoke(app, ["db", "migrate"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        assert isinstance(done.exception, RefusedError)
        return done.exception.exit_code, str(done.exception)
    return done.exit_code, done.output


def test_a_second_installation_is_refused_and_the_first_is_undisturbed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, why = migrate(site.second, monkeypatch)
    assert code == ExitCode.REFUSED
    assert "database first of this server has another installation" in why
    assert "a Postgres server of its own, or drop first" in why
    with pytest.raises(RefusedError, match="one server has one installation"):
        provision_roles(site.second, {"tideline_worker": "another"})
    assert [site.login(role, "first") for role in ROLES] == ["first"] * len(ROLES)
    with psycopg.connect(site.second) as connection:
        assert connection.execute("SELECT to_regnamespace('tideline')").fetchone() == (None,)


def test_it_may_be_installed_when_the_other_one_is_gone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.drop("first")
    assert migrate(site.second, monkeypatch)[0] == 0
    assert site.login("tideline_worker", "second", "another") == "second"


def test_a_copy_of_the_same_installation_may_stand_beside_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup that was restored into a database of its own."""
    copy = create_database(site.server, "copy", "first")
    assert migrate(copy, monkeypatch)[0] == 0


def test_no_login_without_rights_comes_in(site: Site) -> None:
    with psycopg.connect(site.server.dsn, autocommit=True) as connection:
        connection.execute("CREATE ROLE stranger LOGIN PASSWORD 'open'")
    assert site.login("stranger", "second", "open") == "second"
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        site.login("stranger", "first", "open")


@pytest.mark.parametrize("role", ROLES)
def test_no_process_makes_temporary_tables(site: Site, role: str) -> None:
    dsn = make_conninfo(site.first, user=role, password=PASSWORDS[role])
    with psycopg.connect(dsn) as login, pytest.raises(psycopg.errors.InsufficientPrivilege):
        login.execute("CREATE TEMPORARY TABLE mine (n integer)")


@pytest.mark.parametrize("entry", ["x=secret", "1", "1=", "01=secret", "1=a,=secret", "-1=secret"])
def test_passwords_of_gateways_are_refused_by_place_and_never_shown(
    entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELINE_SCHEMA_POSTGRES_DSN", "host=127.0.0.1")
    monkeypatch.setenv("TIDELINE_SCHEMA_GATEWAY_PASSWORDS", entry)
    done = CliRunner().invoke(app, ["db", "check"])
    told = f"{done.output} {done.exception}"
    assert "write id=password" in told
    assert "secret" not in told
