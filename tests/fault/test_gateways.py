"""Gateways that die, sleep and come back around the boundary."""

from __future__ import annotations

import pytest

from tests.harness import Breakpoint, gateways, leader_of, migration_case, quiesced, until
from tideline.domain.migration import Phase
from tideline.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.fault]


def test_a_gateway_killed_in_quiesce_is_fenced_and_the_pause_ends(stack: Stack) -> None:
    with migration_case(stack, name="gateway-killed") as case:
        case.produce()
        case.consume()
        case.until_acknowledged(50)
        leader, _ = leader_of(stack, case.topic, 0)
        stop = Breakpoint(case.superuser_dsn, case.topic_id, Phase.QUIESCE)
        incarnation = gateways(case)[leader].incarnation
        try:
            case.trigger()
            stop.wait_until_hit()
            stack.suspend(f"gateway-{leader}")
        finally:
            stop.release()
        try:
            until("the quiesce to wait for the gateway", lambda: quiesced(case, 0))
            assert case.boundaries() == [-1]
            assert gateways(case)[leader].status == "active"
            stack.kill(f"gateway-{leader}", restart=False)
            case.until_crossed()
            assert gateways(case)[leader].incarnation == incarnation
            assert gateways(case)[leader].status == "fenced"
        finally:
            stack.start(f"gateway-{leader}")
        case.until_ready()
        case.until_acknowledged(50)
        case.settle()


def test_a_gateway_that_slept_through_the_boundary_wakes_harmlessly(stack: Stack) -> None:
    """Schedules 1, 2, 3 and 15: its pending answers, its ceiling and its lease are all stale."""
    with migration_case(stack, name="gateway-slept") as case:
        case.produce()
        case.consume()
        case.until_acknowledged(50)
        leader, _ = leader_of(stack, case.topic, 0)
        stop = Breakpoint(case.superuser_dsn, case.topic_id, Phase.QUIESCE)
        try:
            case.trigger()
            stop.wait_until_hit()
            stack.suspend(f"gateway-{leader}")
            assert case.boundaries() == [-1]
        finally:
            stop.release()
        try:
            case.until_crossed()
            assert gateways(case)[leader].status == "fenced"
        finally:
            stack.resume(f"gateway-{leader}")
        until("the gateway to register anew", lambda: gateways(case)[leader].status == "active")
        case.until_acknowledged(50)
        case.until_ready()
        case.settle()
