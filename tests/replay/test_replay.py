"""Workflows that run when a new version is deployed must go on: recorded histories replay."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from tests.temporal_build import BUILD_ID
from workflows.partition_migration import PartitionMigration
from workflows.tiered_storage_change import TieredStorageChange
from workflows.topic_migration import TopicMigration

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json.gz"))
KNOWN = [TopicMigration, PartitionMigration, TieredStorageChange]


@pytest.fixture(scope="module")
def failures() -> Mapping[str, Exception]:
    """By run id. One worker replays all of them: to start and to end one takes seconds."""
    return asyncio.run(replay([recorded(file) for file in HISTORIES]))


async def replay(histories: Sequence[WorkflowHistory]) -> Mapping[str, Exception]:
    async def one_by_one() -> AsyncIterator[WorkflowHistory]:
        for history in histories:
            yield history

    replayer = Replayer(workflows=KNOWN, build_id=BUILD_ID)
    found = await replayer.replay_workflows(one_by_one(), raise_on_replay_failure=False)
    return found.replay_failures


@pytest.mark.parametrize("file", HISTORIES, ids=lambda file: file.name.removesuffix(".json.gz"))
def test_a_recorded_history_replays(file: Path, failures: Mapping[str, Exception]) -> None:
    if (failure := failures.get(recorded(file).run_id)) is not None:
        raise failure


def test_each_history_is_of_a_run_of_its_own() -> None:
    assert len({recorded(file).run_id for file in HISTORIES}) == len(HISTORIES)


async def test_a_history_that_the_workflows_no_longer_follow_is_found() -> None:
    (file,) = (file for file in HISTORIES if file.name == "success.topic.json.gz")
    history = recorded(file).to_json_dict()
    (scheduled, *_) = (
        event["activityTaskScheduledEventAttributes"]
        for event in history["events"]
        if "activityTaskScheduledEventAttributes" in event
    )
    scheduled["activityType"]["name"] = "of_another_version"
    other = WorkflowHistory.from_json(recorded(file).workflow_id, history)
    (failure,) = (await replay([other, recorded(file)])).values()
    assert "of_another_version" in str(failure)


@cache
def recorded(file: Path) -> WorkflowHistory:
    """The history, under the workflow id that it had: the workflows look at it."""
    history = json.loads(gzip.decompress(file.read_bytes()))
    started = history["events"][0]["workflowExecutionStartedEventAttributes"]
    return WorkflowHistory.from_json(started["workflowId"], history)


def test_every_ending_and_interruption_has_been_recorded() -> None:
    names = {file.name.split(".")[0] for file in HISTORIES}
    assert {"success", "abort", "late_abort", "retries", "pause_and_resume"} <= names
    assert {"configure", "accepted_gap", "forced", "overdue", "continued"} <= names
    assert {"follower", "looked_at_together", "asked_for_each_pause"} <= names
    assert {"waits_for_place", "place_never_came"} <= names
    assert {"let_through", "permit_given_back", "looks_again"} <= names
    assert {"switched_off", "enabled_again", "redirected"} <= names
