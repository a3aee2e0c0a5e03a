"""Open transactions delay B0 and nothing else; new ones are refused in a way clients survive."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import KafkaException, Producer

from tests.harness import Case, command, migration_case
from tests.support.waiting import HANGS_S, flushed, joined, until
from tideline.domain.migration import Phase
from tideline.stack import Stack


def transactional(case: Case, name: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": case.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(HANGS_S)
    return producer


def in_a_transaction(case: Case, name: str, value: bytes) -> Producer:
    """It has written ``value``, and its transaction is open."""
    producer = transactional(case, name)
    producer.begin_transaction()
    producer.produce(case.topic, value, partition=0)
    flushed(producer, 30)
    return producer


def drain_reason(case: Case) -> str | None:
    """Why the drain waits, as an operator sees it."""
    return case.waiting_reason(Phase.DRAIN_TRANSACTIONS)


def test_an_open_transaction_delays_the_boundary_and_nothing_else(stack: Stack) -> None:
    with migration_case(stack, name="txn-open", history=0) as case:
        application = in_a_transaction(case, f"app-{case.topic}", b"inside")
        case.produce()
        case.until_acknowledged(20)
        case.trigger()
        until(
            "the reason of the wait to be told",
            lambda: f"app-{case.topic}" in (drain_reason(case) or ""),
        )
        case.until_acknowledged(40)
        assert case.boundaries() == [-1]
        application.commit_transaction(HANGS_S)
        case.until_crossed()
        case.until_acknowledged(20)


def test_a_new_transaction_is_refused_and_its_client_aborts_and_goes_elsewhere(
    stack: Stack,
) -> None:
    with (
        migration_case(stack, name="txn-elsewhere", history=0) as elsewhere,
        migration_case(stack, name="txn-new", history=0) as case,
    ):
        holder = in_a_transaction(case, f"holder-{case.topic}", b"open")
        newcomer = transactional(case, f"newcomer-{case.topic}")
        case.trigger()
        until("the drain to wait", lambda: drain_reason(case))

        newcomer.begin_transaction()
        newcomer.produce(case.topic, b"refused", partition=0)
        with pytest.raises(KafkaException) as refused:
            newcomer.commit_transaction(HANGS_S)
        assert refused.value.args[0].txn_requires_abort(), refused.value
        newcomer.abort_transaction(HANGS_S)

        newcomer.begin_transaction()
        newcomer.produce(elsewhere.topic, b"accepted", partition=0)
        newcomer.commit_transaction(HANGS_S)
        assert case.boundaries() == [-1]
        holder.commit_transaction(HANGS_S)
        case.until_crossed()


def test_past_the_deadline_an_open_transaction_is_aborted_if_so_configured(stack: Stack) -> None:
    with migration_case(stack, name="txn-deadline", history=0) as case:
        application = in_a_transaction(case, f"late-{case.topic}", b"too late")
        command(
            stack, "migrate", case.topic, "--open-transactions", "abort",
            "--drain-deadline-ms", "2000", wait=True,
        )  # fmt: skip
        case.until_crossed()
        outcome: list[BaseException] = []

        def commit() -> None:
            try:
                application.commit_transaction(HANGS_S)
            except KafkaException as error:
                outcome.append(error)

        attempt = threading.Thread(target=commit, daemon=True)
        attempt.start()
        joined(attempt, 60)
        assert outcome, "the aborted application was told nothing"


def test_an_operator_ends_the_wait_for_a_transaction_that_hangs(stack: Stack) -> None:
    """Past the first B0 nothing else would: an abort of the migration is refused from there on."""
    with migration_case(stack, name="txn-hangs", history=0) as case:
        application = in_a_transaction(case, f"hanging-{case.topic}", b"never ended")
        case.trigger()
        until("the drain to wait", lambda: drain_reason(case))
        changed = ("open_transactions=abort", "drain_deadline_ms=1000")
        options = [given for option in changed for given in ("--option", option)]
        command(stack, "configure", case.topic, *options, "--reason", "it hangs", wait=True)
        case.until_crossed()
        assert len(application) == 0, "what was in the transaction had not been delivered"
