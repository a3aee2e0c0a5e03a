"""Schedule 13, and every other death of the worker: the migration goes on with the next one."""

from __future__ import annotations

import pytest

from tests.harness import Breakpoint, migration_case
from tideline.domain.migration import Phase
from tideline.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.fault]


@pytest.mark.parametrize("phase", list(Phase))
def test_a_worker_killed_in_this_phase_loses_nothing(stack: Stack, phase: Phase) -> None:
    with migration_case(stack, name=f"worker-{phase.replace('_', '-')}") as case:
        case.produce()
        case.consume()
        case.until_acknowledged(50)
        stop = Breakpoint(case.superuser_dsn, case.topic_id, phase)
        try:
            case.trigger()
            stop.wait_until_hit()
            stack.kill("worker", restart=False)
            assert case.phases().get((0, phase)) != "done"
        finally:
            stop.release()
            stack.start("worker")
        case.until_ready()
        case.until_acknowledged(50)
        case.settle()
