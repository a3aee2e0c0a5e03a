"""A worker and a gateway that are killed, and Postgres away, under load and in the phases that
count. Other faults, and these in the phases that are left: tests/nightly/faults."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

from tests.harness import (
    Breakpoint,
    Case,
    gateways,
    held_in_phases,
    killed,
    leader_of,
    migration_case,
    one_fault_each,
    quiesced,
    start_gateway,
)
from tests.support.waiting import for_seconds, until
from tideline.domain.migration import Phase
from tideline.stack import Stack

MOST_PHASES, *OTHER_PHASES = one_fault_each(list(Phase))


def worker_killed_in(stack: Stack, phases: Sequence[Phase]) -> None:
    with held_in_phases(stack, "worker", phases) as held:
        stack.kill("worker", restart=False)
        held.check()
        held.let_go()
        stack.start("worker")
        held.each(Case.end_well)


def test_a_worker_killed_in_most_phases_loses_nothing(stack: Stack) -> None:
    worker_killed_in(stack, MOST_PHASES)


def test_a_gateway_killed_in_quiesce_is_fenced_and_the_pause_ends(stack: Stack) -> None:
    with migration_case(stack, name="gateway-killed") as case:
        case.produce()
        case.consume()
        case.until_acknowledged(20)
        leader, _ = leader_of(stack, case.topic, 0)
        stop = Breakpoint(case.superuser_dsn, case.topic_id, Phase.QUIESCE)
        incarnation = gateways(case)[leader].incarnation
        try:
            case.trigger()
            stop.wait_until_hit()
            stack.suspend(f"gateway-{leader}")
            with unfenced(case, leader):
                stop.release()
                until("the quiesce to wait for the gateway", lambda: quiesced(case, 0))
                assert case.boundaries() == [-1]
                assert gateways(case)[leader].status == "active"
                stack.kill(f"gateway-{leader}", restart=False)
            case.until_crossed()
            assert gateways(case)[leader].incarnation == incarnation
            assert gateways(case)[leader].status == "fenced"
        finally:
            stop.release()
            stack.resume(f"gateway-{leader}")
            start_gateway(stack, leader)
        case.until_ready()
        case.until_acknowledged(20)
        case.settle()


@contextmanager
def unfenced(case: Case, gateway: int) -> Iterator[None]:
    """Nobody fences the gateway inside, which would come as soon as its lease has lapsed."""
    with psycopg.connect(case.superuser_dsn) as connection:
        connection.execute(
            "SELECT FROM tideline.gateways WHERE gateway_id = %s FOR NO KEY UPDATE", [gateway]
        )
        yield


OUTAGE_S = 10.0


@contextmanager
def away(stack: Stack, *parts: str) -> Iterator[None]:
    """The parts are killed, stay away for ten seconds, and come back."""
    started = time.monotonic()
    with killed(stack, *parts):
        yield
        for_seconds("an outage", OUTAGE_S - (time.monotonic() - started))


def postgres_away_in(stack: Stack, phases: Sequence[Phase]) -> None:
    with migration_case(stack, name="classic", history=0) as classic:
        classic.produce("classic")
        classic.consume()
        with held_in_phases(stack, "postgres", phases) as held:
            with away(stack, "postgres"):
                classic.until_acknowledged(40)
            held.let_go()
            held.each(Case.end_well)
        classic.settle()


def test_postgres_away_in_most_phases_delays_the_migration_and_nothing_else(stack: Stack) -> None:
    postgres_away_in(stack, MOST_PHASES)
