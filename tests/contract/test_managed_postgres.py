"""The schema of a Postgres whose superuser is the provider's: applied by a role that may create
roles and owns the database, and no more."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.contract.conftest import PASSWORDS, a_server
from tideline.control_plane import migrate

ROLE, PASSWORD, DATABASE = "installer", "open", "managed"


@pytest.fixture(scope="module")
def installer() -> Iterator[str]:
    """Its connection string, to a server that has seen nothing of Tideline."""
    with a_server("tideline-managed-") as server:
        server.start()
        with psycopg.connect(server.dsn, autocommit=True) as superuser:
            superuser.execute(f"CREATE ROLE {ROLE} LOGIN CREATEROLE PASSWORD '{PASSWORD}'".encode())
            superuser.execute(f"CREATE DATABASE {DATABASE} OWNER {ROLE}".encode())
        yield make_conninfo(server.dsn, user=ROLE, password=PASSWORD, dbname=DATABASE)


def test_a_role_that_may_create_roles_applies_the_schema_and_again(installer: str) -> None:
    for _ in range(2):
        migrate.apply(installer)
        migrate.provision_roles(installer, PASSWORDS)
        assert migrate.state(installer).up_to_date


@pytest.mark.parametrize("role", PASSWORDS)
def test_the_login_roles_come_in_and_call_their_functions(installer: str, role: str) -> None:
    migrate.apply(installer)
    migrate.provision_roles(installer, PASSWORDS)
    with psycopg.connect(make_conninfo(installer, user=role, password=PASSWORDS[role])) as login:
        assert login.execute(
            "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
        ).fetchone() == (False,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            login.execute("SELECT 1 FROM tideline.logs")
