"""The schema as the catalog has it, and dumps of it: one for each released version.

``python -m tests.contract.schema 1.2.0`` writes ``released/1.2.0.sql`` from a Postgres of its own.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
from psycopg import sql

from tests.contract.conftest import PostgresServer, create_database
from tests.contract.scenes import TABLES, PostgresScene, batch, seed
from tideline.control_plane import connect
from tideline.control_plane.migrate import apply
from tideline.settings import ControlPlaneSettings

RELEASED = Path(__file__).parent / "released"

SCHEMAS = "ARRAY['tideline', 'tideline_records']"
CATALOG = (
    f"""SELECT 'column ' || c.relname || '.' || a.attname,
           concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
               pg_get_expr(d.adbin, d.adrelid))
       FROM pg_attribute AS a
       JOIN pg_class AS c ON c.oid = a.attrelid AND c.relkind = 'r'
       LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
       WHERE c.relnamespace::regnamespace::text = ANY ({SCHEMAS})
           AND a.attnum > 0 AND NOT a.attisdropped""",
    f"""SELECT 'relation ' || relname,
           concat_ws(' ', relkind, relowner::regrole, reloptions, relacl)
       FROM pg_class
       WHERE relnamespace::regnamespace::text = ANY ({SCHEMAS})
           AND relkind IN ('r', 'S', 'v')""",
    f"""SELECT 'constraint ' || conrelid::regclass || ' ' || conname,
           pg_get_constraintdef(oid)
       FROM pg_constraint WHERE connamespace::regnamespace::text = ANY ({SCHEMAS})
           AND conrelid <> 0""",
    f"""SELECT 'index ' || indexname, indexdef FROM pg_indexes
       WHERE schemaname = ANY ({SCHEMAS})""",
    """SELECT 'function ' || oid::regprocedure,
           concat_ws(' ', pg_get_functiondef(oid), proowner::regrole,
               (SELECT string_agg(a::text, ' ' ORDER BY a::text) FROM unnest(proacl) AS a))
       FROM pg_proc WHERE pronamespace = 'tideline'::regnamespace""",
    f"""SELECT 'schema ' || nspname,
           concat_ws(' ', nspowner::regrole, nspacl, obj_description(oid, 'pg_namespace'))
       FROM pg_namespace WHERE nspname = ANY ({SCHEMAS})""",
)
"""Queries of name and definition. The order of columns does not count: added ones come last."""


def described(dsn: str) -> dict[str, str]:
    """Everything in the schema by its name. Without yoyo's own tables."""
    with psycopg.connect(dsn) as connection:
        rows = [row for query in CATALOG for row in connection.execute(query.encode())]
    return {name: definition for name, definition in rows if "yoyo" not in name}


def row_counts(dsn: str) -> dict[str, int]:
    with psycopg.connect(dsn, options="-c search_path=tideline") as connection:
        return {
            table: len(connection.execute(f"SELECT FROM {table}".encode()).fetchall())
            for table in TABLES
        }


async def fill(dsn: str) -> None:
    """A gateway, a topic that was born diskless and one that was migrated, each with records."""
    settings = ControlPlaneSettings.model_validate({"postgres_dsn": dsn})
    async with connect(settings, application_name="schema") as plane:
        scene = PostgresScene(plane, dsn)
        gateway = await scene.gateway()
        _, (born,) = await scene.diskless_topic()
        _, (migrated,) = await scene.migrating_topic([gateway])
        generation = await scene.quiesce(migrated, [gateway], highest=9)
        await scene.persist(migrated, 10, generation, seeds=[seed(last_offset=9)])
        await scene.commit(gateway, batch(born), batch(migrated, records=3))
        scene.jobs.close()


def dump(server: PostgresServer, database: str) -> str:
    """Statements for psql. yoyo's log names machines and people: its rows are left out."""
    return server.client(
        "pg_dump", database, "--schema=tideline", "--schema=tideline_records",
        "--exclude-table-data=tideline._yoyo_log",
    )  # fmt: skip


def restore(server: PostgresServer, database: str, text: str) -> None:
    """Into an empty database of a server that knows the roles."""
    server.client("psql", database, "--quiet", "--set=ON_ERROR_STOP=1", stdin=text)


_numbers = count(1)


@contextmanager
def new_database(server: PostgresServer) -> Iterator[tuple[str, str]]:
    """An empty database, for as long as the context: its name and the superuser's dsn."""
    name = f"schema_{next(_numbers)}"
    yield name, create_database(server, name)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))


def missing_dumps(tags: Iterable[str]) -> list[str]:
    """Versions that have a tag ``vX.Y.Z`` and no dump."""
    versions = (tag[1:] for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+", tag))
    return sorted(version for version in versions if not (RELEASED / f"{version}.sql").is_file())


def tags() -> list[str]:
    """Those of the checkout; none where git or its history is missing."""
    try:
        listed = subprocess.run(
            ["git", "tag", "--list"], cwd=RELEASED, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return []
    return listed.stdout.split()


def main(version: str) -> None:
    with tempfile.TemporaryDirectory(prefix="tideline-schema-") as directory:
        server = PostgresServer(Path(directory))
        server.start()
        try:
            with new_database(server) as (name, dsn):
                apply(dsn)
                asyncio.run(fill(dsn))
                (RELEASED / f"{version}.sql").write_text(dump(server, name))
        finally:
            server.stop()


if __name__ == "__main__":
    main(sys.argv[1])
