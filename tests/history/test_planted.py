"""Each kind of breach, planted into a history that is otherwise right, is found and named."""

from __future__ import annotations

import sys
from dataclasses import replace
from math import inf

import pytest

from tests.history.checker import judge
from tests.history.operations import (
    Away,
    Commit,
    Committed,
    Deleted,
    EpochEnd,
    Fetch,
    ListOffsets,
    Operation,
    Outcome,
    Partition,
    Produce,
    TransactionEnd,
    Truncated,
    Value,
    Which,
)
from tests.history.violations import Bounds, Kind

ORDERS = Partition("orders", 0)


def sent(number: int, offset: int | None, at: float | None = None, **more: object) -> Produce:
    at = float(number) if at is None else at
    outcome = Outcome.UNKNOWN if offset is None else Outcome.ACKNOWLEDGED
    produce = Produce(
        ORDERS, "p", "g1", at, at + 0.5, (f"r{number}",), outcome, number, base_offset=offset
    )
    return replace(produce, **more)  # type: ignore[arg-type]


def read(offset: int, *values: Value, at: float = 100.0, **more: object) -> Fetch:
    records = tuple((offset + place, value) for place, value in enumerate(values))
    fetch = Fetch(ORDERS, "reader", "g2", at, at + 0.5, offset, records)
    return replace(fetch, **more)  # type: ignore[arg-type]


def latest(offset: int, at: float) -> ListOffsets:
    return ListOffsets(ORDERS, "g2", at, at + 0.1, Which.LATEST, offset)


def earliest(offset: int, at: float) -> ListOffsets:
    return ListOffsets(ORDERS, "g2", at, at + 0.1, Which.EARLIEST, offset)


RIGHT: tuple[Operation, ...] = (
    sent(0, 0),
    sent(1, 1),
    sent(2, 2),
    latest(3, 50.0),
    read(0, "r0", "r1", "r2", high_watermark=3, log_start=0),
)


def kinds(*operations: Operation, bounds: Bounds | None = None) -> list[Kind]:
    return [violation.kind for violation in judge(operations, bounds)]


def test_a_history_that_keeps_every_promise_is_accepted() -> None:
    assert judge(RIGHT) == []


def test_an_acknowledged_record_that_nobody_was_shown_is_lost() -> None:
    assert kinds(sent(0, 0), sent(1, 1), read(0, "r0")) == [Kind.LOST]


def test_an_acknowledged_record_that_a_fetch_passes_over_is_lost_for_its_reader() -> None:
    passing = Fetch(ORDERS, "other", "g1", 200.0, 200.5, 0, ((0, "r0"), (2, "r2")))
    assert kinds(*RIGHT, passing) == [Kind.LOST]


def test_a_record_that_was_acknowledged_after_the_fetch_was_sent_may_be_missing_in_it() -> None:
    early = Fetch(ORDERS, "early", "g1", 0.6, 0.9, 0, ((0, "r0"),))
    assert judge([*RIGHT, early]) == []


def test_what_was_deleted_and_what_was_sent_with_acks_one_is_not_missed() -> None:
    deleted = Deleted(ORDERS, before=1, at=10.0)
    assert judge([sent(0, 0), sent(1, 1), sent(2, 2, acks=1), deleted, read(1, "r1")]) == []
    assert judge([sent(0, 0), Deleted(ORDERS, sys.maxsize, 1.0)]) == []


def test_a_start_of_the_log_beyond_what_was_deleted_is_a_loss() -> None:
    assert kinds(*RIGHT, earliest(2, 200.0)) == [Kind.LOST]
    assert kinds(*RIGHT, Deleted(ORDERS, 2, 150.0), earliest(2, 200.0)) == []


def test_an_idempotent_record_at_two_offsets_is_there_twice() -> None:
    assert kinds(sent(0, 0), sent(1, 1), read(0, "r0", "r1", "r0"))[0] is Kind.TWICE


def test_a_producer_without_idempotence_may_find_a_record_once_for_each_attempt() -> None:
    plain = sent(0, 1, idempotent=False, attempts=2)
    assert judge([plain, read(0, "r0", "r0")]) == []
    assert kinds(plain, read(0, "r0", "r0", "r0")) == [Kind.TWICE]


def test_records_of_an_idempotent_producer_in_another_order_are_reordered() -> None:
    later = sent(1, 0, at=0.0)
    assert kinds(sent(0, 1), later, read(0, "r1", "r0")) == [Kind.REORDERED]


def test_a_copy_before_what_was_told_earlier_is_reordered_also_without_idempotence() -> None:
    plain = {"idempotent": False, "attempts": 2}
    first, next_one = sent(0, 1, **plain), sent(1, 2, at=5.0, **plain)
    assert judge([first, next_one, read(0, "r0", "r0", "r1")]) == []
    assert kinds(first, next_one, read(0, "r1", "r0", "r1")) == [Kind.REORDERED]
    under_way = sent(1, 2, at=0.2, **plain)
    assert judge([first, under_way, read(0, "r1", "r0", "r1")]) == []


def test_the_last_copies_of_two_batches_may_lie_the_other_way_round() -> None:
    late = sent(0, 0, idempotent=False, attempts=2)
    next_one = sent(1, 1, at=5.0, idempotent=False)
    assert judge([late, next_one, read(0, "r0", "r1", "r0")]) == []


def test_batches_of_one_connection_keep_their_order_without_idempotence() -> None:
    plain = {"idempotent": False, "at": 1.0}
    one, two = sent(0, 1, connection=7, **plain), sent(1, 0, connection=7, **plain)
    assert kinds(one, two, read(0, "r1", "r0")) == [Kind.REORDERED]
    assert judge([one, replace(two, connection=8), read(0, "r1", "r0")]) == []
    assert judge([one, replace(two, connection=None, attempts=2), read(0, "r1", "r0")]) == []


def test_a_fetch_that_leaves_an_offset_out_loses_it_where_every_offset_has_a_record() -> None:
    dense = Bounds(dense=True)
    before = (sent(0, 0), sent(1, 1), sent(2, 2), sent(3, None), sent(4, 4))
    hole = read(0, "r0", "r1", "r2", at=200.0)
    hole = replace(hole, records=(*hole.records, (4, "r4")))
    assert judge([*before, hole]) == []
    assert kinds(*before, hole, bounds=dense) == [Kind.LOST]
    middle = replace(hole, offset=3, records=hole.records[3:], reader="middle")
    assert judge([*before, hole, middle]) == []
    assert kinds(*before, hole, middle, bounds=dense) == [Kind.LOST, Kind.LOST]
    assert judge([*before, hole, middle, Deleted(ORDERS, 4, 150.0)], dense) == []
    cut = Truncated(ORDERS, offset=3, at=10.0)
    assert judge([*before, cut, hole], dense) == []


def test_a_fatal_error_is_told_to_a_producer_of_a_log_that_lost_nothing() -> None:
    told = sent(3, None, at=20.0, fatal="OUT_OF_ORDER_SEQUENCE_NUMBER")
    assert kinds(*RIGHT, told) == [Kind.FATAL]
    assert judge([*RIGHT, Truncated(ORDERS, 3, 15.0), told]) == []
    assert kinds(Truncated(ORDERS, 0, -1.0), *RIGHT, told) == [Kind.FATAL]
    assert judge([*RIGHT, Deleted(ORDERS, 3, 15.0), told]) == []
    assert judge([*RIGHT, Deleted(ORDERS, sys.maxsize, 15.0), told]) == []
    assert kinds(*RIGHT, Deleted(ORDERS, 2, 15.0), told) == [Kind.FATAL]


def test_a_fetch_whose_offsets_do_not_rise_is_reordered() -> None:
    fetch = Fetch(ORDERS, "x", "g1", 200.0, 201.0, 0, ((1, "r1"), (0, "r0")))
    assert Kind.REORDERED in kinds(*RIGHT, fetch)


def test_two_readings_of_one_offset_with_different_values_are_found() -> None:
    other = read(1, "r2", at=200.0, reader="other")
    assert Kind.DIFFERENT in kinds(*RIGHT, other)


def test_two_acknowledgements_of_one_offset_are_different_bytes() -> None:
    twin = sent(3, 2, producer="q")
    assert Kind.DIFFERENT in kinds(*RIGHT, twin)


def test_a_leader_that_has_not_heard_of_the_loss_may_tell_what_it_had_behind_the_next_one() -> None:
    cut = Truncated(ORDERS, offset=2, at=10.0)
    old = sent(2, 2, at=9.9, answered=12.0)
    new = sent(3, 2, at=10.5)
    last = read(0, "r0", "r1", "r3", reader="after")
    assert judge([sent(0, 0), sent(1, 1), old, cut, new, last]) == []
    late = sent(2, 2, at=10.1, answered=12.0)
    kinds = {found.kind for found in judge([sent(0, 0), sent(1, 1), late, cut, new, last])}
    assert Kind.DIFFERENT in kinds


def test_an_offset_may_be_given_again_after_kafka_lost_it() -> None:
    cut = Truncated(ORDERS, offset=2, at=10.0)
    again = sent(3, 2, at=20.0)
    first = read(0, "r0", "r1", "r2", at=5.0)
    last = read(0, "r0", "r1", "r3", reader="after")
    assert judge([sent(0, 0), sent(1, 1), sent(2, 2), first, cut, again, last]) == []


def test_what_was_lost_lies_behind_nothing_that_was_sent_later() -> None:
    cut = Truncated(ORDERS, offset=2, at=10.0)
    told = [*(sent(number, number) for number in range(4)), sent(4, 2, at=20.0)]
    last = read(0, "r0", "r1", "r4", reader="after")
    assert judge([*told, cut, last]) == []
    assert Kind.REORDERED in kinds(*told, last)


def test_a_value_that_nobody_sent_or_that_was_refused_is_invented() -> None:
    assert kinds(*RIGHT, read(3, "what", at=200.0)) == [Kind.INVENTED]
    refused = sent(3, None, outcome=Outcome.REFUSED)
    assert kinds(*RIGHT, refused, read(3, "r3", at=200.0)) == [Kind.INVENTED]


def test_an_end_below_an_acknowledgement_is_stale_once_the_bound_is_over() -> None:
    assert kinds(*RIGHT, latest(2, 3.0)) == [Kind.STALE]
    assert judge([*RIGHT, latest(2, 3.0)], Bounds(stale=1.0)) == []


def test_an_end_below_one_that_was_told_earlier_goes_back() -> None:
    assert Kind.BACK in kinds(latest(3, 1.0), latest(2, 2.0))
    assert judge([latest(3, 1.0), latest(2, 1.05)]) == []


def test_a_high_watermark_in_a_fetch_is_an_end_too() -> None:
    behind = Fetch(ORDERS, "x", "g1", 300.0, 301.0, 0, (), high_watermark=1)
    assert Kind.STALE in kinds(*RIGHT, behind) or Kind.BACK in kinds(*RIGHT, behind)


def test_a_start_that_goes_back_is_found() -> None:
    moved = (Deleted(ORDERS, 2, 120.0), earliest(2, 130.0), earliest(1, 140.0))
    assert kinds(*RIGHT, *moved) == [Kind.BACK]


def test_what_one_connection_tells_of_an_end_or_a_start_does_not_go_back() -> None:
    idle, lag = {"reader": "x", "connection": 7}, Bounds(stale=inf)
    first = read(2, "r2", at=200.0, high_watermark=3, last_stable=3, log_start=1, **idle)
    deleted = Deleted(ORDERS, 2, 100.0)
    for lower in ({"high_watermark": 2}, {"last_stable": 2}, {"log_start": 0}):
        behind = replace(first, reader="y", invoked=201.0, answered=201.5, **lower)
        assert kinds(*RIGHT, deleted, first, behind, bounds=lag) == [Kind.BACK]
        assert judge([*RIGHT, deleted, first, replace(behind, connection=8)], lag) == []
    behind = replace(first, reader="y", invoked=201.0, answered=201.5, high_watermark=2)
    assert judge([*RIGHT, deleted, first, behind, Truncated(ORDERS, 2, 199.0)], lag) == []
    empty = replace(behind, records=(), offset=3)
    assert judge([*RIGHT, deleted, first, empty], lag) == []
    assert kinds(*RIGHT, deleted, first, replace(empty, log_start=0), bounds=lag) == [Kind.BACK]


def test_an_end_below_what_the_connection_has_shown_goes_back() -> None:
    shown = read(0, "r0", "r1", "r2", at=200.0, reader="x", connection=7)
    asked = replace(latest(2, 201.0), connection=7)
    assert kinds(*RIGHT, shown, asked, bounds=Bounds(stale=inf)) == [Kind.BACK]
    assert judge([*RIGHT, shown, replace(asked, connection=8)], Bounds(stale=inf)) == []


def by_time(timestamp: int, offset: int | None, at: float = 200.0) -> ListOffsets:
    return ListOffsets(
        ORDERS, "g2", at, at + 0.1, Which.BY_TIME, offset, timestamp=timestamp, connection=7
    )


def test_who_begins_at_a_time_misses_nothing_of_it() -> None:
    records = [sent(number, number, timestamp=10 * number) for number in range(3)]
    end = read(3, at=150.0, reader="x", high_watermark=3, connection=7)
    before: tuple[Operation, ...] = (*records, read(0, "r0", "r1", "r2"), end)
    assert judge([*before, by_time(10, 1), by_time(5, 1), by_time(21, None)]) == []
    assert kinds(*before, by_time(10, 2)) == [Kind.LOST]
    assert kinds(*before, by_time(10, None)) == [Kind.LOST]
    assert kinds(*before, by_time(10, 0)) == [Kind.BACK]
    assert judge([*before, replace(by_time(10, None), connection=8)]) == []
    assert judge([*before, Deleted(ORDERS, 2, 160.0), by_time(10, 2)]) == []
    assert judge([*before, by_time(10, 2, at=0.5)]) == []


def test_an_end_lies_above_nothing_that_was_sent_after_it_was_told() -> None:
    later = sent(3, 3, at=60.0)
    log = (*RIGHT[:4], later, read(0, "r0", "r1", "r2", "r3"))
    when_it_was_sent, before = latest(4, 59.95), latest(4, 59.0)
    assert kinds(*log, when_it_was_sent) == []
    assert kinds(*log, before) == [Kind.LOST]
    unknown = replace(later, outcome=Outcome.UNKNOWN, base_offset=None)
    assert kinds(*RIGHT[:4], unknown, log[-1], before) == [Kind.LOST]
    assert kinds(*log, before, Truncated(ORDERS, 3, 59.5)) == []


def test_a_reader_that_goes_on_elsewhere_was_sent_there() -> None:
    back = read(1, "r1", "r2", at=200.0)
    assert kinds(*RIGHT, back) == [Kind.SENT]
    forward = read(5, at=200.0)
    assert kinds(*RIGHT, forward) == [Kind.SENT]


def test_nothing_told_again_and_again_below_the_end_that_is_told_with_it_is_stale() -> None:
    dense = Bounds(dense=True)

    def asked(times: int, **more: object) -> list[Operation]:
        return [
            replace(read(2, at=200.0 + n, reader="x", high_watermark=3), **more)  # type: ignore[arg-type]
            for n in range(times)
        ]

    assert kinds(*RIGHT, *asked(6), bounds=dense) == [Kind.STALE]
    assert judge([*RIGHT, *asked(6)]) == []
    assert judge([*RIGHT, *asked(3)], dense) == []
    assert judge([*RIGHT, *asked(3), read(2, "r2", at=204.0, reader="x")], dense) == []
    assert judge([*RIGHT, *asked(6, offset=3)], dense) == []
    assert judge([*RIGHT, *asked(6, error="NOT_LEADER_OR_FOLLOWER")], dense) == []
    assert judge([*RIGHT, Deleted(ORDERS, 3, 150.0), *asked(6)], dense) == []


def test_out_of_range_within_the_log_sends_a_consumer_away() -> None:
    refused = read(2, at=200.0, reader="x", error="OFFSET_OUT_OF_RANGE")
    assert kinds(*RIGHT, refused) == [Kind.SENT]
    beyond = read(7, at=200.0, reader="x", error="OFFSET_OUT_OF_RANGE")
    assert judge([*RIGHT, beyond]) == []


def test_a_truncation_told_to_a_consumer_at_a_valid_position_sends_it_back() -> None:
    told = EpochEnd(ORDERS, "g1", 200.0, 200.1, position=3, end_offset=1)
    assert kinds(*RIGHT, told) == [Kind.SENT]
    assert judge([*RIGHT, replace(told, end_offset=3)]) == []
    assert judge([*RIGHT, Deleted(ORDERS, sys.maxsize, 199.0), told]) == []


def test_a_commit_that_is_forgotten_goes_back() -> None:
    first = Commit(ORDERS, "group", "g1", 1.0, 1.1, 1)
    second = Commit(ORDERS, "group", "g2", 2.0, 2.1, 3)
    told = Committed(ORDERS, "group", "g1", 3.0, 3.1, 1)
    assert kinds(*RIGHT, first, second, told) == [Kind.BACK]
    assert kinds(*RIGHT, first, second, replace(told, offset=None)) == [Kind.BACK]
    assert judge([*RIGHT, first, second, replace(told, offset=3)]) == []


def test_a_commit_that_is_under_way_may_or_may_not_be_told() -> None:
    first = Commit(ORDERS, "group", "g1", 1.0, 1.1, 1)
    under_way = Commit(ORDERS, "group", "g2", 2.0, None, 3)
    for offset in (1, 3):
        assert (
            judge([*RIGHT, first, under_way, Committed(ORDERS, "group", "g1", 3, 4, offset)]) == []
        )


def test_records_of_an_aborted_transaction_are_not_for_readers_of_committed_ones() -> None:
    record = sent(3, 3, transaction="t")
    shown = read(3, "r3", at=200.0, reader="committed", read_committed=True)
    assert judge([*RIGHT, record, shown, TransactionEnd("t", 5.0, True)]) == []
    assert kinds(*RIGHT, record, shown, TransactionEnd("t", 5.0, False)) == [Kind.ABORTED]
    assert judge([*RIGHT, record, TransactionEnd("t", 5.0, False)]) == []
    assert kinds(*RIGHT, record, TransactionEnd("t", 5.0, True)) == [Kind.LOST]


def test_what_was_taken_as_stored_without_an_offset_is_somewhere() -> None:
    stored = sent(3, None, outcome=Outcome.ACKNOWLEDGED)
    assert kinds(*RIGHT, stored) == [Kind.LOST]
    assert judge([*RIGHT, stored, read(3, "r3", reader="x")]) == []
    assert judge([*RIGHT, stored, Deleted(ORDERS, 1, 40.0)]) == []
    assert judge([*RIGHT, stored, Truncated(ORDERS, 3, 40.0)]) == []


def test_a_request_that_is_never_answered_is_stuck_at_the_bound() -> None:
    unanswered = sent(3, None, answered=None)
    assert kinds(*RIGHT, unanswered, bounds=Bounds(answer=10.0)) == [Kind.STUCK]
    assert judge([*RIGHT, unanswered], Bounds(answer=1000.0)) == []


def test_a_client_that_hears_nothing_but_errors_is_stuck_at_the_bound() -> None:
    errors = [
        read(3, at=200.0 + second, reader="x", error="NOT_LEADER_OR_FOLLOWER")
        for second in range(20)
    ]
    assert kinds(*RIGHT, *errors, bounds=Bounds(progress=10.0)) == [Kind.STUCK]
    recovered = [*errors[:5], read(3, at=206.0, reader="x"), *errors[12:]]
    assert judge([*RIGHT, *recovered], Bounds(progress=10.0)) == []


def test_a_client_that_did_not_ask_meanwhile_heard_no_errors() -> None:
    refused = [read(3, at=at, reader="x", error="NOT_LEADER_OR_FOLLOWER") for at in (200.0, 201.0)]
    later = [read(3, at=220.0, reader="x", error="NOT_LEADER_OR_FOLLOWER")]
    assert judge([*RIGHT, *refused, *later], Bounds(progress=10.0)) == []


def test_what_a_client_waited_for_while_it_reached_nobody_does_not_count() -> None:
    late = sent(3, 3, at=200.0, answered=240.0, producer="p.1")
    shown = read(3, "r3", at=250.0, reader="x")
    bounds = Bounds(answer=15.0)
    assert kinds(*RIGHT, late, shown, bounds=bounds) == [Kind.STUCK]
    assert judge([*RIGHT, late, shown, Away("p", 205.0, 235.0)], bounds) == []
    assert kinds(*RIGHT, late, shown, Away("p", 205.0, 225.0), bounds=bounds) == [Kind.STUCK]
    assert kinds(*RIGHT, late, shown, Away("q", 205.0, 235.0), bounds=bounds) == [Kind.STUCK]
    errors = [
        read(3, at=200.0 + second, reader="x@y", error="NOT_LEADER_OR_FOLLOWER")
        for second in range(20)
    ]
    patience = Bounds(progress=10.0)
    assert kinds(*RIGHT, *errors, bounds=patience) == [Kind.STUCK]
    assert judge([*RIGHT, *errors, Away("x", 203.0, 215.0)], patience) == []


@pytest.mark.parametrize("kind", Kind)
def test_a_violation_names_its_kind_its_partition_and_its_evidence(kind: Kind) -> None:
    from tests.history.violations import Violation

    text = str(Violation(kind, ORDERS, "what happened", (sent(0, 0),)))
    assert kind.value in text
    assert "orders-0: what happened" in text
    assert "Produce(" in text
