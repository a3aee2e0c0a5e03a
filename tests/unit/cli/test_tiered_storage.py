"""``tideline tiered-storage``: what is refused before anything is asked, and how it is shown."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import AsyncMock

import pytest
from typer.testing import CliRunner

from tideline.cli import tiered_storage
from tideline.cli.app import app
from tideline.domain.tiered_storage import NOT_WITHOUT_DELETING, LocalRetention, TieringState
from tideline.domain.tiered_storage_change import (
    TieredStorageInput,
    TieredStorageOutcome,
    TieredStorageStatus,
)
from tideline.errors import ExitCode, RefusedError, UsageError
from tideline.migration.tiered_storage import PartitionTiering, TopicTiering

runner = CliRunner()
PARTITION = PartitionTiering(0, 40, 90, 200, 120, 3, 4_000, 15)
FOUND = TopicTiering(
    "orders", "an id", TieringState.ENABLED, {"remote.storage.enable": "true"}, (PARTITION,)
)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[TieredStorageInput]:
    given: list[TieredStorageInput] = []

    async def start(wanted: TieredStorageInput, **_: Any) -> None:
        given.append(wanted)

    monkeypatch.setattr(tiered_storage, "_start", start)
    return given


def looks(
    monkeypatch: pytest.MonkeyPatch, found: TopicTiering, running: Any = None, left: Any = None
) -> None:
    monkeypatch.setattr(tiered_storage, "_look", AsyncMock(return_value=(found, running, left)))


def test_off_without_a_word_about_the_data_is_refused_with_kafkas_message() -> None:
    result = runner.invoke(app, ["tiered-storage", "disable", "orders"])
    assert isinstance(result.exception, RefusedError)
    assert NOT_WITHOUT_DELETING in str(result.exception)
    assert result.exception.exit_code is ExitCode.REFUSED


def test_keeping_and_deleting_exclude_each_other() -> None:
    result = runner.invoke(app, ["tiered-storage", "disable", "orders", "--keep", "--delete"])
    assert isinstance(result.exception, UsageError)


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        (["read-only", "orders"], "read-only"),
        (["disable", "orders", "--keep"], "read-only"),
        (["disable", "orders", "--delete"], "disabled"),
        (["enable", "orders"], "enabled"),
    ],
)
def test_each_verb_has_its_target(
    arguments: list[str], target: str, started: list[TieredStorageInput]
) -> None:
    assert runner.invoke(app, ["tiered-storage", *arguments]).exit_code == ExitCode.OK
    assert [given.target for given in started] == [target]


def test_a_local_retention_to_have_at_the_end_is_handed_on(
    started: list[TieredStorageInput],
) -> None:
    runner.invoke(app, ["tiered-storage", "enable", "orders", "--local-retention-ms", "60000"])
    (given,) = started
    assert (given.local_retention_ms, given.local_retention_bytes) == (60_000, None)


def test_a_wrong_name_is_a_usage_error(started: list[TieredStorageInput]) -> None:
    result = runner.invoke(app, ["tiered-storage", "enable", "no topic"])
    assert isinstance(result.exception, UsageError)
    assert started == []


def test_the_state_is_shown_for_people_and_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, FOUND)
    shown = runner.invoke(app, ["tiered-storage", "show", "orders"])
    assert "orders: enabled" in shown.output
    assert "remote.storage.enable=true" in shown.output
    document = json.loads(
        runner.invoke(app, ["tiered-storage", "show", "orders", "-o", "json"]).output
    )
    assert (document["state"], document["proven"], document["switch"]) == ("enabled", True, None)
    assert document["partitions"][0]["highest_tiered"] == 120


def test_what_is_not_proven_is_shown_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = PartitionTiering(0, 40, 40, 200, 120, 0, 0, 0, "offsets up to 120 are nowhere")
    looks(monkeypatch, TopicTiering("orders", "an id", TieringState.ENABLED, {}, (partition,)))
    shown = runner.invoke(app, ["tiered-storage", "show", "orders"]).output
    assert "partition 0: offsets up to 120 are nowhere" in shown
    assert "run `tideline tiered-storage enable orders`" in shown


def test_what_a_switch_waits_for_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    status = TieredStorageStatus(
        "orders", "id", "enabled", "prove coverage", "", "offsets are nowhere", True
    )
    looks(monkeypatch, FOUND, status)
    shown = runner.invoke(app, ["tiered-storage", "show", "orders"]).output
    assert "to enabled: prove coverage; local retention is held: offsets are nowhere" in shown


def test_what_a_terminated_switch_has_left_is_shown_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = TieredStorageInput("orders", "enabled", before_hold=LocalRetention("3600000", None))
    looks(monkeypatch, FOUND, left=left)
    shown = runner.invoke(app, ["tiered-storage", "show", "orders"]).output.replace("\n", " ")
    assert "local.retention.ms=3600000, local.retention.bytes=(not set)" in shown
    assert "tideline tiered-storage resume orders" in shown


def test_an_outcome_says_what_was_collected() -> None:
    outcome = TieredStorageOutcome("orders", "id", "disabled", "enabled", 5, "A note.")
    assert tiered_storage._said(outcome) == (
        "orders is disabled, it was enabled. 5 objects that Kafka had left behind were collected. "
        "A note."
    )
