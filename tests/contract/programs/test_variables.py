"""A variable named as Tideline's that nobody knows is refused, whichever process it is given to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tideline.cli.app import app
from tideline.errors import ExitCode, UsageError
from tideline.settings import (
    AirflowSettings,
    GatewaySettings,
    JobsSettings,
    KafkaSettings,
    PlacesSettings,
    RebuildSettings,
    SchemaSettings,
    TemporalSettings,
    WorkerSettings,
    load,
)
from tideline.variables import OTHERS, refuse_unknown

ROOT = Path(__file__).parents[3]
NAME = re.compile(r"TIDELINE_[A-Z0-9_]*[A-Z0-9]\b")
WITH_NAMES = ("compose.yaml", "Dockerfile", "Makefile", "README.md", "docs", "infra", "examples")
CODE = ("tideline", "spark", "dags", "activities", "workflows", "benchmarks")
KINDS = (
    GatewaySettings,
    WorkerSettings,
    JobsSettings,
    SchemaSettings,
    AirflowSettings,
    RebuildSettings,
)
SETTINGS = frozenset(name for kind in KINDS for name in kind.model_fields)
SECRETS = frozenset(
    name
    for kind in KINDS
    for name, field in kind.model_fields.items()
    if "SecretStr" in str(field.annotation)
)


@pytest.fixture(autouse=True)
def no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TIDELINE_CONFIG", raising=False)
    monkeypatch.setenv("TIDELINE_HOME", str(tmp_path))


@pytest.mark.parametrize("value", ["3000", ""])
def test_a_misspelt_name_is_refused_with_the_nearest_one_and_the_page(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELINE_GATEWAY_LEAS_MS", value)
    said = (
        "environment: TIDELINE_GATEWAY_LEAS_MS is no setting; TIDELINE_GATEWAY_LEASE_MS was meant?"
    )
    with pytest.raises(UsageError, match=rf"{re.escape(said)}.*docs/settings\.md") as refused:
        load(TemporalSettings)
    assert refused.value.exit_code == ExitCode.USAGE


def test_lower_case_is_a_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are read so."""
    monkeypatch.setenv("tideline_migration_parallel_topics", "7")
    assert load(PlacesSettings).migration_parallel_topics == 7
    monkeypatch.setenv("tideline_migration_parallel_topic", "7")
    with pytest.raises(UsageError, match="TIDELINE_MIGRATION_PARALLEL_TOPIC is no setting"):
        load(PlacesSettings)


def test_a_misspelt_name_in_a_file_of_lines_is_refused_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.env"
    file.write_text("TIDELINE_KAFKA_BOOTSTRAP=a:1\nTIDELINE_KAFKA_BOOTSTRP=b:1\nOTHER=1\n")
    monkeypatch.setenv("TIDELINE_CONFIG", str(file))
    with pytest.raises(UsageError, match=rf"{re.escape(str(file))}: TIDELINE_KAFKA_BOOTSTRP is no"):
        load(KafkaSettings)


def test_what_other_processes_know_is_right_in_the_environment_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {
        "TIDELINE_GATEWAY_LEASE_MS": "3000",
        "TIDELINE_AIRFLOW_RETRIES": "2",
        "TIDELINE_SCHEMA_POSTGRES_DSN_FILE": "/nowhere",
        "TIDELINE_REBUILD_POSTGRES_DSN": "host=a",
        **dict.fromkeys(OTHERS.keys() - {"TIDELINE_CONFIG", "TIDELINE_CONTEXT", "TIDELINE_HOME"}),
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value or "x")
    load(TemporalSettings)


def test_what_kubernetes_adds_for_a_service_is_passed_over() -> None:
    of_a_service = [
        "TIDELINE_GATEWAY_1_SERVICE_HOST",
        "TIDELINE_GATEWAY_1_SERVICE_PORT_KAFKA",
        "TIDELINE_GATEWAY_1_PORT",
        "TIDELINE_GATEWAY_1_PORT_9092_TCP_ADDR",
    ]
    refuse_unknown(of_a_service, SETTINGS, SECRETS, "environment")
    with pytest.raises(UsageError, match="TIDELINE_GATEWAY_2_PORT is no setting"):
        refuse_unknown([*of_a_service, "TIDELINE_GATEWAY_2_PORT"], SETTINGS, SECRETS, "environment")


def test_of_many_unknown_names_some_are_named_and_the_rest_counted() -> None:
    with pytest.raises(UsageError, match=r"TIDELINE_N_4 is no setting.*; and 3 more\."):
        refuse_unknown([f"TIDELINE_N_{n}" for n in range(8)], SETTINGS, SECRETS, "environment")


def test_a_gateway_ends_with_the_exit_code_of_wrong_settings(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tideline.gateway"],
        env={"PATH": os.environ["PATH"], "TIDELINE_GATEWAY_LEAS_MS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ExitCode.USAGE
    assert "TIDELINE_GATEWAY_LEASE_MS was meant?" in done.stdout + done.stderr


def test_a_command_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELINE_SCHEMA_POSTGRES_DNS", "host=a")
    done = CliRunner().invoke(app, ["db", "check"])
    assert "TIDELINE_SCHEMA_POSTGRES_DSN was meant?" in str(done.exception)


def names_in_the_tree() -> Iterator[tuple[str, Path]]:
    for where in (*WITH_NAMES, *CODE):
        root = ROOT / where
        for file in [root] if root.is_file() else sorted(root.rglob("*")):
            if file.suffix in {".pyc", ".png", ".jar", ".class"} or not file.is_file():
                continue
            for name in NAME.findall(file.read_text(errors="replace")):
                yield name, file


def test_every_name_that_the_tree_has_is_known() -> None:
    by_name = {name: file.relative_to(ROOT) for name, file in names_in_the_tree()}
    assert OTHERS.keys() - by_name.keys() == set()
    for name, file in by_name.items():
        refuse_unknown([name], SETTINGS, SECRETS, str(file))
