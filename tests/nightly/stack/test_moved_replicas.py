"""Replicas and leaders that somebody moves, through the gateways, while a topic migrates.

Nothing of it is refused. To the migration it is a change of the leader, or something to wait for
that its status names; B0 carries the epoch of the leader that was looked at last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ResourceType,
)

from tests.harness import Breakpoint, Case, alter_configs, command, migration_case
from tests.integration.test_api_answers import layout, tool
from tests.integration.test_moved_replicas import (
    moved_in,
    under_way,
)
from tests.raw import doors
from tests.support.waiting import until
from tideline.domain.migration import Phase
from tideline.stack import Stack


@pytest.mark.parametrize(
    "phase", [Phase.DRAIN_TRANSACTIONS, Phase.SEED_AND_PERSIST, Phase.ZOMBIE_CLEANUP]
)
def test_replicas_and_leaders_move_in_every_state_and_the_migration_ends(
    stack: Stack, phase: Phase
) -> None:
    """In roll_and_flush: integration/test_moved_replicas.py."""
    moved_in(stack, phase)


@contextmanager
def slow_reassignment(stack: Stack, case: Case, plan: Path) -> Iterator[None]:
    """From brokers 1 and 2 to 3 and 2 by Kafka's own tool through the gateways, so slowly that it
    is under way as long as producers go on."""
    wanted = {"topic": case.topic, "partition": 0, "replicas": [3, 2]}
    plan.write_text(json.dumps({"version": 1, "partitions": [wanted]}))

    def reassignment(*how: str) -> str:
        return tool(
            "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
            "--bootstrap-server", case.bootstrap, "--reassignment-json-file", str(plan), *how,
        )  # fmt: skip

    try:
        throttle(stack, case)
        reassignment("--execute", "--throttle", "1")
        assert underway_everywhere(stack, case) == [([1, 2, 3], [3], [1])]
        yield
    finally:
        try:
            reassignment("--execute", "--additional", "--throttle", "100000000")
            until("replicas at 3 and 2", lambda: layout(stack, case).replicas == (3, 2))
        finally:
            told = reassignment("--verify")  # and takes the throttle away
    assert "completed" in told
    assert underway_everywhere(stack, case) == []


def throttle(stack: Stack, *cases: Case) -> None:
    """As the tool sets it, and already exceeded by what is replicated of ``cases``: else a new
    replica may have everything with its first fetch."""
    admin = AdminClient({"bootstrap.servers": stack.endpoints.kafka_bootstrap})
    wanted = [(ResourceType.TOPIC, case.topic, "replicas", "*") for case in cases]
    wanted += [(ResourceType.BROKER, str(node), "rate", "1") for node in stack.endpoints.brokers]
    for kind, name, what, value in wanted:
        throttles = {
            f"{side}.replication.throttled.{what}": value for side in ("leader", "follower")
        }
        alter_configs(admin, name, throttles, kind=kind)
    for case in cases:
        case.until_acknowledged(20)


def underway_everywhere(stack: Stack, case: Case) -> list[tuple[list[int], list[int], list[int]]]:
    """As gateways and brokers say alike."""
    with doors(stack.endpoints.gateways) as asked, doors(stack.endpoints.brokers) as brokers:
        told = under_way(asked, case.topic)
        assert told == under_way(brokers, case.topic)
        return told


def test_a_migration_does_not_begin_while_replicas_move_and_does_once_they_have(
    stack: Stack, tmp_path: Path
) -> None:
    with migration_case(stack, name="moving-before", placed=(1, 2)) as case:
        case.produce()
        case.consume()
        case.until_acknowledged(20)
        with slow_reassignment(stack, case, tmp_path / "plan.json"):
            refused = command(stack, "migrate", case.topic)
            assert refused.wait(600) != 0
            assert "partitions being reassigned: 0" in refused.output()
            assert case.rows("partition") == []
        case.trigger()
        case.until_crossed()
        case.end_well()


def test_replicas_that_move_when_the_boundary_is_set_are_waited_for_by_name(
    stack: Stack, tmp_path: Path
) -> None:
    """Begun while the topic is pending; B0 does not wait for it, readiness does. The new replica
    has the prefix before anybody reads it there, and nobody overrides the reassignment."""
    with (
        migration_case(stack, name="moving-beside", placed=(1, 2)) as beside,
        migration_case(stack, name="moving-after", placed=(1, 2)) as case,
    ):
        beside.produce()
        case.produce()
        case.consume()
        case.until_acknowledged(20)
        stop = Breakpoint(case.superuser_dsn, case.topic_id, Phase.DRAIN_TRANSACTIONS)
        try:
            case.trigger()
            stop.wait_until_hit()
            with slow_reassignment(stack, case, tmp_path / "plan.json"):
                # Of the topic itself nothing is replicated past B0, and nothing is throttled then.
                throttle(stack, case, beside)
                stop.release()
                (boundary,) = case.until_crossed()

                def waits() -> bool:
                    """What `tideline status` shows, while it is true."""
                    why = case.waiting_reason(Phase.ZOMBIE_CLEANUP) or ""
                    moving = underway_everywhere(stack, case) == [([1, 2, 3], [3], [1])]
                    return moving and f"replicas [3] do not reach B0 = {boundary}" in why

                until("the reason of the wait", waits)
                case.until_acknowledged(20)
        finally:
            stop.release()
        case.end_well()
        assert case.boundaries() == [boundary]
