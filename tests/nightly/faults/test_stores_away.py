"""Postgres and S3 away for ten seconds: tracked topics see retriable errors at most, classic
topics nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.harness import (
    Breakpoint,
    Case,
    killed,
    leader_of,
    migration_case,
    until_in_snapshot,
)
from tests.integration.test_faults import OTHER_PHASES, away, postgres_away_in
from tests.support.waiting import until
from tideline.demo.ledger import Ledger
from tideline.demo.workload import GroupConsumer
from tideline.domain.migration import Phase
from tideline.stack import Stack


def read_from_the_start(case: Case, through: int) -> None:
    """A reader that begins during the outage sees the prefix up to ``through``."""
    ledger = Ledger()
    member = GroupConsumer("late", case.bootstrap, case.topic, f"late-{case.topic}", ledger)
    member.start()
    try:
        until(f"a new reader to pass offset {through}",
              lambda: ledger.consumed_through(0) >= through)  # fmt: skip
    finally:
        member.stop()


@pytest.mark.parametrize("phases", OTHER_PHASES, ids="-".join)
def test_postgres_away_in_this_phase_delays_the_migration_and_nothing_else(
    stack: Stack, phases: Sequence[Phase]
) -> None:
    """In most phases: integration/test_faults.py."""
    postgres_away_in(stack, phases)


def test_the_prefix_stays_readable_while_postgres_is_away(stack: Stack) -> None:
    with migration_case(stack, name="prefix-read") as case:
        case.produce()
        case.consume()
        case.trigger()
        case.until_ready()
        case.until_acknowledged(20)
        boundary = case.boundaries()[0]
        with away(stack, "postgres"):
            read_from_the_start(case, boundary - 1)
        case.until_acknowledged(20)
        case.settle()


def test_a_gateway_restarted_while_postgres_is_away_serves_from_its_snapshot(stack: Stack) -> None:
    """Schedule 18: it never passes a diskless topic through."""
    with (
        migration_case(stack, name="classic", history=0) as classic,
        migration_case(stack, name="snapshot") as case,
    ):
        classic.produce("classic")
        classic.consume()
        case.produce()
        case.consume()
        case.trigger()
        case.until_ready()
        case.until_acknowledged(20)
        boundary = case.boundaries()[0]
        leader, _ = leader_of(stack, case.topic, 0)
        until_in_snapshot(
            stack, leader, case.topic, lambda row: row.boundary == boundary and row.ready
        )
        with away(stack, "postgres"):
            stack.kill(f"gateway-{leader}", restart=False)
            stack.start(f"gateway-{leader}")
            read_from_the_start(case, boundary - 1)
            classic.until_acknowledged(20)
        case.until_acknowledged(20)
        classic.settle()
        case.settle()


def test_s3_refusing_writes_in_the_suffix_is_waited_out(stack: Stack) -> None:
    with migration_case(stack, name="s3-away") as case:
        case.produce()
        case.consume()
        case.trigger()
        case.until_ready()
        case.until_acknowledged(20)
        assert case.ledger.acknowledged_through(0) > case.boundaries()[0]
        with away(stack, "s3"):
            pass
        case.until_acknowledged(20)
        case.settle()


def test_classic_traffic_needs_neither_postgres_nor_s3(stack: Stack) -> None:
    """I1, routing isolation."""
    with migration_case(
        stack, name="classic-only", history=100, **{"remote.storage.enable": "false"}
    ) as case:
        case.produce()
        case.consume()
        case.until_acknowledged(20)
        with away(stack, "postgres", "s3"):
            case.until_acknowledged(40)
        case.settle()


def test_readiness_waits_with_its_reason_while_s3_is_away_and_goes_on_when_it_is_back(
    stack: Stack,
) -> None:
    """Seed 000, "Failure and edge cases": what is not in remote storage is not called complete."""
    with migration_case(stack, name="s3-readiness") as case:
        case.produce()
        case.consume()
        case.until_acknowledged(20)
        # The active segment is copied once it is rolled, which comes after this phase.
        stop = Breakpoint(case.superuser_dsn, case.topic_id, Phase.ZOMBIE_CLEANUP)
        try:
            case.trigger()
            stop.wait_until_hit()
            with killed(stack, "s3"):
                stop.let_go()
                until(
                    "readiness to wait",
                    lambda: "has not rolled" in (case.waiting_reason(Phase.READINESS) or ""),
                    120.0,
                )
                assert case.rows("tiering_complete") == [(False,)]
            case.end_well()
            assert case.rows("tiering_complete") == [(True,)]
        finally:
            stop.release()
