"""When Kafka's acknowledgement may be told."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.ack_gate import (
    UNKNOWN_OFFSET,
    AckTicket,
    AckVerdict,
    Standing,
    is_final,
    judge,
    told_as,
)
from tideline.domain.request_handling import (
    CLASSIC,
    DELETED,
    KafkaErrorCode,
    PartitionRoute,
    RouteKind,
)

ME, ANOTHER = UUID(int=1), UUID(int=2)
PENDING = PartitionRoute(RouteKind.PENDING, generation=3)
QUIESCING = PartitionRoute(RouteKind.QUIESCING, generation=4)
SUFFIX = PartitionRoute(RouteKind.SUFFIX, generation=4, boundary=100, boundary_epoch=7)


CONFIRMED = Standing(3, boundary=-1, active=True, closed=False, awaited=False)


def verdict(
    route: PartitionRoute,
    *,
    last_offset: int = 99,
    incarnation: UUID = ME,
    closed: int = 0,
    lease: bool = True,
    standing: Standing | None = CONFIRMED,
) -> AckVerdict:
    return judge(
        AckTicket(ME, closed_generation=0),
        route,
        incarnation=incarnation,
        closed_generation=closed,
        lease_valid=lease,
        last_offset=last_offset,
        standing=standing,
    )


def test_while_the_boundary_is_unset_postgres_is_asked_before_anything_is_told() -> None:
    assert verdict(PENDING, standing=None) is AckVerdict.ASK
    assert verdict(QUIESCING, standing=None) is AckVerdict.ASK


def test_what_needs_no_answer_of_postgres_does_not_ask_for_one() -> None:
    """Classic topics pay nothing."""
    for route in (CLASSIC, SUFFIX, DELETED):
        assert verdict(route, standing=None) is verdict(route)
    assert verdict(PENDING, standing=None, lease=False) is AckVerdict.WAIT


def test_a_closing_is_told_past_only_by_those_whom_it_waits_for() -> None:
    awaited = replace(CONFIRMED, closed=True, awaited=True)
    assert verdict(PENDING, standing=awaited) is AckVerdict.RELAY
    assert verdict(PENDING, standing=replace(awaited, awaited=False)) is AckVerdict.WAIT


def test_whoever_is_over_tells_nothing_even_with_a_lease_that_looks_valid() -> None:
    """Schedules 24 to 26: replaced, fenced, or its clock stood still."""
    assert verdict(PENDING, standing=replace(CONFIRMED, active=False)) is AckVerdict.WAIT


def test_a_boundary_that_only_postgres_knows_decides() -> None:
    crossed = replace(CONFIRMED, boundary=50)
    assert verdict(PENDING, standing=crossed, last_offset=49) is AckVerdict.RELAY
    assert verdict(PENDING, standing=crossed, last_offset=50) is AckVerdict.WITHHOLD


def test_errors_that_end_a_producers_retries_are_final() -> None:
    final = [KafkaErrorCode.NONE, KafkaErrorCode.MESSAGE_TOO_LARGE]
    final += [KafkaErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaErrorCode.INVALID_PRODUCER_EPOCH]
    assert all(is_final(code) for code in final)
    assert not is_final(KafkaErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert not is_final(KafkaErrorCode.REQUEST_TIMED_OUT)


def test_a_broker_that_does_not_know_a_tracked_topic_yet_is_asked_again() -> None:
    elsewhere = KafkaErrorCode.NOT_LEADER_OR_FOLLOWER
    assert told_as(KafkaErrorCode.UNKNOWN_TOPIC_OR_PARTITION) == elsewhere
    assert told_as(KafkaErrorCode.UNKNOWN_TOPIC_ID) == elsewhere
    assert told_as(KafkaErrorCode.MESSAGE_TOO_LARGE) == KafkaErrorCode.MESSAGE_TOO_LARGE


def test_it_is_told_while_incarnation_generation_and_lease_hold() -> None:
    assert verdict(PENDING) is AckVerdict.RELAY


def test_a_closing_that_was_only_heard_of_does_not_hold_it_back() -> None:
    """The quiesce acknowledgement waits for this very answer."""
    assert verdict(QUIESCING, closed=0) is AckVerdict.RELAY


def test_it_waits_after_this_gateway_acknowledged_the_closing() -> None:
    assert verdict(QUIESCING, closed=4) is AckVerdict.WAIT


def test_it_waits_without_a_lease() -> None:
    assert verdict(PENDING, lease=False) is AckVerdict.WAIT


def test_a_gateway_that_was_fenced_while_it_slept_does_not_tell() -> None:
    """Schedule 1: the lease of the new incarnation is valid, the produce was the old one's."""
    assert verdict(PENDING, incarnation=ANOTHER, lease=True) is AckVerdict.WAIT


def test_below_the_boundary_it_is_told_and_from_it_on_it_is_not() -> None:
    """Schedules 1 and 6: a late append at B0 exists in Kafka only and is never acknowledged."""
    assert verdict(SUFFIX, last_offset=99) is AckVerdict.RELAY
    assert verdict(SUFFIX, last_offset=100) is AckVerdict.WITHHOLD


def test_a_batch_that_crosses_the_boundary_is_not_told() -> None:
    assert verdict(SUFFIX, last_offset=104) is AckVerdict.WITHHOLD


def test_an_acknowledgement_without_an_offset_is_not_told_once_the_boundary_is_known() -> None:
    assert verdict(SUFFIX, last_offset=UNKNOWN_OFFSET) is AckVerdict.WITHHOLD


def test_after_an_abort_it_is_told_and_after_a_deletion_it_is_not() -> None:
    assert verdict(CLASSIC, incarnation=ANOTHER, lease=False) is AckVerdict.RELAY
    assert verdict(DELETED) is AckVerdict.WITHHOLD


@given(st.integers(-1, 300), st.booleans(), st.booleans(), st.integers(0, 4), st.integers(0, 250))
def test_nothing_at_or_past_a_known_boundary_is_ever_told(
    last_offset: int, lease: bool, same: bool, closed: int, boundary: int
) -> None:
    """Whatever else holds."""
    route = PartitionRoute(RouteKind.SUFFIX, 4, boundary, 1)
    told = verdict(
        route,
        last_offset=last_offset,
        incarnation=ME if same else ANOTHER,
        closed=closed,
        lease=lease,
    )
    assert (told is AckVerdict.RELAY) == (0 <= last_offset < boundary)
