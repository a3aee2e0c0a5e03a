"""What people read on a terminal obeys no character of foreign origin: one place prints."""

from __future__ import annotations

import io
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.table import Table

from tideline import cli
from tideline.cli import app, doctor, operators, output, preflight
from tideline.cli.status import overview_tables
from tideline.control_plane.model import MigrationRequest, OperatorAction, RequestState
from tideline.domain.preflight import CheckResult, PreflightReport, Verdict
from tideline.errors import RefusedError
from tideline.migration import doctor as doctors
from tideline.migration.overview import Overview, TopicRow
from tideline.observability import for_a_terminal

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
WILD = "\x1b[2J\x1b]0;t\x07\r\nforged: ok \u202e\u2028[/red][bold]:smile:"
SHOWN = r"\x1b[2J\x1b]0;t\x07\r\nforged: ok \u202e\u2028[/red][bold]:smile:"
ANYTHING = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)


def printed(*parts: Any) -> str:
    screen = output.Screen(
        file=io.StringIO(), width=20_000, highlight=False, markup=False, emoji=False
    )
    for part in parts:
        screen.print(part)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def lines_of(text: str) -> list[str]:
    found = text.split("\n")
    assert all(one.isprintable() for one in found)
    return found


def overview(by: str, why: str) -> Overview:
    topic_id = UUID(int=1)
    request = MigrationRequest("orders", topic_id, by, {}, NOW, RequestState.REFUSED, why)
    action = OperatorAction("orders", topic_id, None, "configure", by, why, {"to": why}, NOW)
    row = TopicRow(
        topic="orders",
        topic_id=topic_id.hex,
        stage="migrating",
        paused=False,
        waiting_reason="",
        next_step=why,
        workflow_id="w",
        workflow_url=None,
        request=request,
        actions=[action],
    )
    return Overview(topics=[row], notes=[why])


@settings(max_examples=50)
@given(ANYTHING, ANYTHING)
def test_the_status_of_a_topic_has_the_lines_that_it_has_whoever_asked(by: str, why: str) -> None:
    usual = lines_of(printed(overview_tables(overview("ann", "why"))))
    found = lines_of(printed(overview_tables(overview(by, why))))
    assert len(found) == len(usual)


@pytest.mark.parametrize("part", [WILD, output.line(WILD, "red")])
def test_a_line_and_a_cell_are_plain_text(part: Any) -> None:
    """Rich's own markup is none, either: a client id may look like it."""
    table = Table(title=WILD, box=None)
    table.add_column(WILD)
    table.add_row(part)
    found = lines_of(printed(part, table))
    assert sum(SHOWN in one for one in found) == 4
    assert len(found) == 5


def test_the_commands_that_show_requests_and_errors_print_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = MigrationRequest("orders", UUID(int=1), WILD, {}, NOW, RequestState.REFUSED, WILD)

    async def requests(topic: str | None) -> list[Any]:
        return [request]

    monkeypatch.setattr(operators, "_requests", requests)
    operators.list_requests(None)
    assert capsys.readouterr().out == f"orders: refused, asked for by {SHOWN}: {SHOWN}\n"

    def fails() -> None:
        raise RefusedError(WILD)

    monkeypatch.setattr(app, "app", fails)
    monkeypatch.setattr(app.os, "_exit", lambda code: None)
    app.main()
    assert capsys.readouterr().err == f"error: {SHOWN}\n"


def test_doctor_and_preflight_show_what_was_found_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def examined(given: Any) -> list[doctors.Finding]:
        given.close()
        return [doctors.Finding("kafka", doctors.Verdict.OK, WILD, WILD)]

    monkeypatch.setattr(doctor, "load", lambda kind: None)
    monkeypatch.setattr(doctor, "run", examined)
    doctor.doctor()
    assert SHOWN in capsys.readouterr().out
    checks = (CheckResult("acls", Verdict.REFUSED, WILD, WILD),)
    preflight.show(PreflightReport("orders", "", 1, checks), output.Format.TABLE)
    assert SHOWN in capsys.readouterr().out


def test_a_line_of_the_log_on_a_terminal_commands_nothing() -> None:
    event = {"event": WILD, "client_id": WILD, "exception": "Traceback\n  at: \x1b[2J"}
    shown = structlog.dev.ConsoleRenderer(colors=False)(
        None, "info", for_a_terminal(None, "info", event)
    )
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert r"\x1b[2J" in shown.split("\n")[-1]


PRINTS = re.compile(r"\btyper\.(s?echo)\(|\b(Text)\(|\b(Console)\(|(?<![\w.])(print)\(")
ITS_OWN_TEXT = {"app.py", "demo.py", "output.py"}
"""What prints itself, and shows nothing foreign or has escaped it."""


def test_commands_print_by_the_one_module_that_escapes() -> None:
    package = Path(sys.modules[cli.__name__].__path__[0])
    found = {
        (path.name, match.group())
        for path in package.glob("*.py")
        if path.name not in ITS_OWN_TEXT
        for match in PRINTS.finditer(path.read_text())
    }
    assert not found
