"""Every start brings the database to the present schema, from any released one, at any time."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.contract.conftest import Database, PostgresServer
from tests.contract.schema import (
    RELEASED,
    described,
    dump,
    fill,
    missing_dumps,
    new_database,
    restore,
    row_counts,
    tags,
)
from tideline.control_plane import migrate
from tideline.control_plane.errors import ControlPlaneFailure
from tideline.control_plane.migrate import apply, schema_directory
from tideline.errors import RefusedError

ADDED = "ALTER TABLE topics ADD COLUMN note text NOT NULL DEFAULT '';\n"
CHANGED = """
-- Another result than before.
CREATE FUNCTION list_gateways() RETURNS TABLE (gateway_id integer)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT gateway_id FROM gateways ORDER BY gateway_id
$$;

CREATE FUNCTION note_topic(p_name text, p_note text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    UPDATE topics SET note = p_note WHERE name = p_name
$$;
"""


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    """A copy of the present schema's files that the test may change."""
    return Path(shutil.copytree(schema_directory(), tmp_path / "schema"))


def edit(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text()
    path.write_text(change(before))
    assert path.read_text() != before


def without(function: str) -> Callable[[str], str]:
    return lambda text: re.sub(
        rf"CREATE FUNCTION {function}\(.*?^\$\$;\n", "", text, flags=re.DOTALL | re.MULTILINE
    )


def next_version(schema: Path) -> None:
    """A column more, a function with another result, one new and one gone."""
    files = (schema / "migrations").glob("V*.sql")
    version = max(int(file.name[1:].partition("_")[0]) for file in files) + 1
    (schema / "migrations" / f"V{version}__Add_note.sql").write_text(ADDED)
    edit(schema / "functions" / "gateways.sql", without("list_gateways"))
    edit(schema / "functions" / "identity.sql", without("deleted_topics"))
    (schema / "functions" / "notes.sql").write_text(CHANGED)
    edit(schema / "grants.sql", lambda text: text.replace("deleted_topics", "note_topic"))


def function_ids(dsn: str) -> dict[str, int]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "SELECT proname, oid FROM pg_proc WHERE pronamespace = 'tideline'::regnamespace"
        )
        return dict(rows.fetchall())


def test_every_released_schema_is_brought_to_the_present_one(
    postgres_server: PostgresServer, database: Database
) -> None:
    for released in sorted(RELEASED.glob("*.sql")):
        with new_database(postgres_server) as (name, dsn):
            restore(postgres_server, name, released.read_text())
            rows = row_counts(dsn)
            apply(dsn)
            assert described(dsn) == described(database.dsn), released.name
            assert row_counts(dsn) == rows, released.name


def test_every_released_version_has_its_dump() -> None:
    assert missing_dumps(tags()) == []
    assert missing_dumps(["v99.0.0", "v99.0.0rc1", "other"]) == ["99.0.0"]


def test_a_dump_of_this_version_is_brought_to_the_next_one(
    postgres_server: PostgresServer, database: Database, schema: Path
) -> None:
    """As a release is dumped and upgraded, with a next version that is made up."""
    with new_database(postgres_server) as (name, dsn):
        apply(dsn)
        asyncio.run(fill(dsn))
        released = dump(postgres_server, name)
    assert "yoyo_log" in released
    assert "note_topic" not in released
    next_version(schema)
    with (
        new_database(postgres_server) as (name, upgraded),
        new_database(postgres_server) as (_, fresh),
    ):
        restore(postgres_server, name, released)
        assert described(upgraded) == described(database.dsn), "a dump says all of a schema"
        rows = row_counts(upgraded)
        assert rows["batches"] == 2
        apply(upgraded, schema)
        apply(fresh, schema)
        assert described(upgraded) == described(fresh)
        assert row_counts(upgraded) == rows
        functions = function_ids(upgraded)
        assert "note_topic" in functions
        assert "deleted_topics" not in functions
        with pytest.raises(RefusedError, match=r"Add_note, which this version .* not know"):
            apply(upgraded)
        assert function_ids(upgraded) == functions


def test_a_second_start_changes_nothing(postgres_server: PostgresServer) -> None:
    with new_database(postgres_server) as (_, dsn):
        apply(dsn)
        functions, before = function_ids(dsn), described(dsn)
        apply(dsn)
        assert function_ids(dsn) == functions
        assert described(dsn) == before


def test_starts_at_one_time_are_one(postgres_server: PostgresServer, database: Database) -> None:
    with new_database(postgres_server) as (_, dsn), ThreadPoolExecutor(4) as pool:
        for start in [pool.submit(apply, dsn) for _ in range(4)]:
            start.result()
        assert described(dsn) == described(database.dsn)


def test_an_older_start_that_a_newer_one_overtakes_leaves_the_functions_alone(
    postgres_server: PostgresServer, schema: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_version(schema)
    address = migrate._yoyo_uri
    with new_database(postgres_server) as (_, dsn), monkeypatch.context() as patched:

        def overtaken(given: str) -> str:
            """The older one has found no newer migration, and has not begun with its own."""
            patched.undo()
            apply(dsn, schema)
            return address(given)

        patched.setattr(migrate, "_yoyo_uri", overtaken)
        with pytest.raises(RefusedError, match=r"Add_note, which this version .* not know"):
            apply(dsn)
        assert "note_topic" in function_ids(dsn)


def test_functions_of_others_stay_with_their_triggers(
    postgres_server: PostgresServer, schema: Path
) -> None:
    with new_database(postgres_server) as (_, dsn):
        apply(dsn)
        with psycopg.connect(dsn) as connection:
            connection.execute(
                "CREATE FUNCTION tideline.watch() RETURNS trigger LANGUAGE plpgsql "
                "AS 'BEGIN RETURN NEW; END'; "
                "CREATE TRIGGER watch BEFORE UPDATE ON tideline.logs "
                "FOR EACH ROW EXECUTE FUNCTION tideline.watch()"
            )
        next_version(schema)
        apply(dsn, schema)
        with psycopg.connect(dsn) as connection:
            triggers = connection.execute("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal")
            names = {name for (name,) in triggers}
        assert names == {
            "watch", "keep_topic_change", "keep_log_change", "keep_override_change",
            "keep_phase_begun", "keep_phase_change", "keep_told_begun", "keep_told_change",
                "assert_state_move",
        }  # fmt: skip
        assert "watch" in function_ids(dsn)


@pytest.mark.parametrize(
    "faulty",
    [
        "CREATE FUNCTION broken() RETURNS void LANGUAGE sql AS $$ SELECT missing() $$;",
        "CREATE FUNCTION broken() RETURNS void LANGUAGE plpgsql AS $$ BEGIN IF END $$;",
        "CREATE FUNCTION broken(",
    ],
)
def test_a_faulty_function_leaves_all_as_it_was(
    postgres_server: PostgresServer, schema: Path, faulty: str
) -> None:
    with new_database(postgres_server) as (_, dsn):
        apply(dsn)
        before, functions = described(dsn), function_ids(dsn)
        (schema / "functions" / "zz.sql").write_text(faulty)
        with pytest.raises(ControlPlaneFailure):
            apply(dsn, schema)
        assert function_ids(dsn) == functions
        assert described(dsn) == before
