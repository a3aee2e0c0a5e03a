"""Commands: exit codes, output, and errors that name the value, the rule and the remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import AsyncMock
from uuid import UUID

import pytest
from typer.testing import CliRunner

from tests.support.waiting import HANGS_S
from tideline.cli import operators, preflight, steer
from tideline.cli.app import app
from tideline.domain.coverage import OffsetRange
from tideline.domain.log_gap import GapPart
from tideline.domain.messages import AbortDecision, PauseOutcome
from tideline.domain.operator_choices import (
    CompletionOutcome,
    ConfigureOutcome,
    ConfigureRequest,
    Decider,
)
from tideline.domain.options import MigrationOptions
from tideline.domain.preflight import CheckResult, PreflightReport, Verdict
from tideline.errors import ExitCode, RefusedError, UsageError
from tideline.migration.gaps import LogGap
from tideline.object_store.inventory import KeptSegments

runner = CliRunner()

CLOSED = {
    "TIDELINE_POSTGRES_DSN": "postgresql://nobody@127.0.0.1:1/none",
    "TIDELINE_KAFKA_BOOTSTRAP": "127.0.0.1:1",
    "TIDELINE_TEMPORAL_ADDRESS": "127.0.0.1:1",
    "TIDELINE_POSTGRES_CONNECT_TIMEOUT_MS": "300",
    "TIDELINE_HOME": "/nonexistent",
}


def tideline(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a person runs it, with nothing to reach."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TIDELINE_")}
    return subprocess.run(
        [sys.executable, "-m", "tideline", *arguments],
        env=kept | CLOSED | environment,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )


def test_a_missing_setting_is_named() -> None:
    ended = tideline("status", TIDELINE_POSTGRES_DSN="")
    assert ended.returncode == ExitCode.USAGE
    assert "TIDELINE_POSTGRES_DSN: is not set" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_part_that_does_not_answer_is_named() -> None:
    ended = tideline("status")
    assert ended.returncode == ExitCode.UNREACHABLE
    assert "Postgres" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_unknown_command_is_a_usage_error() -> None:
    assert tideline("migrait").returncode == ExitCode.USAGE


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["migrate", "a b"], "no topic name"),
        (["migrate", "a", "--parallel", "0"], "options.parallel_partitions: 0"),
        (["migrate", "a", "--quiesce-hold-ms", "5"], "from 1000 to 60000"),
        (["gateway", "retire", "1"], "--cut-off"),
        (["gateway", "account", "1", "00000000-0000-0000-0000-000000000007"], "--gone"),
    ],
)
def test_a_wrong_argument_changes_nothing_and_says_what_is_allowed(
    arguments: list[str], said: str
) -> None:
    result = runner.invoke(app, arguments)
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)


@dataclass
class FakeServices:
    leases: Any = field(default_factory=lambda: AsyncMock(read=AsyncMock(return_value=[])))


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[CheckResult]:
    """What the preflight will find."""
    found: list[CheckResult] = []

    async def run_preflight(services: Any, topic: str, options: Any) -> PreflightReport:
        return PreflightReport(topic, "00" * 16, 3, tuple(found))

    @asynccontextmanager
    async def open_services(settings: Any) -> AsyncIterator[FakeServices]:
        yield FakeServices()

    monkeypatch.setattr(preflight, "run_preflight", run_preflight)
    monkeypatch.setattr(preflight, "open_services", open_services)
    for name, value in CLOSED.items():
        monkeypatch.setenv(name, value)
    return found


def test_a_preflight_that_passes_is_exit_code_0(checks: list[CheckResult]) -> None:
    checks.append(CheckResult("topic_exists", Verdict.PASSED, "it does"))
    result = runner.invoke(app, ["preflight", "orders"])
    assert result.exit_code == ExitCode.OK
    assert "orders may migrate (3 partitions)" in result.output


def test_a_preflight_that_refuses_names_check_and_remedy(checks: list[CheckResult]) -> None:
    checks.append(CheckResult("cleanup_policy", Verdict.REFUSED, "compact", "only delete"))
    result = runner.invoke(app, ["preflight", "orders"])
    assert result.exit_code == ExitCode.REFUSED
    assert "cleanup_policy" in result.output
    assert "only delete" in result.output


def test_a_preflight_as_json_holds_every_check(checks: list[CheckResult]) -> None:
    checks.append(CheckResult("cleanup_policy", Verdict.REFUSED, "compact", "only delete"))
    result = runner.invoke(app, ["preflight", "orders", "-o", "json"])
    answer = json.loads(result.stdout)
    assert answer["accepted"] is False
    assert answer["checks"] == [
        {
            "name": "cleanup_policy",
            "verdict": "refused",
            "found": "compact",
            "remedy": "only delete",
            "told": "",
        }
    ]


def answered(monkeypatch: pytest.MonkeyPatch, outcome: Any) -> None:
    monkeypatch.setattr(steer, "update", AsyncMock(return_value=outcome))


def test_an_abort_that_lost_is_refused_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, AbortDecision(False, "partition 2 has B0 = 40"))
    result = runner.invoke(app, ["abort", "orders", "--reason", "r"])
    assert isinstance(result.exception, RefusedError)
    assert "B0 = 40" in str(result.exception)


def test_an_abort_that_won_says_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, AbortDecision(True))
    result = runner.invoke(app, ["abort", "orders", "--reason", "r"])
    assert result.exit_code == ExitCode.OK
    assert "being restored" in result.output


def test_steering_answers_programs_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, PauseOutcome(True, "stops"))
    result = runner.invoke(app, ["pause", "orders", "--reason", "r", "-o", "json"])
    assert json.loads(result.stdout) == {"paused": True, "explanation": "stops"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["configure", "a", "--reason", "r", "--option", "paralel=2"], "write NAME=VALUE"),
        (["configure", "a", "--reason", "r", "--option", "quiesce_hold_ms=5"], "from 1000"),
        (["configure", "a", "--reason", " ", "--option", "quiesce_hold_ms=5000"], "why: ' '"),
        (["complete", "a", "--reason", "r"], "add --force"),
        (["gap", "accept", "a", "0", "--from", "9", "--to", "9", "--reason", "r"], "is empty"),
    ],
)
def test_a_decision_without_what_it_needs_is_a_usage_error(arguments: list[str], said: str) -> None:
    result = runner.invoke(app, arguments)
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)


def test_options_are_changed_by_name_with_who_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    async def update(topic: str, name: str, answer: Any, request: Any) -> ConfigureOutcome:
        given.append((topic, name, request))
        return ConfigureOutcome(MigrationOptions(), {"open_transactions": ["wait", "abort"]})

    monkeypatch.setattr(operators, "update", update)
    arguments = ["configure", "orders", "--reason", "it hangs", "--by", "ada"]
    result = runner.invoke(app, [*arguments, "--option", "open-transactions=abort"])
    assert "open_transactions is abort now, it was wait" in result.output
    assert given == [
        (
            "orders",
            "configure",
            ConfigureRequest({"open_transactions": "abort"}, Decider("ada", "it hangs")),
        )
    ]
    result = runner.invoke(app, [*arguments, "--option", "open_transactions=abort", "-o", "json"])
    assert json.loads(result.output)["changed"] == {"open_transactions": ["wait", "abort"]}


def test_a_forced_completion_says_what_stays_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        operators, "update", AsyncMock(return_value=CompletionOutcome(incomplete=[3, 5]))
    )
    result = runner.invoke(app, ["complete", "orders", "--force", "--reason", "objects are lost"])
    assert result.exit_code == ExitCode.OK
    assert "the prefix of partition 3, 5 stays incomplete" in result.output


def test_a_log_gap_is_shown_with_who_holds_what(monkeypatch: pytest.MonkeyPatch) -> None:
    segment = UUID(int=9)
    parts = (GapPart(OffsetRange(80, 95), (segment,)), GapPart(OffsetRange(95, 100)))
    found = LogGap(0, parts, {"1": 80}, {"2": "no answer"})
    monkeypatch.setattr(operators, "_gaps", AsyncMock(return_value=[found]))
    result = runner.invoke(app, ["gap", "show", "orders"])
    assert "remote segments hold 80 to 94, which Kafka does not serve" in result.output
    assert "nobody holds 95 to 99" in result.output
    (gap,) = json.loads(runner.invoke(app, ["gap", "show", "orders", "-o", "json"]).output)["gaps"]
    assert [part["held_by"] for part in gap["parts"]] == [[str(segment)], []]
    monkeypatch.setattr(operators, "_gaps", AsyncMock(return_value=[]))
    assert "has no log gap" in runner.invoke(app, ["gap", "show", "orders"]).output


def test_what_is_kept_of_a_gap_is_said_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptSegments("s3://diskless/forensics/orders/", 2, 12, 900, 0)
    monkeypatch.setattr(operators, "_keep", AsyncMock(return_value=kept))
    result = runner.invoke(app, ["gap", "keep", "orders", "0"])
    assert "0 objects are new) are kept under s3://diskless/forensics/orders/" in result.output
