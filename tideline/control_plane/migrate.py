"""Applies the SQL migrations of ``infra/postgres`` and provisions the login roles.

Plain SQL, versioned by file name, applied once each and in order by yoyo
(docs/decisions/0003-plain-sql-migrations.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

import psycopg
import yoyo
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tideline.control_plane.errors import translate
from tideline.errors import RefusedError, UsageError

LOGIN_ROLES: Mapping[str, str] = {
    "tideline_gateway": "tideline_gateway_rights",
    "tideline_worker": "tideline_worker_rights",
    "tideline_jobs": "tideline_jobs_rights",
}
"""Login role: the group role whose rights it has."""

LOCK_TIMEOUT_S = 60
"""How long one migration run waits for another to end."""


def migrations_directory() -> Path:
    """``infra/postgres`` beside the packages: in the source tree and in an installed wheel.

    Raises :class:`RefusedError` when the installation holds no migrations.
    """
    directory = Path(__file__).resolve().parents[2] / "infra" / "postgres"
    if not (directory / "roles.sql").is_file():
        raise RefusedError(
            f"{directory} holds no migrations: install tideline from its wheel or source tree"
        )
    return directory


def apply(dsn: str) -> None:
    """Bring the database of ``dsn`` to the newest schema. Safe to repeat and to run twice at once.

    ``dsn`` must be allowed to create roles and a schema. Raises ``ControlPlaneUnavailable`` when
    Postgres does not answer, ``ControlPlaneFailure`` when a migration fails (it is rolled back).
    """
    directory = migrations_directory()
    try:
        with psycopg.connect(dsn) as connection:
            # Serialises concurrent runs while roles are created; yoyo locks the rest.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('tideline roles'))")
            connection.execute((directory / "roles.sql").read_bytes())
        migrations = yoyo.read_migrations(str(directory / "migrations"))
        with yoyo.get_backend(_yoyo_uri(dsn)) as backend, backend.lock(timeout=LOCK_TIMEOUT_S):
            backend.apply_migrations(backend.to_apply(_in_order(migrations)))
    except psycopg.Error as error:
        raise translate(error) from error


def provision_roles(dsn: str, passwords: Mapping[str, str]) -> None:
    """Create or update the login roles and their passwords.

    ``passwords``: any of :data:`LOGIN_ROLES` to its password. Raises :class:`UsageError` for
    another name.
    """
    unknown = sorted(set(passwords) - set(LOGIN_ROLES))
    if unknown:
        raise UsageError(f"unknown role {unknown[0]}: choose from {', '.join(LOGIN_ROLES)}")
    try:
        with psycopg.connect(dsn) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('tideline roles'))")
            for role, password in passwords.items():
                exists = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role])
                verb = sql.SQL("ALTER" if exists.fetchone() else "CREATE")
                connection.execute(
                    sql.SQL("{} ROLE {} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD {}")
                    .format(verb, sql.Identifier(role), sql.Literal(password))
                )  # fmt: skip
                connection.execute(
                    sql.SQL("GRANT {} TO {}").format(
                        sql.Identifier(LOGIN_ROLES[role]), sql.Identifier(role)
                    )
                )
    except psycopg.Error as error:
        raise translate(error) from error


def _in_order(migrations: yoyo.migrations.MigrationList) -> yoyo.migrations.MigrationList:
    def version(migration: yoyo.migrations.Migration) -> int:
        match = re.match(r"V(\d+)__", migration.id)
        if match is None:
            raise RefusedError(
                f"migration {migration.id} has no version: name it V<number>__<what>"
            )
        return int(match.group(1))

    return migrations.replace(sorted(migrations, key=version))


def _yoyo_uri(dsn: str) -> str:
    """``dsn`` as yoyo spells it, with every object owned by ``tideline_owner``."""
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    parts["options"] = " ".join(
        filter(None, [parts.get("options"), "-c role=tideline_owner -c search_path=tideline"])
    )
    # All in the query: yoyo takes neither a socket directory nor several hosts before it.
    return f"postgresql+psycopg:///?{urlencode(parts)}"
