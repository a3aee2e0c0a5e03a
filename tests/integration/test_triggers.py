"""Config change, command line and Temporal UI: every trigger meets at one migration."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from tests.harness import Breakpoint, Case, command, migration_case
from tests.support.waiting import HANGS_S, WITHIN_S, eventually, until
from tideline.domain.messages import TASK_QUEUE, TopicRef
from tideline.domain.migration import Phase
from tideline.errors import ExitCode
from tideline.stack import Stack


async def by_hand(
    stack: Stack, given: dict[str, Any], workflow_id: str
) -> WorkflowHandle[Any, Any]:
    """What the Temporal UI does: a workflow type, an input, any id."""
    client = await Client.connect(stack.endpoints.temporal)
    return await client.start_workflow(
        "TopicMigration", given, id=workflow_id, task_queue=TASK_QUEUE
    )


async def follows(stack: Stack, given: dict[str, Any], workflow_id: str) -> None:
    """Start by hand, until the workflow has found the topic's own."""
    handle = await by_hand(stack, given, workflow_id)

    async def is_following() -> bool:
        return str((await handle.query("status"))["stage"]).startswith("follows")

    await eventually(f"{workflow_id} to follow the topic's workflow", is_following, WITHIN_S)


async def outcome_of(stack: Stack, workflow_id: str) -> Any:
    client = await Client.connect(stack.endpoints.temporal)
    return await client.get_workflow_handle(workflow_id).result()


async def runs_of(stack: Stack, workflow_id: str) -> int:
    """How many runs a workflow id has had."""
    client = await Client.connect(stack.endpoints.temporal)
    return len([run async for run in client.list_workflows(f"WorkflowId = '{workflow_id}'")])


def by_config_change(stack: Stack, case: Case) -> None:
    case.trigger()


def by_command(stack: Stack, case: Case) -> None:
    command(stack, "migrate", case.topic, wait=True)


def by_temporal(stack: Stack, case: Case) -> None:
    asyncio.run(by_hand(stack, {"topic": case.topic}, f"by-hand-{case.topic}"))


@pytest.mark.parametrize("trigger", [by_config_change, by_command, by_temporal])
def test_a_topic_under_load_becomes_hybrid_and_no_client_notices(
    stack: Stack, trigger: Callable[[Stack, Case], None]
) -> None:
    with migration_case(stack, partitions=2, name=trigger.__name__.replace("_", "-")) as case:
        case.produce()
        case.consume()
        case.until_acknowledged(20)
        trigger(stack, case)
        case.end_well()
        assert min(case.boundaries()) > 0


def test_three_triggers_are_one_migration(stack: Stack) -> None:
    with migration_case(stack, name="triggers") as case:
        ref = TopicRef(case.topic, str(case.topic_id), case.partitions)
        # Held until all three have met: one that came after the end would start another run.
        stop = Breakpoint(case.superuser_dsn, case.topic_id, Phase.VALIDATE)
        try:
            case.trigger()
            joined = command(stack, "migrate", case.topic, "--wait")
            assert case.topic in joined.line()
            asyncio.run(follows(stack, {"topic": case.topic}, f"by-hand-{case.topic}"))
        finally:
            stop.release()
        outcome = asyncio.run(outcome_of(stack, f"by-hand-{case.topic}"))
        assert outcome["outcome"] == "hybrid"
        assert joined.wait(HANGS_S) == ExitCode.OK, joined.output()
        assert "is hybrid" in joined.answer()
        # Temporal lists a run a moment after it was there.
        runs = until("the run to be listed", lambda: asyncio.run(runs_of(stack, ref.workflow_id)))
        assert runs == 1
        shown = command(stack, "status", case.topic, "-o", "json")
        assert shown.wait(HANGS_S) == ExitCode.OK, shown.output()
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
    workflow_id = f"wrong-{named}-{len(str(given))}"
    asyncio.run(by_hand(stack, given, workflow_id))
    with pytest.raises(WorkflowFailureError) as failed:
        asyncio.run(outcome_of(stack, workflow_id))
    assert named in str(failed.value.cause)
