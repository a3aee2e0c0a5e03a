"""Leaders that die or move around the boundary."""

from __future__ import annotations

import pytest

from tests.harness import Breakpoint, killed, leader_of, migration_case
from tests.support.waiting import until
from tideline.domain.migration import Phase
from tideline.stack import Stack


@pytest.mark.parametrize("phase", [Phase.ROLL_AND_FLUSH, Phase.SEED_AND_PERSIST])
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
