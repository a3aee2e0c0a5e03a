"""An abort before B0 leaves the topic as it was; after B0 it is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.harness import (
    Breakpoint,
    Case,
    command,
    held_in_phases,
    migration_case,
    one_fault_each,
)
from tests.support.waiting import HANGS_S, until
from tideline.demo.topic import topic_configs
from tideline.domain.migration import PHASES, Phase
from tideline.errors import ExitCode
from tideline.stack import Stack

BEFORE_B0 = [rule.phase for rule in PHASES if rule.abortable]


@pytest.mark.parametrize("phases", one_fault_each(BEFORE_B0), ids="-".join)
def test_an_abort_in_this_phase_restores_topic_and_configs(
    stack: Stack, phases: Sequence[Phase]
) -> None:
    limit = {"retention.bytes": "99999999"}
    with (
        migration_case(stack, history=0, name="never-migrated", **limit) as other,
        held_in_phases(stack, "abort", phases, **limit) as held,
    ):
        before = topic_configs(other.admin, other.topic)
        why = ("--reason", "a test")
        aborting = [command(stack, "abort", case.topic, *why) for case in held.cases]
        held.each(decided)
        held.let_go()
        for one in aborting:
            assert one.wait(HANGS_S) == ExitCode.OK, one.output()

        def restored(case: Case) -> None:
            until("configs as before", lambda: topic_configs(case.admin, case.topic) == before)
            assert case.boundaries() == [-1]
            case.until_acknowledged(40)
            case.settle()

        held.each(restored)


def decided(case: Case) -> None:
    """The abort has won over B0."""
    until(f"the abort of {case.topic} to be decided",
          lambda: case.rows("migration_state")[0][0] == "TIERED_ONLY")  # fmt: skip


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
            late = command(stack, "abort", case.topic, "--reason", "a test")
            assert late.wait(HANGS_S) == ExitCode.REFUSED, late.output()
            assert "B0" in late.output()
        finally:
            stop.release()
        case.until_ready()
        assert case.boundaries() == [boundary]
        case.settle()
