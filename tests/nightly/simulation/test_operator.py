"""A second process that nobody ends gets the id when the first is away for longer than its lease,
and clients are told of the first: that is an operator's to end, if the gateway says so."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from tests.history.violations import Kind
from tests.simulation.faults import LEADERS, Fault
from tests.simulation.planted import BUGS
from tests.simulation.run import simulate
from tests.simulation.shrink import kinds_of
from tideline.gateway.tracking.lease import Lease

SEED = 1011
LEFT = Fault("double for ever", "clients", 0.277, 0.0, LEADERS)
LOST = Fault("kill and lose the disk of", "track", 1.147, 0.5, LEADERS)
CUT = Fault("cut", "track", 1.147, 5.0, LEADERS, "postgres")
STOPS = "an operator stops twin2"
UNSAID: Any = property(lambda lease: None, lambda lease, reading: None)
"""Who holds the id was never seen before, so that nobody says that it lives."""


@pytest.mark.parametrize("away", [LOST, CUT])
def test_everything_comes_to_rest_when_the_second_process_is_stopped(away: Fault) -> None:
    result = simulate(SEED, [LEFT, away])
    assert not result.violations, result.text()
    assert any(STOPS in event for event in result.events)


def test_a_second_process_that_only_waits_is_left_alone() -> None:
    result = simulate(SEED, [LEFT])
    assert not result.violations, result.text()
    assert not any(STOPS in event for event in result.events)


def test_a_gateway_that_does_not_say_so_is_stuck() -> None:
    result = simulate(SEED, [LEFT, LOST], patch.object(Lease, "_seen", UNSAID, create=True))
    assert Kind.STUCK in kinds_of(result)


def test_two_that_end_each_other_are_stuck_all_the_same() -> None:
    result = simulate(SEED, [LEFT, LOST], BUGS["registration"].planted())
    assert Kind.STUCK in kinds_of(result), result.text()
