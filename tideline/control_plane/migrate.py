"""Brings a database to the schema of ``infra/postgres`` and provisions the login roles.

``migrations`` hold tables, indexes and constraints: applied once each and in order, by yoyo.
``functions`` and ``grants.sql`` hold the rules: replaced as a whole when they differ
(docs/decisions/0003-plain-sql-migrations.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import yoyo
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tideline.control_plane.errors import translate
from tideline.control_plane.session import with_session
from tideline.control_plane.session_check import must_be_fit
from tideline.errors import RefusedError, UsageError
from tideline.installation import shipped

LOGIN_ROLES: Mapping[str, str] = {
    "tideline_gateway_<id>": "tideline_gateway_rights",
    "tideline_worker": "tideline_worker_rights",
    "tideline_jobs": "tideline_jobs_rights",
}
"""Login role: the group role whose rights it has. Each gateway has a role of its own, so that it
speaks for no other (``assert_own_gateway``)."""
_OF_A_GATEWAY = re.compile(r"tideline_gateway_(0|[1-9][0-9]{0,9})")

LOCK_TIMEOUT_S = 60
"""How long one migration run waits for another to end."""


def schema_directory() -> Path:
    """``infra/postgres``. Raises :class:`RefusedError` when it is not installed."""
    return shipped("infra/postgres")


@dataclass(frozen=True, slots=True)
class SchemaState:
    """What the schema of a database lacks of this version's."""

    pending: tuple[str, ...]
    """Migrations that it has not got, in order."""
    newer: tuple[str, ...]
    """Migrations of a later version."""
    functions_agree: bool
    """Whether functions and rights are this version's."""

    @property
    def up_to_date(self) -> bool:
        return not self.pending and not self.newer and self.functions_agree

    def describe(self) -> str:
        """In a sentence, with the remedy."""
        if self.newer:
            return (
                f"The database has {', '.join(self.newer)}, which this version of tideline does "
                "not know: use the version that applied it, or a later one."
            )
        if self.pending:
            return f"Not applied: {', '.join(self.pending)}. Run `tideline db migrate`."
        if not self.functions_agree:
            return "Functions or rights are of another version. Run `tideline db migrate`."
        return "The schema is that of this version."


def state(dsn: str, directory: Path | None = None) -> SchemaState:
    """How the database of ``dsn`` differs from the schema in ``directory``
    (:func:`schema_directory`). Changes nothing. Raises ``ControlPlaneUnavailable``."""
    directory = directory or schema_directory()
    known = [m.id for m in _in_order(yoyo.read_migrations(str(directory / "migrations")))]
    try:
        with psycopg.connect(in_session(dsn)) as connection:
            applied = _applied(connection)
            mark = connection.execute(_MARK).fetchone()
    except psycopg.Error as error:
        raise translate(error) from error
    return SchemaState(
        tuple(name for name in known if name not in applied),
        tuple(sorted(applied - set(known))),
        mark == (_functions(directory)[1],),
    )


async def has_this_versions_schema(
    connection: psycopg.AsyncConnection[Any], directory: Path | None = None
) -> bool:
    """What any role may ask: whether migrations, functions and rights are those of ``directory``
    (:func:`schema_directory`)."""
    cursor = await connection.execute(_MARK)
    return await cursor.fetchone() == (_functions(directory or schema_directory())[1],)


def apply(dsn: str, directory: Path | None = None) -> None:
    """Bring the database of ``dsn`` to the schema in ``directory`` (:func:`schema_directory`).

    Safe to repeat and to run twice at once. ``dsn`` must be allowed to create roles and a schema.
    Raises ``ControlPlaneUnavailable`` when Postgres does not answer, ``ControlPlaneFailure`` when
    a file fails (its transaction is rolled back), :class:`RefusedError` when the database has
    migrations that ``directory`` has not, or another encoding than UTF8, ``UnfitSession`` behind a
    pooler in transaction mode.
    """
    directory = directory or schema_directory()
    migrations = yoyo.read_migrations(str(directory / "migrations"))
    known = {migration.id for migration in migrations}
    try:
        with psycopg.connect(in_session(dsn)) as connection:
            must_be_fit(in_session(dsn), connection)
            _refuse_encoding(connection)
            # Serialises concurrent runs while roles are created.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('tideline roles'))")
            connection.execute((directory / "roles.sql").read_bytes())
            _refuse_newer(connection, known)
        with yoyo.get_backend(_yoyo_uri(dsn)) as backend, _alone(dsn):
            backend.apply_migrations(backend.to_apply(_in_order(migrations)))
        with psycopg.connect(in_session(dsn)) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('tideline functions'))")
            # Again: a newer version may have started meanwhile.
            _refuse_newer(connection, known)
            _replace_functions(connection, directory)
    except psycopg.Error as error:
        raise translate(error) from error


@contextmanager
def _alone(dsn: str) -> Iterator[None]:
    """One run at a time, for no longer than it lives: of yoyo's own lock a row stays behind when
    the process is killed, and every later run waits for it in vain."""
    with psycopg.connect(in_session(dsn), autocommit=True) as connection:
        connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'".encode())
        connection.execute("SELECT pg_advisory_lock(hashtext('tideline migrations'))")
        yield


def gateway_role(gateway_id: int) -> str:
    """The login role of the gateway with this id."""
    return f"tideline_gateway_{gateway_id}"


def rights_of(role: str) -> str:
    """The group role whose rights a login role has. Raises :class:`UsageError` for another name."""
    wanted = "tideline_gateway_<id>" if _OF_A_GATEWAY.fullmatch(role) else role
    if wanted not in LOGIN_ROLES or role == "tideline_gateway_<id>":
        raise UsageError(f"unknown role {role}: choose from {', '.join(LOGIN_ROLES)}")
    return LOGIN_ROLES[wanted]


def provision_roles(dsn: str, passwords: Mapping[str, str]) -> None:
    """Create or update the login roles and their passwords.

    ``passwords``: any of :data:`LOGIN_ROLES`, gateways by their ids, to its password. Raises
    :class:`UsageError` for another name, and as :func:`refuse_second_installation`.
    """
    rights = {role: rights_of(role) for role in sorted(passwords)}
    refuse_second_installation(dsn)
    try:
        with psycopg.connect(in_session(dsn)) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('tideline roles'))")
            for role, password in passwords.items():
                connection.execute(
                    sql.SQL("{} LOGIN PASSWORD {}").format(
                        _create_or_alter(connection, role), _verifier(connection, role, password)
                    )
                )
                connection.execute(
                    sql.SQL("GRANT {} TO {}").format(
                        sql.Identifier(rights[role]), sql.Identifier(role)
                    )
                )
    except psycopg.Error as error:
        raise translate(error) from error


def refuse_second_installation(dsn: str) -> None:
    """Roles are names of the whole server: another installation would give those of the first one
    other passwords, and each one's would open the other's database. A copy of the same
    installation, such as a restored backup, may stand beside it.

    Raises :class:`RefusedError`, and ``ControlPlaneUnavailable``.
    """
    try:
        with psycopg.connect(in_session(dsn)) as connection:
            row = connection.execute("SELECT current_database()").fetchone()
            assert row is not None
            others = [name for (name,) in connection.execute(_OWNED_ELSEWHERE)]
        own = _installation(dsn) if others else None
        for other in others:
            if own is None or _installation(make_conninfo(dsn, dbname=other)) != own:
                raise RefusedError(
                    f"database {other} of this server has another installation of Tideline, with "
                    f"the roles that database {row[0]} would have: one server has one "
                    "installation. Give this one a Postgres server of its own, or drop "
                    f"{other} first if nobody needs it any more"
                )
    except psycopg.Error as error:
        raise translate(error) from error


def _installation(dsn: str) -> object:
    """``None``: there is none, or it is not to be seen."""
    try:
        with psycopg.connect(in_session(dsn)) as connection:
            row = connection.execute("SELECT installation_id FROM tideline.installation").fetchone()
            return row and row[0]
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable):
        return None
    except psycopg.OperationalError:
        # Nobody comes into that database with this login.
        return None


_OWNED_ELSEWHERE = """
SELECT DISTINCT d.datname FROM pg_shdepend AS s
    JOIN pg_database AS d ON d.oid = s.dbid AND d.datname <> current_database()
    JOIN pg_roles AS r ON r.oid = s.refobjid AND r.rolname = 'tideline_owner'
    WHERE s.refclassid = 'pg_authid'::regclass
    ORDER BY d.datname
"""


def limit_connections(dsn: str, role: str, limit: int) -> None:
    """How many connections ``role``, one of :data:`LOGIN_ROLES` that is there, may have at once."""
    try:
        with psycopg.connect(in_session(dsn)) as connection:
            connection.execute(
                sql.SQL("ALTER ROLE {} CONNECTION LIMIT {}").format(sql.Identifier(role), limit)
            )
    except psycopg.Error as error:
        raise translate(error) from error


def _create_or_alter(connection: psycopg.Connection, role: str) -> sql.Composable:
    """Names what no login role may be only where it is: who may create roles and is no superuser
    may not even say that a role is none."""
    row = connection.execute(
        "SELECT rolsuper OR rolcreatedb OR rolcreaterole FROM pg_roles WHERE rolname = %s", [role]
    ).fetchone()
    if row is None:
        return sql.SQL("CREATE ROLE {}").format(sql.Identifier(role))
    takes_away = "NOSUPERUSER NOCREATEDB NOCREATEROLE" if row[0] else ""
    return sql.SQL("ALTER ROLE {} " + takes_away).format(sql.Identifier(role))


def _verifier(connection: psycopg.Connection, role: str, password: str) -> sql.Literal:
    """What the server keeps of a password: it may log its statements."""
    made = connection.pgconn.encrypt_password(password.encode(), role.encode())
    return sql.Literal(made.decode())


def _applied(connection: psycopg.Connection) -> set[str]:
    if connection.execute("SELECT to_regclass('tideline._yoyo_migration')").fetchone() == (None,):
        return set()
    rows = connection.execute("SELECT migration_id FROM tideline._yoyo_migration").fetchall()
    return {row[0] for row in rows}


def in_session(dsn: str) -> str:
    """A migration takes as long as it takes."""
    return with_session(dsn, {"statement_timeout": 0, "idle_in_transaction_session_timeout": 0})


def _refuse_encoding(connection: psycopg.Connection) -> None:
    row = connection.execute("SELECT current_database(), current_setting('server_encoding')")
    name, encoding = row.fetchone() or ("", "")
    if encoding != "UTF8":
        raise RefusedError(
            f"database {name} has the encoding {encoding}, which cannot keep every name and "
            "message: make one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        )


def _refuse_newer(connection: psycopg.Connection, known: set[str]) -> None:
    """Functions must not come upon tables that this version does not know."""
    if newer := sorted(_applied(connection) - known):
        raise RefusedError(
            f"the database has migration {newer[-1]}, which this version of tideline does not "
            "know: use the version that applied it, or a later one"
        )


def _functions(directory: Path) -> tuple[bytes, str]:
    """The text of every function and right, and the schema's comment that says so. It names the
    migrations too, which no login role may ask for: they are applied before it is written."""
    sources = [*sorted((directory / "functions").glob("*.sql")), directory / "grants.sql"]
    text = b"\n".join(source.read_bytes() for source in sources)
    migrations = sorted(file.stem for file in (directory / "migrations").glob("V*.sql"))
    digest = sha256("\n".join(migrations).encode() + b"\n" + text).hexdigest()
    return text, f"functions sha256 {digest}"


_MARK = """
SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = 'tideline'
"""


def _replace_functions(connection: psycopg.Connection, directory: Path) -> None:
    """Every function and right as a whole, in the connection's transaction, unless the database
    has exactly these. The schema's comment says which it has.
    """
    text, mark = _functions(directory)
    if connection.execute(_MARK).fetchone() == (mark,):
        return
    connection.execute("SET LOCAL ROLE tideline_owner")
    connection.execute("SET LOCAL search_path = tideline")
    # They call each other in any order: created first, checked when all are there.
    connection.execute("SET LOCAL check_function_bodies = off")
    connection.execute(_DROP_FUNCTIONS)
    connection.execute(text)
    connection.execute("SET LOCAL check_function_bodies = on")
    for language, validator in (("sql", "fmgr_sql_validator"), ("plpgsql", "plpgsql_validator")):
        connection.execute(
            sql.SQL(
                "SELECT {}(p.oid) FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang "
                "WHERE p.pronamespace = 'tideline'::regnamespace "
                "AND p.proowner = 'tideline_owner'::regrole AND l.lanname = {}"
            ).format(sql.Identifier(validator), language)
        )
    connection.execute(sql.SQL("COMMENT ON SCHEMA tideline IS {}").format(mark))


_DROP_FUNCTIONS = """
DO $$
DECLARE
    v_functions text := (SELECT string_agg(oid::regprocedure::text, ', ') FROM pg_proc
        WHERE pronamespace = 'tideline'::regnamespace AND proowner = 'tideline_owner'::regrole);
    v_trigger record;
BEGIN
    FOR v_trigger IN SELECT t.tgname, t.tgrelid::regclass AS of_table
        FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
        WHERE NOT t.tgisinternal AND p.pronamespace = 'tideline'::regnamespace
            AND p.proowner = 'tideline_owner'::regrole
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', v_trigger.tgname, v_trigger.of_table);
    END LOOP;
    IF v_functions IS NOT NULL THEN
        EXECUTE 'DROP FUNCTION ' || v_functions;
    END IF;
END
$$
"""
"""With their triggers, and without CASCADE: a table that depends on a function is a mistake of its
migration."""


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
    parts = {name: str(value) for name, value in conninfo_to_dict(in_session(dsn)).items()}
    parts["options"] += " -c role=tideline_owner -c search_path=tideline"
    # All in the query: yoyo takes neither a socket directory nor several hosts before it.
    return f"postgresql+psycopg:///?{urlencode(parts)}"
