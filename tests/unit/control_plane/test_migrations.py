"""The migrations are found, ordered and named as seed 000 names them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from tideline.control_plane.migrate import migrations_directory
from tideline.control_plane.pool import conninfo
from tideline.settings import ControlPlaneSettings

DIRECTORY = migrations_directory() / "migrations"
FILES = sorted(DIRECTORY.iterdir())


def test_versions_count_without_gap() -> None:
    versions = sorted(int(re.match(r"V(\d+)__", path.name)[1]) for path in FILES)  # type: ignore[index]
    assert versions == list(range(1, len(FILES) + 1))


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
    assert (DIRECTORY / name).is_file()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_commit_path_notifies(path: Path) -> None:
    bodies = re.findall(
        r"FUNCTION (commit_file|lock_logs_for_commit|claim_file|find_batches)\b(.*?)\n\$\$;",
        path.read_text(),
        re.DOTALL,
    )
    assert not any("notify" in body.lower().split("as $$", 1)[-1] for _, body in bodies)


def test_connections_carry_their_timeouts_and_commit_synchronously() -> None:
    settings = ControlPlaneSettings(
        postgres_dsn=SecretStr("postgresql://tideline_gateway:pw@db:5432/tideline"),
        postgres_connect_timeout_ms=2_500,
        postgres_statement_timeout_ms=700,
    )
    parts = conninfo_to_dict(conninfo(settings, "gateway-1"))
    assert parts["connect_timeout"] in (3, "3")
    assert "statement_timeout=700" in str(parts["options"])
    assert "synchronous_commit=on" in str(parts["options"])
    assert parts["application_name"] == "gateway-1"
