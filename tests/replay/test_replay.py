"""Workflows that run when a new version is deployed must go on: recorded histories replay."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from tests.temporal_build import BUILD_ID
from tideline.domain.messages import Update
from workflows.partition_migration import PartitionMigration
from workflows.tiered_storage_change import TieredStorageChange
from workflows.topic_migration import TopicMigration

DIRECTORY = Path(__file__).parent / "histories"
HISTORIES = sorted(DIRECTORY.rglob("*.json.gz"))
KNOWN = [TopicMigration, PartitionMigration, TieredStorageChange]
FOLLOWS_A_RUN, REFUSED = "follows a run", "an update was refused"
CASES: dict[str, dict[str, int]] = {
    "many.topic": {"start_child_initiated": 29, "child_canceled": 3, "child_terminated": 1},
    "begun_again.partition": {"reopen_partition": 3, "pause": 1, "resume": 1, "completed": 1},
    "cancelled_in_pause.partition": {"reopen_partition": 1, "canceled": 1},
    "continued.topic": {FOLLOWS_A_RUN: 1, "start_child_failed": 1, "continued_as_new": 1},
    "continued.partition": {FOLLOWS_A_RUN: 1, "reopen_partition": 1, "continued_as_new": 1},
    "deleted.topic": {FOLLOWS_A_RUN: 1, "failed": 1},
    "deleted.partition": {"readiness": 3, "completed": 1},
    "steered.topic": {**dict.fromkeys(Update, 1), REFUSED: 4, "cancel_requested": 1},
    "called_off.topic": {"abort": 1, "cancel_requested": 1, "stop_tracking": 1, "canceled": 1},
    "called_off.partition": {"drain_transactions": 2, "completed": 1},
    "follower.topic": {"follow_topic_migration": 2, "completed": 1},
    "switched.topic": {"target": 2, REFUSED: 1, "finish_remote_deletion": 2, "completed": 1},
}
"""What happens in each history at least so often, in the words of :func:`happened`."""


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


def name_of(file: Path) -> str:
    return str(file.relative_to(DIRECTORY)).removesuffix(".json.gz")


@pytest.mark.parametrize("file", HISTORIES, ids=name_of)
def test_a_recorded_history_replays(file: Path, failures: Mapping[str, Exception]) -> None:
    if (failure := failures.get(recorded(file).run_id)) is not None:
        raise failure


def test_each_history_is_of_a_run_of_its_own() -> None:
    assert len({recorded(file).run_id for file in HISTORIES}) == len(HISTORIES)


async def test_a_history_that_the_workflows_no_longer_follow_is_found() -> None:
    right = recorded(DIRECTORY / "many.topic.json.gz")
    history = right.to_json_dict()
    (scheduled, *_) = (
        event["activityTaskScheduledEventAttributes"]
        for event in history["events"]
        if "activityTaskScheduledEventAttributes" in event
    )
    scheduled["activityType"]["name"] = "of_another_version"
    other = WorkflowHistory.from_json(right.workflow_id, history)
    (failure,) = (await replay([other, right])).values()
    assert "of_another_version" in str(failure)


@cache
def recorded(file: Path) -> WorkflowHistory:
    """The history, under the workflow id that it had: the workflows look at it."""
    history = json.loads(gzip.decompress(file.read_bytes()))
    started = history["events"][0]["workflowExecutionStartedEventAttributes"]
    return WorkflowHistory.from_json(started["workflowId"], history)


def test_the_histories_hold_these_cases() -> None:
    files = {name_of(file): file for file in DIRECTORY.glob("*.json.gz")}
    assert files.keys() == CASES.keys()
    for name, cases in CASES.items():
        found = Counter(happened(recorded(files[name])))
        assert Counter(cases) <= found, name


def happened(history: WorkflowHistory) -> Iterator[str]:
    """Kinds of events, activities that were scheduled (local ones leave a marker that names none),
    and updates that were accepted."""
    for event in history.events:
        kind = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").lower()
        yield kind.replace("workflow_execution_", "")
        yield event.activity_task_scheduled_event_attributes.activity_type.name
        update = event.workflow_execution_update_accepted_event_attributes
        yield update.accepted_request.input.name
        if event.workflow_execution_started_event_attributes.continued_execution_run_id:
            yield FOLLOWS_A_RUN
        if event.workflow_execution_update_completed_event_attributes.outcome.HasField("failure"):
            yield REFUSED
