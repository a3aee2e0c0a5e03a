"""An abort before B0 leaves the topic as it was; after B0 it is refused."""

from __future__ import annotations

import pytest

from tests.harness import Breakpoint, command, migration_case, until
from tideline.demo.topic import topic_configs
from tideline.domain.migration import PHASES, Phase
from tideline.errors import ExitCode
from tideline.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.fault]

BEFORE_B0 = [rule.phase for rule in PHASES if rule.abortable]


@pytest.mark.parametrize("phase", BEFORE_B0)
def test_an_abort_in_this_phase_restores_topic_and_configs(stack: Stack, phase: Phase) -> None:
    with migration_case(
        stack, name=f"abort-{phase.replace('_', '-')}", **{"retention.bytes": "99999999"}
    ) as case:
        case.produce()
        case.consume()
        case.until_acknowledged(50)
        before = topic_configs(case.admin, case.topic)
        stop = Breakpoint(case.superuser_dsn, case.topic_id, phase)
        try:
            case.trigger()
            stop.wait_until_hit()
            aborting = command(stack, "abort", case.topic, wait=False)
            until("the abort to be decided", lambda: case.rows("migration_state")[0][0]
                  == "TIERED_ONLY", 30.0)  # fmt: skip
        finally:
            stop.release()
        assert aborting.wait(60) == ExitCode.OK, aborting.output()
        until("configs as before", lambda: topic_configs(case.admin, case.topic) == before)
        assert case.boundaries() == [-1]
        case.until_acknowledged(100)
        case.settle()


def test_an_abort_after_the_boundary_is_refused_and_says_so(stack: Stack) -> None:
    with migration_case(stack, name="abort-late") as case:
        case.produce()
        case.consume()
        stop = Breakpoint(case.superuser_dsn, case.topic_id, Phase.ZOMBIE_CLEANUP)
        try:
            case.trigger()
            stop.wait_until_hit()
            boundary = case.boundaries()[0]
            assert boundary >= 0
            late = command(stack, "abort", case.topic)
            assert late.wait(60) == ExitCode.REFUSED, late.output()
            assert "B0" in late.output()
        finally:
            stop.release()
        case.until_ready()
        assert case.boundaries() == [boundary]
        case.settle()
