"""A gateway and the stock broker beside it, asked the same odd requests
(``tests/differential``)."""

from __future__ import annotations

from tests.differential.pair import machine_on
from tideline.stack import Stack

ASKED = 400


def test_a_gateway_answers_odd_requests_as_the_broker_beside_it(stack: Stack) -> None:
    with machine_on(stack) as machine:
        report = machine.run(seed=1, count=ASKED)
    assert not report.found, report.text()
