"""Schedule 13, and every other death of the worker: the migration goes on with the next one."""

from __future__ import annotations

import pytest

from tests.harness import held_in_phases
from tideline.domain.migration import Phase
from tideline.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.fault]


def test_a_worker_killed_in_any_phase_loses_nothing(stack: Stack) -> None:
    with held_in_phases(stack, "worker", list(Phase)) as held:
        stack.kill("worker", restart=False)
        held.check()
        held.let_go()
        stack.start("worker")
        held.end_well()
