"""Schedule 13, and every other death of the worker: the migration goes on with the next one. In
most phases: integration/test_faults.py."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.integration.test_faults import OTHER_PHASES, worker_killed_in
from tideline.domain.migration import Phase
from tideline.stack import Stack


@pytest.mark.parametrize("phases", OTHER_PHASES, ids="-".join)
def test_a_worker_killed_in_this_phase_loses_nothing(stack: Stack, phases: Sequence[Phase]) -> None:
    worker_killed_in(stack, phases)
