"""Which region answers, and what each state answers to each request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.control_plane.model import CommitError
from tideline.domain.request_handling import (
    ANSWERS,
    CLASSIC,
    COMMIT_ERRORS,
    DELETED,
    FAILURE_ERRORS,
    UNKNOWN,
    Behaviour,
    Failure,
    FetchRegion,
    KafkaErrorCode,
    Request,
    RouteKind,
    handling,
    position_of,
    region_of,
    route_tracked,
)

offsets = st.integers(0, 2**40)


@given(boundary=offsets, offset=offsets)
def test_exactly_one_region_answers_an_offset_once_the_boundary_is_known(
    boundary: int, offset: int
) -> None:
    route = route_tracked(generation=1, quiesced=False, boundary=boundary, boundary_epoch=3)
    expected = FetchRegion.PREFIX if offset < boundary else FetchRegion.SUFFIX
    assert region_of(route, offset) is expected


@given(offset=offsets, quiesced=st.booleans())
def test_kafka_answers_for_the_whole_log_while_the_boundary_is_unset(
    offset: int, quiesced: bool
) -> None:
    route = route_tracked(generation=1, quiesced=quiesced, boundary=-1, boundary_epoch=-1)
    assert region_of(route, offset) is FetchRegion.KAFKA
    assert route.in_kafka


def test_a_boundary_outweighs_a_closed_generation() -> None:
    route = route_tracked(generation=4, quiesced=True, boundary=7, boundary_epoch=2)
    assert route.kind is RouteKind.SUFFIX
    assert (route.boundary, route.boundary_epoch) == (7, 2)


def test_a_classic_partition_is_kafkas_and_an_unknown_or_deleted_one_is_nobodys() -> None:
    assert region_of(CLASSIC, 5) is FetchRegion.KAFKA
    assert region_of(UNKNOWN, 5) is FetchRegion.NOWHERE
    assert region_of(DELETED, 5) is FetchRegion.NOWHERE


def test_every_state_has_an_answer_to_every_request() -> None:
    for kind in RouteKind:
        for request in Request:
            assert handling(kind, request) is ANSWERS[kind][request]


@pytest.mark.parametrize("request_", list(Request))
def test_a_partition_without_a_row_fails_closed(request_: Request) -> None:
    """Schedule 22: a partition that was added unseen is never passed through."""
    answer = handling(RouteKind.UNKNOWN, request_)
    assert answer.behaviour is Behaviour.REFUSE
    assert answer.error is KafkaErrorCode.NOT_LEADER_OR_FOLLOWER


def test_classic_partitions_pass_whatever_is_asked() -> None:
    assert {handling(RouteKind.CLASSIC, r).behaviour for r in Request} == {Behaviour.PASS}


def test_produces_are_gated_then_parked_then_go_to_the_suffix() -> None:
    states = (RouteKind.PENDING, RouteKind.QUIESCING, RouteKind.SUFFIX)
    assert [handling(kind, Request.PRODUCE).behaviour for kind in states] == [
        Behaviour.GATE,
        Behaviour.PARK,
        Behaviour.SUFFIX,
    ]


def test_transient_failures_time_out_and_hard_ones_are_storage_errors() -> None:
    assert FAILURE_ERRORS[Failure.TRANSIENT] is KafkaErrorCode.REQUEST_TIMED_OUT
    assert FAILURE_ERRORS[Failure.HARD] is KafkaErrorCode.KAFKA_STORAGE_ERROR


def test_every_outcome_of_a_commit_has_an_answer_and_a_duplicate_is_a_success() -> None:
    assert {error.value for error in CommitError} == set(COMMIT_ERRORS)
    assert COMMIT_ERRORS["DUPLICATE"] is KafkaErrorCode.NONE


@pytest.mark.parametrize(
    ("offset", "position", "region"),
    [
        (79, 79, FetchRegion.PREFIX),
        (80, 100, FetchRegion.SUFFIX),
        (81, 81, FetchRegion.LOST),
        (99, 99, FetchRegion.LOST),
        (100, 100, FetchRegion.SUFFIX),
    ],
)
def test_readers_go_on_behind_an_accepted_gap_and_positions_inside_it_are_out_of_range(
    offset: int, position: int, region: FetchRegion
) -> None:
    route = route_tracked(
        generation=1, quiesced=False, boundary=100, boundary_epoch=3, accepted_gap_from=80
    )
    assert position_of(route, offset) == position
    assert region_of(route, position) is region


@given(boundary=st.integers(1, 2**40), below=offsets)
def test_below_the_boundary_nobody_is_asked_once_the_prefix_is_gone(
    boundary: int, below: int
) -> None:
    """Any gateway may be asked then, also one whose broker knows nothing of the partition."""
    route = route_tracked(
        generation=1, quiesced=False, boundary=boundary, boundary_epoch=3, prefix_gone=True
    )
    expected = FetchRegion.LOST if below < boundary else FetchRegion.SUFFIX
    assert region_of(route, below) is expected
