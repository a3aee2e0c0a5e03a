"""Leaders that die or move around the boundary, and the controller that elects them."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from tests.harness import (
    Breakpoint,
    Case,
    held_in_phases,
    killed,
    leader_of,
    migration_case,
    one_fault_each,
)
from tests.raw import ask, message
from tests.support.waiting import until
from tideline.domain.migration import Phase, phase_rule
from tideline.stack import Stack

BETWEEN = (Phase.ROLL_AND_FLUSH, Phase.SEED_AND_PERSIST)
"""Between quiesce and persist."""
(ALL_OTHERS,) = one_fault_each([phase for phase in Phase if phase not in BETWEEN])


@pytest.mark.parametrize("phase", BETWEEN)
def test_a_leader_killed_between_quiesce_and_persist_is_observed_anew(
    stack: Stack, phase: Phase
) -> None:
    """Seed 000, "Leader failure during migration": B0 carries the new leader's epoch."""
    with migration_case(stack, name="leader-killed") as case:
        case.produce()
        case.consume()
        case.until_acknowledged(20)
        stop = Breakpoint(case.superuser_dsn, case.topic_id, phase)
        leader, epoch = leader_of(stack, case.topic, 0)
        try:
            case.trigger()
            stop.wait_until_hit()
            assert case.boundaries() == [-1]
            with killed(stack, f"kafka-{leader}"):
                until(
                    "a new leader",
                    lambda: leader_of(stack, case.topic, 0, avoid=leader)[1] > epoch,
                )
                stop.release()
                case.until_crossed()
                assert int(str(case.rows("diskless_log_start_epoch")[0][0])) > epoch
        finally:
            stop.release()
        case.until_ready()
        case.until_acknowledged(20)
        case.settle()


def test_a_leader_killed_in_any_other_phase_loses_nothing(stack: Stack) -> None:
    """One broker leads a partition in each of these phases. What is observed of a leader counts
    while it leads: a B0 that is set later carries the epoch of one that came after it, and one that
    stood already stays."""
    leader, *others = stack.endpoints.brokers
    with held_in_phases(stack, "leader-killed", ALL_OTHERS, placed=(leader, *others)) as held:
        before = {case.topic: leader_of(stack, case.topic, 0) for case in held.cases}
        assert {node for node, _ in before.values()} == {leader}

        def led_anew(case: Case) -> bool:
            return leader_of(stack, case.topic, 0, avoid=leader)[1] > before[case.topic][1]

        with killed(stack, f"kafka-{leader}"):
            held.each(lambda case: until(f"a new leader of {case.topic}", lambda: led_anew(case)))
            held.check()
            held.let_go()
        held.each(Case.end_well)
        for case, stop in held.migrations:
            found = int(str(case.rows("diskless_log_start_epoch")[0][0]))
            is_later = found > before[case.topic][1]
            assert is_later == phase_rule(stop.phase).abortable, (stop.phase, found)


def active_controller(stack: Stack, avoid: int = -1) -> tuple[int, int] | None:
    """(node, epoch), from a broker other than ``avoid``; None while there is none."""
    asked = message("DescribeQuorum", 2, topics=[
        {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    ])  # fmt: skip
    told = ask(next(at for node, at in stack.endpoints.brokers.items() if node != avoid), asked)
    for quorum in (p for topic in told.topics for p in topic.partitions):
        if quorum.error_code is ErrorCode.none and quorum.leader_id > 0:
            return int(quorum.leader_id), int(quorum.leader_epoch)
    return None


def test_the_active_controller_stopped_during_a_migration_loses_nothing(stack: Stack) -> None:
    """Before the write pause: the configs of the roll and of the seal are the next one's to make.
    The partition's leader stays."""
    controller, epoch = until("an active controller", lambda: active_controller(stack))
    others = [node for node in stack.endpoints.brokers if node != controller]
    with held_in_phases(
        stack, "controller-stopped", [Phase.DRAIN_TRANSACTIONS], placed=(*others, controller)
    ) as held:
        (case,) = held.cases
        assert leader_of(stack, case.topic, 0)[0] == others[0]

        def is_replaced() -> bool:
            found = active_controller(stack, avoid=controller)
            return found is not None and found[0] != controller and found[1] > epoch

        with killed(stack, f"kafka-{controller}"):
            until("another active controller", is_replaced)
            held.check()
            held.let_go()
            assert leader_of(stack, case.topic, 0, avoid=controller)[0] == others[0]
            case.until_acknowledged(20)
        case.end_well()


def test_nobody_past_the_boundary_is_sent_back_when_the_leader_moves(stack: Stack) -> None:
    """Schedule 8: positions past B0 survive a higher leader epoch."""
    with migration_case(stack, name="leader-moves") as case:
        case.produce()
        case.consume()
        case.until_acknowledged(20)
        case.trigger()
        case.until_ready()
        boundary = case.boundaries()[0]
        until("a consumer past B0", lambda: case.ledger.consumed_through(0) > boundary)
        leader, epoch = leader_of(stack, case.topic, 0)
        with killed(stack, f"kafka-{leader}"):
            until(
                "a new leader",
                lambda: leader_of(stack, case.topic, 0, avoid=leader)[1] > epoch,
            )
            case.until_acknowledged(20)
        case.until_acknowledged(20)
        case.settle()
