"""A partition is drained when nobody can append a transactional record or marker to it."""

from __future__ import annotations

import pytest

from tideline.domain.ids import TopicPartition
from tideline.domain.transactions import (
    Blocker,
    CoordinatorTransaction,
    OpenProducer,
    Remedy,
    blockers,
    remedy,
)

ORDERS = TopicPartition("orders", 0)
OPEN = OpenProducer(7, 1, coordinator_epoch=4, start_offset=100, last_timestamp=5)


def transaction(state: str, *partitions: TopicPartition, producer: int = 7):  # type: ignore[no-untyped-def]
    return CoordinatorTransaction("pay", producer, 1, state, 42, 60_000, frozenset(partitions))


def test_nothing_open_anywhere_is_drained() -> None:
    assert blockers(ORDERS, [], [], []) == ()


def test_an_open_transaction_blocks_and_is_named() -> None:
    (found,) = blockers(ORDERS, [OPEN], [transaction("Ongoing", ORDERS)], [OPEN])
    assert found.transactional_id == "pay"
    assert found.since == 42
    assert '"pay"' in found.describe()
    assert "producer 7" in found.describe()


@pytest.mark.parametrize("state", ["Ongoing", "PrepareCommit", "PrepareAbort"])
def test_a_coordinator_that_names_the_partition_blocks_before_any_record_arrived(
    state: str,
) -> None:
    (found,) = blockers(ORDERS, [], [transaction(state, ORDERS)], [])
    assert found.state == state


def test_a_transaction_on_another_partition_does_not_block() -> None:
    assert blockers(ORDERS, [], [transaction("Ongoing", TopicPartition("orders", 1))], []) == ()


@pytest.mark.parametrize("state", ["Empty", "CompleteCommit", "CompleteAbort", "Dead"])
def test_a_transaction_that_is_over_does_not_block(state: str) -> None:
    assert blockers(ORDERS, [], [transaction(state, ORDERS)], []) == ()


def test_one_that_ended_between_the_two_looks_does_not_block() -> None:
    assert blockers(ORDERS, [OPEN], [], []) == ()


def test_one_that_no_coordinator_knows_is_hanging_only_if_seen_twice() -> None:
    (twice,) = blockers(ORDERS, [OPEN], [], [OPEN])
    assert twice.hanging
    assert remedy(twice, deadline_passed=True, abort_allowed=True) is Remedy.WRITE_ABORT_MARKER
    (once,) = blockers(ORDERS, [], [], [OPEN])
    assert remedy(once, deadline_passed=True, abort_allowed=True) is Remedy.WAIT


def test_an_ongoing_one_is_fenced_only_past_the_deadline_and_only_if_allowed() -> None:
    ongoing = Blocker(7, 1, "Ongoing", 42, "pay")
    assert remedy(ongoing, deadline_passed=False, abort_allowed=True) is Remedy.WAIT
    assert remedy(ongoing, deadline_passed=True, abort_allowed=False) is Remedy.WAIT
    assert remedy(ongoing, deadline_passed=True, abort_allowed=True) is Remedy.FENCE


def test_a_prepared_one_is_never_touched() -> None:
    prepared = Blocker(7, 1, "PrepareCommit", 42, "pay")
    assert remedy(prepared, deadline_passed=True, abort_allowed=True) is Remedy.WAIT
