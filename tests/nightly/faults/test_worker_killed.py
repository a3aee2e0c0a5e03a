"""Schedule 13, and every other death of the worker: the migration goes on with the next one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.harness import Case, held_in_phases, one_fault_each
from tideline.domain.migration import Phase
from tideline.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.fault]


@pytest.mark.parametrize("phases", one_fault_each(list(Phase)), ids="-".join)
def test_a_worker_killed_in_this_phase_loses_nothing(stack: Stack, phases: Sequence[Phase]) -> None:
    with held_in_phases(stack, "worker", phases) as held:
        stack.kill("worker", restart=False)
        held.check()
        held.let_go()
        stack.start("worker")
        held.each(Case.end_well)
