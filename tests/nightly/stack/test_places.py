"""Topics beyond the places of those that migrate at once, whichever trigger started them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg

from tests.harness import Breakpoint, command, migration_case
from tests.integration.test_triggers import by_hand
from tests.support.waiting import HANGS_S, until
from tideline.domain.migration import Phase
from tideline.domain.places import SETTING
from tideline.errors import ExitCode
from tideline.stack import Stack


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
            abort = command(stack, "abort", third.topic, "--reason", "a test")
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
