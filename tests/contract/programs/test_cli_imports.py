"""A command imports what it needs: the help nothing of any, and no process what only tests use."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.support.waiting import HANGS_S
from tideline.cli.app import app
from tideline.cli.commands import TABLE, Entry, Later

CLIENTS = {"aiokafka", "boto3", "confluent_kafka", "kio", "psycopg", "pydantic", "temporalio"}
"""Each costs a tenth of a second of a core or more."""


def imported(code: str, which: set[str]) -> set[str]:
    """Those of ``which`` that a new interpreter has imported after ``code``."""
    said = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules, sep='\\n')"],
        capture_output=True, text=True, check=True, timeout=HANGS_S,
    ).stdout  # fmt: skip
    return which & set(said.splitlines())


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_what_asks_nobody_imports_no_client(option: str) -> None:
    asked = f"""
from typer.testing import CliRunner
from tideline.cli.app import app
assert CliRunner().invoke(app, [{option!r}]).exit_code == 0
"""
    assert imported(asked, CLIENTS) == set()


@pytest.mark.parametrize(
    ("module", "unused"),
    [
        ("tideline.cli.topic", {"temporalio", "hypothesis"}),
        ("tideline.gateway.__main__", {"temporalio", "hypothesis"}),
        ("tideline.worker.app", {"confluent_kafka", "hypothesis"}),
    ],
)
def test_a_process_imports_no_client_of_what_it_never_asks(module: str, unused: set[str]) -> None:
    """hypothesis is what tests are written with: a library offers to use it where it is there."""
    assert imported(f"import {module}", unused) == set()


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.name)
def test_the_line_of_the_help_is_that_of_the_command(entry: Entry) -> None:
    first, _, _ = Later(entry).command.help.partition("\n\n")
    assert entry.help == " ".join(first.split())


def test_the_help_lists_every_command_once() -> None:
    said = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    names = [entry.name for entry in TABLE]
    assert len(names) == len(set(names))
    for entry in TABLE:
        assert f" {entry.name} " in said
        assert entry.help in said
