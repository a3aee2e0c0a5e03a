"""When Kafka's acknowledgement may be told."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.ack_gate import UNKNOWN_OFFSET, AckTicket, AckVerdict, judge
from tideline.domain.request_handling import CLASSIC, DELETED, PartitionRoute, RouteKind

ME, ANOTHER = UUID(int=1), UUID(int=2)
PENDING = PartitionRoute(RouteKind.PENDING, generation=3)
QUIESCING = PartitionRoute(RouteKind.QUIESCING, generation=4)
SUFFIX = PartitionRoute(RouteKind.SUFFIX, generation=4, boundary=100, boundary_epoch=7)


def verdict(
    route: PartitionRoute,
    *,
    last_offset: int = 99,
    incarnation: UUID = ME,
    closed: int = 0,
    lease: bool = True,
) -> AckVerdict:
    return judge(
        AckTicket(ME, closed_generation=0),
        route,
        incarnation=incarnation,
        closed_generation=closed,
        lease_valid=lease,
        last_offset=last_offset,
    )


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
