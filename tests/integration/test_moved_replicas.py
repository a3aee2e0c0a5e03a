"""Replicas and leaders that somebody moves, through the gateways, while a topic migrates: in the
write pause. In the other states: nightly/stack/test_moved_replicas.py."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

from kio.schema.errors import ErrorCode

from tests.harness import Breakpoint, Case, command, leader_of, migration_case, quiesced
from tests.integration.test_api_answers import layout
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


def moved_in(stack: Stack, phase: Phase) -> None:
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


def test_replicas_and_leaders_move_in_the_write_pause_and_the_migration_ends(stack: Stack) -> None:
    moved_in(stack, Phase.ROLL_AND_FLUSH)
