"""Config change, command line and Temporal UI: every trigger meets at one migration."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from tests.harness import command, migration_case
from tideline.domain.messages import TASK_QUEUE, TopicRef
from tideline.errors import ExitCode
from tideline.stack import Stack


async def by_hand(stack: Stack, given: dict[str, Any], workflow_id: str) -> Any:
    """What the Temporal UI does: a workflow type, an input, any id."""
    client = await Client.connect(stack.endpoints.temporal)
    return await client.execute_workflow(
        "TopicMigration", given, id=workflow_id, task_queue=TASK_QUEUE
    )


async def runs_of(stack: Stack, workflow_id: str) -> int:
    """How many runs a workflow id has had."""
    client = await Client.connect(stack.endpoints.temporal)
    return len([run async for run in client.list_workflows(f"WorkflowId = '{workflow_id}'")])


def test_three_triggers_are_one_migration(stack: Stack) -> None:
    with migration_case(stack, name="triggers") as case:
        case.trigger()
        joined = command(stack, "migrate", case.topic, "--wait", "-o", "json")
        outcome = asyncio.run(by_hand(stack, {"topic": case.topic}, f"by-hand-{case.topic}"))
        assert outcome["outcome"] == "hybrid"
        assert joined.wait(120) == ExitCode.OK, joined.output()
        ref = TopicRef(case.topic, str(case.topic_id), case.partitions)
        assert asyncio.run(runs_of(stack, ref.workflow_id)) == 1
        shown = command(stack, "status", case.topic, "-o", "json")
        assert shown.wait(60) == ExitCode.OK, shown.output()
        assert json.loads(shown.answer()), shown.output()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"topik": "orders"}, "topik"),
        ({"topic": "orders", "options": {"durability": "certain"}}, "durability"),
        ({"topic": ""}, "topic"),
    ],
)
def test_wrong_json_fails_at_once_and_names_the_field(
    stack: Stack, given: dict[str, Any], named: str
) -> None:
    with pytest.raises(WorkflowFailureError) as failed:
        asyncio.run(by_hand(stack, given, f"wrong-{named}-{len(str(given))}"))
    assert named in str(failed.value.cause)
