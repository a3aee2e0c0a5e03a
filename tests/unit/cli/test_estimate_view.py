"""What ``tideline preflight`` says of what a migration will take."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.contract.programs.test_commands import CLOSED
from tideline.cli import preflight
from tideline.cli.app import app
from tideline.cli.preflight import effort_table
from tideline.domain.estimate import (
    InForce,
    MigrationEstimate,
    Span,
    StepDuration,
    TopicScale,
    estimate,
)
from tideline.domain.options import MigrationOptions
from tideline.domain.preflight import CheckResult, PreflightReport, Verdict
from tideline.errors import ExitCode

SCALE = TopicScale(partitions=12, replicas=3, brokers=3, gateways=3, segments=120)
OBSERVED = (
    StepDuration(Span.CROSSING, 48, 2.0, 5.0),
    StepDuration(Span.WRITE_PAUSE, 48, 0.1, 0.3),
)
runner = CliRunner()


def shown(found: MigrationEstimate) -> str:
    console = Console(record=True, width=200, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        console.print(effort_table(found))
    return captured.get()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[MigrationEstimate | None]:
    """What is estimated, beside one check that passes."""
    answers: list[MigrationEstimate | None] = []

    async def run_preflight(*_: Any) -> PreflightReport:
        check = CheckResult("topic_exists", Verdict.PASSED, "it does")
        return PreflightReport("orders", "00" * 16, 12, (check,), SCALE)

    async def estimate_migration(*_: Any) -> MigrationEstimate | None:
        return answers.pop()

    @asynccontextmanager
    async def open_services(settings: Any) -> AsyncIterator[object]:
        yield object()

    monkeypatch.setattr(preflight, "run_preflight", run_preflight)
    monkeypatch.setattr(preflight, "estimate_migration", estimate_migration)
    monkeypatch.setattr(preflight, "open_services", open_services)
    for name, value in CLOSED.items():
        monkeypatch.setenv(name, value)
    return answers


def test_the_estimate_stands_below_the_checks(found: list[MigrationEstimate | None]) -> None:
    found.append(estimate(SCALE, MigrationOptions(), InForce(), OBSERVED))
    result = runner.invoke(app, ["preflight", "orders"])
    assert result.exit_code == ExitCode.OK
    checks, effort = result.output.split("orders may migrate")
    assert "topic_exists" in checks
    assert "until all 12 partitions have B0, 4 at once" in effort


def test_each_line_says_what_it_goes_by() -> None:
    text = shown(estimate(SCALE, MigrationOptions(), InForce(), OBSERVED))
    lines = {line.split("  ")[0].strip(): line for line in text.splitlines()}
    crossing = lines["until all 12 partitions have B0, 4 at once"]
    assert "6.0 to 15.0 s" in crossing
    assert "crossing: observed here, 48 partitions" in crossing
    assert "tiering: documented, not observed here" in lines["until the topic is hybrid"]
    assert "100 to 300 ms" in lines["write pause of a partition"]
    assert "about " in lines["rows in Postgres"]


def test_of_tiering_one_topic_is_enough_and_is_said() -> None:
    tiered = StepDuration(Span.TIERING, 1, 60.0, 60.0)
    text = shown(estimate(SCALE, MigrationOptions(), InForce(), (*OBSERVED, tiered)))
    assert "tiering: observed here, 1 topic" in text
    assert "66.0 to 75.0 s" in text


def test_a_limit_of_zero_is_said_in_the_place_of_seconds() -> None:
    text = shown(estimate(SCALE, MigrationOptions(), InForce(partitions=0)))
    assert text.count("never: a limit is 0") == 2


def test_programs_get_it_beside_the_fields_that_were_there(
    found: list[MigrationEstimate | None],
) -> None:
    found.append(estimate(SCALE, MigrationOptions(), InForce(), OBSERVED))
    answer = json.loads(runner.invoke(app, ["preflight", "orders", "-o", "json"]).stdout)
    assert list(answer) == ["topic", "topic_id", "partitions", "accepted", "checks", "estimate"]
    effort = answer["estimate"]
    assert effort["to_boundaries_s"] == {"p50": 6.0, "p90": 15.0}
    assert effort["write_pause_ms"] == {"p50": 100.0, "p90": 300.0}
    crossing = next(b for b in effort["based_on"] if b["step"] == "crossing")
    assert (crossing["source"], crossing["samples"]) == ("observed", 48)


def test_of_a_topic_that_does_not_exist_nothing_is_estimated(
    found: list[MigrationEstimate | None],
) -> None:
    found.append(None)
    answer = json.loads(runner.invoke(app, ["preflight", "orders", "-o", "json"]).stdout)
    assert answer["estimate"] is None
