"""Workflows that run when a new version is deployed must go on: recorded histories replay."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from workflows.partition_migration import PartitionMigration
from workflows.tiered_storage_change import TieredStorageChange
from workflows.topic_migration import TopicMigration

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json.gz"))


@pytest.mark.parametrize("file", HISTORIES, ids=lambda file: file.name.removesuffix(".json.gz"))
async def test_a_recorded_history_replays(file: Path) -> None:
    known = [TopicMigration, PartitionMigration, TieredStorageChange]
    await Replayer(workflows=known).replay_workflow(recorded(file))


def recorded(file: Path) -> WorkflowHistory:
    """The history, under the workflow id that it had: the workflows look at it."""
    history = json.loads(gzip.decompress(file.read_bytes()))
    started = history["events"][0]["workflowExecutionStartedEventAttributes"]
    return WorkflowHistory.from_json(started["workflowId"], history)


def test_every_ending_and_interruption_has_been_recorded() -> None:
    names = {file.name.split(".")[0] for file in HISTORIES}
    assert {"success", "abort", "late_abort", "retries", "pause_and_resume"} <= names
    assert {"configure", "accepted_gap", "forced", "overdue", "continued"} <= names
    assert {"joined", "follower", "looked_at_together", "asked_for_each_pause"} <= names
    assert {"waits_for_place", "place_never_came"} <= names
    assert {"switched_off", "enabled_again", "redirected"} <= names
