"""Replicas and leaders that somebody moves, through the gateways, while a topic migrates.

Nothing of it is refused. To the migration it is a change of the leader, or something to wait for
that its status names; B0 carries the epoch of the leader that was looked at last.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kio.schema.errors import ErrorCode

from tests.harness import Breakpoint, Case, command, leader_of, migration_case, quiesced
from tests.integration.test_api_answers import layout, tool
from tests.raw import Doors, doors
from tests.support.waiting import until
from tideline.domain.migration import Phase
from tideline.stack import Stack

OK = ErrorCode.none
PATIENCE = timedelta(seconds=30)
HOLD_S = 60
"""Of a quiesce: replicas are moved inside it, on a machine that is not too busy."""


def reassign(asked: Doors, topic: str, replicas: Sequence[int]) -> None:
    told = asked.ask(
        "AlterPartitionReassignments", timeout=PATIENCE, allow_replication_factor_change=True,
        topics=[{"name": topic, "partitions": [
            {"partition_index": 0, "replicas": list(replicas)}
        ]}],
    )  # fmt: skip
    assert [p.error_code for t in told.responses for p in t.partitions] == [OK], told


def elect_preferred(asked: Doors, topic: str) -> ErrorCode:
    told = asked.ask(
        "ElectLeaders", election_type=0, timeout=PATIENCE,
        topic_partitions=[{"topic": topic, "partitions": [0]}],
    )  # fmt: skip
    (code,) = (p.error_code for r in told.replica_election_results for p in r.partition_result)
    assert isinstance(code, ErrorCode)
    return code


def under_way(asked: Doors, topic: str) -> list[tuple[list[int], list[int], list[int]]]:
    """Replicas, those that come and those that go."""
    told = asked.ask(
        "ListPartitionReassignments", timeout=PATIENCE,
        topics=[{"name": topic, "partition_indexes": [0]}],
    )  # fmt: skip
    assert told.error_code is OK, told
    return [
        (sorted(p.replicas), list(p.adding_replicas), list(p.removing_replicas))
        for t in told.topics
        for p in t.partitions
    ]


def move_twice(stack: Stack, case: Case) -> int:
    """From brokers 1 and 2 to 3 and 2, and the leader from 3 to 2 then. The new leader epoch."""
    leader, epoch = leader_of(stack, case.topic, 0)
    assert leader == 1
    with doors(stack.endpoints.gateways) as asked, doors(stack.endpoints.brokers) as brokers:
        reassign(asked, case.topic, [3, 2])
        until("replicas at 3 and 2", lambda: layout(stack, case).replicas == (3, 2))
        until("a leader there", lambda: leader_of(stack, case.topic, 0)[0] in (3, 2))
        reassign(asked, case.topic, [2, 3])
        until("the new order", lambda: layout(stack, case).replicas == (2, 3))
        code = elect_preferred(asked, case.topic)
        assert code in {OK, ErrorCode.election_not_needed}, code
        until("broker 2 to lead", lambda: leader_of(stack, case.topic, 0)[0] == 2)
        for door in (asked, brokers):
            assert under_way(door, case.topic) == []
            assert elect_preferred(door, case.topic) is ErrorCode.election_not_needed
    _, new = leader_of(stack, case.topic, 0)
    assert new > epoch
    return new


@pytest.mark.parametrize(
    "phase",
    [Phase.DRAIN_TRANSACTIONS, Phase.ROLL_AND_FLUSH, Phase.SEED_AND_PERSIST, Phase.ZOMBIE_CLEANUP],
)
def test_replicas_and_leaders_move_in_every_state_and_the_migration_ends(
    stack: Stack, phase: Phase
) -> None:
    """Before the pause, inside it before B0 is looked for, inside it once it was seen, and after
    it. Before B0 the epoch fences: B0 is never that of the leader that was."""
    with migration_case(stack, name="moved", placed=(1, 2)) as case:
        case.produce()
        case.consume()
        case.until_acknowledged(20)
        stop = Breakpoint(case.superuser_dsn, case.topic_id, phase)
        try:
            command(
                stack, "migrate", case.topic, "--quiesce-hold-ms", str(HOLD_S * 1000), wait=True
            )
            stop.wait_until_hit()
            hit = time.monotonic()
            before = case.boundaries()
            inside = phase in (Phase.ROLL_AND_FLUSH, Phase.SEED_AND_PERSIST)
            assert quiesced(case, 0) == inside
            assert (before == [-1]) == (phase is not Phase.ZOMBIE_CLEANUP)
            epoch = move_twice(stack, case)
            assert case.boundaries() == before
            outlasted = time.monotonic() - hit > HOLD_S - 10
            assert outlasted or quiesced(case, 0) == inside, "it was moved where this test says"
        finally:
            stop.release()
        (boundary,) = case.until_crossed()
        ((at_epoch,),) = case.rows("diskless_log_start_epoch")
        if before == [-1]:
            assert at_epoch == epoch
        else:
            assert [boundary] == before
            assert int(str(at_epoch)) < epoch
        case.end_well()


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
        entries = [
            ConfigEntry(
                f"{side}.replication.throttled.{what}",
                value,
                incremental_operation=AlterConfigOpType.SET,
            )
            for side in ("leader", "follower")
        ]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        admin.incremental_alter_configs([resource])[resource].result(60)
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
