"""Config change, command line and Temporal UI: every trigger meets at one migration."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from tests.harness import Breakpoint, Case, command, migration_case
from tests.support.waiting import HANGS_S, until
from tideline.domain.messages import TASK_QUEUE, TopicRef
from tideline.domain.migration import Phase
from tideline.domain.places import SETTING
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
    for _ in range(600):
        if (await handle.query("status"))["stage"].startswith("follows"):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{workflow_id} does not follow the topic's workflow")


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
        assert asyncio.run(runs_of(stack, ref.workflow_id)) == 1
        shown = command(stack, "status", case.topic, "-o", "json")
        assert shown.wait(HANGS_S) == ExitCode.OK, shown.output()
        assert json.loads(shown.answer()), shown.output()


def test_topics_beyond_the_places_wait_visibly_whichever_trigger_started_them(
    stack: Stack,
) -> None:
    with ExitStack() as open_:
        first, second, third = (
            open_.enter_context(migration_case(stack, name=f"places-{trigger}"))
            for trigger in ("config", "cli", "ui")
        )
        # The first keeps its place for as long as this looks at the others.
        stop = Breakpoint(first.superuser_dsn, first.topic_id, Phase.VALIDATE)
        open_.callback(stop.release)
        with all_places_but_one(stack, first.superuser_dsn) as places:
            first.trigger()
            until("the place to be taken", lambda: waits(places, first.topic) is False)
            command(stack, "migrate", second.topic, wait=True)
            until("the second to wait", lambda: waits(places, second.topic))
            asyncio.run(by_hand(stack, {"topic": third.topic}, f"by-hand-{third.topic}"))
            until("the third to wait", lambda: waits(places, third.topic))
            until("the third to say so", lambda: "1 before it" in reason(stack, third.topic))
            # Nothing of it has changed, and an abort takes it out of the line.
            abort = command(stack, "abort", third.topic)
            assert abort.wait(HANGS_S) == ExitCode.OK, abort.output()
            until("the third to leave", lambda: waits(places, third.topic) is None)
            # The first ends: its place is the second's.
            stop.release()
            first.until_ready()
            second.until_ready()
        assert third.rows("partition") == []
        # A candidate still, which only Kafka knows.
        assert third.topic in in_state(stack, "TIERED_ONLY")
        assert third.topic not in in_state(stack, "HYBRID")
        assert {first.topic, second.topic} <= in_state(stack, "HYBRID")
        assert not {first.topic, second.topic} & in_state(stack, "TIERED_ONLY")


def in_state(stack: Stack, state: str) -> set[str]:
    """Topics that ``tideline status`` lists by state."""
    shown = command(stack, "status", "--state", state, "-o", "json")
    assert shown.wait(HANGS_S) == ExitCode.OK, shown.output()
    return {topic["topic"] for topic in json.loads(shown.answer())["topics"]}


@contextmanager
def all_places_but_one(stack: Stack, dsn: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Every other place belongs to a topic of which somebody has just heard."""
    count = int(stack.environment("worker")[SETTING]) - 1
    with psycopg.connect(dsn, autocommit=True) as places:
        places.execute("DELETE FROM tideline.migration_places")
        places.execute(
            """INSERT INTO tideline.migration_places (topic_id, topic, run, taken_at, seen_at)
               SELECT gen_random_uuid(), 'elsewhere', 'elsewhere', now(), now() + interval '1 day'
               FROM generate_series(1, %s)""",
            [count],
        )
        try:
            yield places
        finally:
            places.execute("DELETE FROM tideline.migration_places WHERE topic = 'elsewhere'")


def waits(places: psycopg.Connection[tuple[object, ...]], topic: str) -> bool | None:
    """``None``: the topic has no place and has asked for none."""
    asked = "SELECT taken_at IS NULL FROM tideline.migration_places WHERE topic = %s"
    found = places.execute(asked, [topic]).fetchone()
    return None if found is None else bool(found[0])


def reason(stack: Stack, topic: str) -> str:
    """What ``tideline status`` says of why the topic waits."""
    shown = command(stack, "status", topic, "-o", "json")
    assert shown.wait(HANGS_S) == ExitCode.OK, shown.output()
    return str(json.loads(shown.answer())["topics"][0]["waiting_reason"])


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
