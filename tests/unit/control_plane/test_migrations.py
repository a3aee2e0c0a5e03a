"""The schema's files: tables in versions as seed 000 names them, functions once each."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from tideline.control_plane.migrate import schema_directory
from tideline.control_plane.pool import conninfo
from tideline.settings import ControlPlaneSettings

MIGRATIONS = sorted((schema_directory() / "migrations").iterdir())
FUNCTION_FILES = sorted((schema_directory() / "functions").iterdir())
SCREEN = 60
"""Lines that are read without scrolling."""

DEFINITIONS = {
    match[1]: match[0]
    for path in FUNCTION_FILES
    for match in re.finditer(
        r"^CREATE FUNCTION (\w+)\(.*?^\$\$;$", path.read_text(), re.DOTALL | re.MULTILINE
    )
}
"""Every function by its name."""


def without_comments(text: str) -> str:
    return re.sub(r"--.*", "", text)


def test_each_version_is_taken_once() -> None:
    versions = sorted(int(re.match(r"V(\d+)__", path.name)[1]) for path in MIGRATIONS)  # type: ignore[index]
    assert versions == sorted(set(versions))


@pytest.mark.parametrize(
    "name",
    [
        "V11__Add_diskless_log_start_offset.sql",
        "V12__Commit_file_respects_diskless_log_start_offset.sql",
        "V13__List_offsets_respects_diskless_log_start_offset.sql",
        "V14__Add_diskless_log_start_epoch.sql",
    ],
)
def test_the_migrations_of_the_seed_exist(name: str) -> None:
    assert name in {path.name for path in MIGRATIONS}


@pytest.mark.parametrize("path", MIGRATIONS, ids=lambda path: path.name)
def test_a_migration_neither_makes_nor_calls_a_function(path: Path) -> None:
    statements = without_comments(path.read_text())
    assert not re.search(r"\bFUNCTION\b|\bTRIGGER\b|\bDO\b", statements)
    called = set(re.findall(r"\b(\w+)\s*\(", statements))
    assert not called & set(DEFINITIONS)


def test_every_function_stands_once() -> None:
    text = "\n".join(path.read_text() for path in FUNCTION_FILES)
    names = Counter(re.findall(r"^CREATE.*?\bFUNCTION (\w+)", text, re.MULTILINE))
    assert [name for name, times in names.items() if times > 1] == []
    assert set(names) == set(DEFINITIONS)


def test_every_function_fits_on_a_screen() -> None:
    lines = {name: definition.count("\n") + 1 for name, definition in DEFINITIONS.items()}
    assert {name: count for name, count in lines.items() if count > SCREEN} == {}


def test_no_commit_path_notifies() -> None:
    """NOTIFY serialises the commits of the whole server."""
    reached, seen = {"commit_file", "find_batches"}, set[str]()
    while new := reached - seen:
        seen |= new
        for name in new:
            words = set(re.findall(r"\w+", without_comments(DEFINITIONS[name])))
            reached |= words & set(DEFINITIONS)
    assert {"claim_file", "lock_logs_for_commit"} <= seen
    assert not any("notify" in without_comments(DEFINITIONS[name]).lower() for name in seen)


def test_connections_carry_their_timeouts_and_commit_synchronously() -> None:
    settings = ControlPlaneSettings(
        postgres_dsn=SecretStr("postgresql://tideline_gateway_1:pw@db:5432/tideline"),
        postgres_connect_timeout_ms=2_500,
        postgres_statement_timeout_ms=700,
    )
    parts = conninfo_to_dict(conninfo(settings, "gateway-1"))
    assert parts["connect_timeout"] in (3, "3")
    assert "statement_timeout=700" in str(parts["options"])
    assert "synchronous_commit=on" in str(parts["options"])
    assert parts["application_name"] == "gateway-1"
