"""The table of answers: whole, and right where the seeds say what is right."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.requests_page import render
from tideline.domain.answers import (
    ANSWERS,
    KAFKA_SAYS,
    SERVED_ANYWHERE,
    Asked,
    Behaviour,
    Case,
    LeaseState,
    Request,
    Role,
    State,
    asked_by_deletion,
    asked_by_epoch,
    asked_by_fetch,
    asked_by_listing,
    cases,
    handling,
    state_of,
)
from tideline.domain.request_handling import (
    CLASSIC,
    DELETED,
    UNKNOWN,
    KafkaErrorCode,
    PartitionRoute,
    RouteKind,
    route_tracked,
)

HELD, LAPSED, STOPPED = LeaseState
CROSSED = (State.NOT_READY, State.READY, State.NO_PREFIX)
UNDIVIDED = [state for state in State if state not in CROSSED]
NOT_LEADER = KafkaErrorCode.NOT_LEADER_OR_FOLLOWER


def crossed(
    *, boundary: int = 100, gap: int = -1, gone: bool = False, ready: bool = False
) -> PartitionRoute:
    return route_tracked(
        generation=1,
        quiesced=False,
        boundary=boundary,
        boundary_epoch=3,
        accepted_gap_from=gap,
        prefix_gone=gone,
        ready=ready,
    )


def test_every_combination_has_exactly_one_row() -> None:
    counted = Counter(cases())
    assert set(counted) == {Case(*key) for key in product(Asked, State, LeaseState, Role)}
    assert set(counted.values()) == {1}
    for case in counted:
        assert case.handling is ANSWERS[case.asked][case.state].under(case.lease)
        assert case.answer.behaviour is not Behaviour.REFUSE or case.answer.error, case


@given(
    kind=st.sampled_from(RouteKind),
    boundary=st.integers(0, 9),
    gone=st.booleans(),
    ready=st.booleans(),
    asked=st.sampled_from(Asked),
    lease=st.sampled_from(LeaseState),
)
def test_every_route_has_its_place(
    kind: RouteKind, boundary: int, gone: bool, ready: bool, asked: Asked, lease: LeaseState
) -> None:
    route = PartitionRoute(kind, 1, boundary, 0, prefix_gone=gone, ready=ready)
    assert handling(asked, route, lease) is ANSWERS[asked][state_of(route)].under(lease)


@pytest.mark.parametrize("state", UNDIVIDED)
def test_without_a_boundary_an_api_has_one_answer_wherever_it_asks(state: State) -> None:
    for request in Request:
        found = {ANSWERS[asked][state] for asked in Asked if asked.request is request}
        assert len(found) == 1, request


def test_a_partition_is_in_one_state() -> None:
    pending = route_tracked(generation=1, quiesced=False, boundary=-1, boundary_epoch=-1)
    quiescing = route_tracked(generation=1, quiesced=True, boundary=-1, boundary_epoch=-1)
    assert state_of(pending) is State.PENDING
    assert state_of(quiescing) is State.QUIESCING
    assert state_of(crossed()) is State.NOT_READY
    assert state_of(crossed(ready=True)) is State.READY
    assert state_of(crossed(gone=True)) is State.NO_PREFIX
    assert state_of(crossed(boundary=0)) is State.NO_PREFIX
    assert [state_of(r) for r in (CLASSIC, DELETED, UNKNOWN)] == [
        State.CLASSIC,
        State.DELETED,
        State.UNKNOWN,
    ]


@pytest.mark.parametrize(
    ("offset", "asked"),
    [
        (79, Asked.FETCH_PREFIX),
        (81, Asked.FETCH_GAP),
        (99, Asked.FETCH_GAP),
        (100, Asked.FETCH_SUFFIX),
    ],
)
def test_a_fetch_asks_the_region_of_its_offset(offset: int, asked: Asked) -> None:
    assert asked_by_fetch(crossed(gap=80), offset) is asked


def test_special_timestamps_and_epochs_and_deletions_ask_their_regions() -> None:
    assert [asked_by_listing(t) for t in range(-6, 1)] == [
        Asked.TIERED,
        Asked.TIERED,
        Asked.EARLIEST,
        Asked.MAX_TIMESTAMP,
        Asked.EARLIEST,
        Asked.LATEST,
        Asked.BY_TIME,
    ]
    epochs = [asked_by_epoch(crossed(), epoch) for epoch in (2, 3, 4)]
    assert epochs == [Asked.EPOCH_PREFIX, Asked.EPOCH_SUFFIX, Asked.EPOCH_SUFFIX]
    ends = [asked_by_deletion(crossed(), offset) for offset in (100, 101, -1)]
    assert ends == [Asked.DELETE_PREFIX, Asked.DELETE_SUFFIX, Asked.DELETE_SUFFIX]
    assert asked_by_deletion(crossed(boundary=0), 0) is Asked.DELETE_SUFFIX


@pytest.mark.parametrize("asked", list(Asked))
def test_a_partition_without_a_row_fails_closed(asked: Asked) -> None:
    """Schedule 22: a partition that was added unseen is never passed through."""
    for lease in LeaseState:
        answer = handling(asked, UNKNOWN, lease)
        assert answer.behaviour is Behaviour.REFUSE
        assert answer.error is NOT_LEADER


def test_classic_partitions_pass_whatever_is_asked() -> None:
    found = {handling(a, CLASSIC, lease).behaviour for a in Asked for lease in LeaseState}
    assert found == {Behaviour.PASS}


def test_produces_are_gated_then_parked_then_go_to_the_suffix() -> None:
    states = (State.PENDING, State.QUIESCING, *CROSSED)
    assert [ANSWERS[Asked.PRODUCE][state].held.behaviour for state in states] == [
        Behaviour.GATE,
        Behaviour.PARK,
        Behaviour.SUFFIX,
        Behaviour.SUFFIX,
        Behaviour.SUFFIX,
    ]
    assert ANSWERS[Asked.PRODUCE][State.PENDING].lapsed.behaviour is Behaviour.PARK


@given(boundary=st.integers(1, 2**40), below=st.integers(0, 2**40))
def test_below_the_boundary_nobody_is_asked_once_the_prefix_is_gone(
    boundary: int, below: int
) -> None:
    """Any gateway may be asked then, also one whose broker knows nothing of the partition."""
    route = crossed(boundary=boundary, gone=True)
    answer = handling(asked_by_fetch(route, below), route, HELD)
    if below < boundary:
        assert answer.error is KafkaErrorCode.OFFSET_OUT_OF_RANGE
    else:
        assert answer.behaviour is Behaviour.SUFFIX


@pytest.mark.parametrize("state", sorted(SERVED_ANYWHERE))
def test_no_role_refuses_what_is_served_anywhere_but_a_fetch_below_the_boundary(
    state: State,
) -> None:
    for asked, role in product(set(Asked) - {Asked.FETCH_PREFIX}, Role):
        here = Case(asked, state, HELD, role).answer
        assert here == Case(asked, state, HELD, Role.LEADER).answer


def test_only_of_a_classic_topic_a_client_is_told_that_a_broker_does_not_know_it() -> None:
    """Seed 000, "Produce request handling by state": a tracked topic exists, so the broker lags."""
    unknown = {KafkaErrorCode.UNKNOWN_TOPIC_OR_PARTITION, KafkaErrorCode.UNKNOWN_TOPIC_ID}
    told = {case.state for case in cases() if case.answer.error in unknown}
    assert told == {State.CLASSIC, State.DELETED}


def test_over_another_postgres_nothing_is_told_but_what_kafka_has_and_was_confirmed() -> None:
    for asked, state in product(Asked, (State.PENDING, State.READY, State.NO_PREFIX)):
        answer = ANSWERS[asked][state].stopped
        if answer.error is not KafkaErrorCode.KAFKA_STORAGE_ERROR:
            assert asked.request is Request.FETCH
            assert answer.behaviour in (Behaviour.GATE, Behaviour.PREFIX, Behaviour.REFUSE)


def test_kafka_says_something_to_every_api_in_every_role() -> None:
    assert set(KAFKA_SAYS) == set(Request)
    assert all(set(by_role) == set(Role) for by_role in KAFKA_SAYS.values())


def test_the_page_of_requests_is_made_from_the_table() -> None:
    assert Path("docs/requests.md").read_text() == render(), "run `make docs`"
