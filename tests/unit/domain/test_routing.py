"""Which region an offset lies in, and how failures are answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.control_plane.model import CommitError
from tideline.domain.request_handling import (
    CLASSIC,
    COMMIT_ERRORS,
    DELETED,
    FAILURE_ERRORS,
    UNKNOWN,
    Failure,
    FetchRegion,
    KafkaErrorCode,
    PartitionRoute,
    RouteKind,
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
    assert region_of(route, offset) is FetchRegion.UNDIVIDED
    assert route.in_kafka


def test_a_boundary_outweighs_a_closed_generation() -> None:
    route = route_tracked(generation=4, quiesced=True, boundary=7, boundary_epoch=2)
    assert route.kind is RouteKind.SUFFIX
    assert (route.boundary, route.boundary_epoch) == (7, 2)


@pytest.mark.parametrize("route", [CLASSIC, UNKNOWN, DELETED])
def test_without_a_boundary_there_are_no_regions(route: PartitionRoute) -> None:
    assert region_of(route, 5) is FetchRegion.UNDIVIDED


def test_transient_failures_time_out_and_hard_ones_are_storage_errors() -> None:
    assert FAILURE_ERRORS[Failure.TRANSIENT] is KafkaErrorCode.REQUEST_TIMED_OUT
    assert FAILURE_ERRORS[Failure.HARD] is KafkaErrorCode.KAFKA_STORAGE_ERROR


def test_every_outcome_of_a_commit_has_an_answer_and_a_duplicate_is_a_success() -> None:
    assert {error.value for error in CommitError} == set(COMMIT_ERRORS)
    assert COMMIT_ERRORS["DUPLICATE"] is KafkaErrorCode.NONE


@pytest.mark.parametrize(
    ("gap_from", "offset", "position", "region"),
    [
        (80, 79, 79, FetchRegion.PREFIX),
        (80, 80, 100, FetchRegion.SUFFIX),
        (80, 81, 81, FetchRegion.GAP),
        (80, 99, 99, FetchRegion.GAP),
        (80, 100, 100, FetchRegion.SUFFIX),
        (80, -1, -1, FetchRegion.PREFIX),
        (-1, -1, -1, FetchRegion.PREFIX),
        (-1, -2, -2, FetchRegion.PREFIX),
        (-1, 99, 99, FetchRegion.PREFIX),
        (-1, 100, 100, FetchRegion.SUFFIX),
    ],
)
def test_only_who_stands_where_an_accepted_gap_begins_goes_on_behind_it(
    gap_from: int, offset: int, position: int, region: FetchRegion
) -> None:
    route = route_tracked(
        generation=1, quiesced=False, boundary=100, boundary_epoch=3, accepted_gap_from=gap_from
    )
    assert position_of(route, offset) == position
    assert region_of(route, position) is region
