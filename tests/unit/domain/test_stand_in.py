"""Who answers for a broker whose gateway is away."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.stand_in import (
    Sibling,
    as_registered,
    away,
    controller_for,
    stand_in_for,
    stand_ins_of,
)

NODES = range(1, 6)


def sibling(node: int, zone: str | None = None, **changes: object) -> Sibling:
    places = {other: (f"host-{node}", 9500 + other) for other in NODES if other != node}
    return replace(Sibling(zone, serves=True, stand_ins=places), **changes)  # type: ignore[arg-type]


siblings = st.builds(
    Sibling,
    zone=st.sampled_from([None, "a", "b"]),
    lives=st.booleans(),
    serves=st.booleans(),
    stand_ins=st.none()
    | st.dictionaries(
        st.sampled_from(NODES), st.tuples(st.just("host"), st.integers(1, 65535)), max_size=5
    ),
)
fleets = st.dictionaries(st.sampled_from(NODES), siblings, max_size=5)
some_nodes = st.frozensets(st.sampled_from(NODES))


@given(fleet=fleets, brokers=some_nodes, addressed=some_nodes)
def test_who_serves_is_never_stood_in_for(
    fleet: dict[int, Sibling], brokers: frozenset[int], addressed: frozenset[int]
) -> None:
    gone = away(fleet, brokers, addressed)
    assert gone <= brokers & addressed
    for node in brokers & addressed:
        ended = node in fleet and not (fleet[node].lives and fleet[node].serves)
        assert (node in gone) == ended


@given(fleet=fleets, brokers=some_nodes, zone=st.sampled_from([None, "a", "b"]))
def test_only_another_that_serves_and_offers_it_is_named(
    fleet: dict[int, Sibling], brokers: frozenset[int], zone: str | None
) -> None:
    for node in NODES:
        named = stand_in_for(node, fleet, brokers, zone)
        able = {
            n: at
            for n, s in fleet.items()
            if n != node and n in brokers and not s.is_away
            if (at := (s.stand_ins or {}).get(node)) is not None
        }
        assert (named is None) == (not able)
        assert named is None or named in able.values()


@given(fleet=fleets, brokers=some_nodes, other=siblings, at=st.sampled_from(NODES))
def test_who_comes_or_goes_moves_no_client_of_anybody_else(
    fleet: dict[int, Sibling], brokers: frozenset[int], other: Sibling, at: int
) -> None:
    for node in NODES:
        before = stand_in_for(node, fleet, brokers, None)
        after = stand_in_for(node, {**fleet, at: other}, brokers, None)
        own = {(fleet[at].stand_ins or {}).get(node)} if at in fleet else set()
        if before != after:
            assert before in {*own, None} or after == (other.stand_ins or {}).get(node)


def test_a_client_is_led_to_its_own_zone_where_somebody_stands_in_there() -> None:
    fleet = {
        1: sibling(1, "a"),
        2: sibling(2, "b"),
        3: sibling(3, "c"),
        4: sibling(4, serves=False),
    }
    assert stand_in_for(4, fleet, NODES, "b") == ("host-2", 9504)
    assert stand_in_for(4, fleet, NODES, "nowhere") == stand_in_for(4, fleet, NODES, None)
    del fleet[2]
    assert stand_in_for(4, fleet, NODES, "b") in {("host-1", 9504), ("host-3", 9504)}


def test_nodes_that_are_away_are_spread_over_those_that_live() -> None:
    many = range(100)
    places = {n: {o: (f"host-{n}", 9500 + o) for o in many if o != n} for n in many}
    fleet = {n: Sibling(serves=True, stand_ins=places[n]) for n in many}
    named = {stand_in_for(node, fleet, many, None) for node in range(30)}
    assert len({address[0] for address in named if address}) > 15


def test_a_broker_that_no_gateway_has_taken_over_yet_is_not_stood_in_for() -> None:
    """It serves clients itself, at the address that its gateway will have."""
    fleet = {1: sibling(1), 2: sibling(2, serves=False)}
    assert away(fleet, {1, 2, 3}, {1, 2, 3}) == {2}


@given(
    st.dictionaries(
        st.integers(0, 2**31 - 1),
        st.tuples(st.sampled_from(["gateway-1", "10.0.0.1", "::1"]), st.integers(1, 65535)),
        max_size=20,
    )
)
def test_what_is_registered_is_read_as_it_was(places: dict[int, tuple[str, int]]) -> None:
    assert dict(stand_ins_of(as_registered(places))) == places


@pytest.mark.parametrize(
    "registered",
    ["", ",", "2", "2=", "2=host", "2=host:", "2=host:0", "2=host:65536", "x=host:1", "-1=host:1",
     "²=host:1", "2=:1", "{\"2\": 1}", "2=host:1" + "0" * 300_000,
     "1" * 5_000 + "=host:1"],
)  # fmt: skip
def test_nobody_is_led_to_what_cannot_be_read(registered: str) -> None:
    assert stand_ins_of(registered) == {}


@given(st.text(max_size=200))
def test_what_a_newer_version_registers_harms_nobody(registered: str) -> None:
    for host, port in stand_ins_of(registered).values():
        assert host
        assert 0 < port < 65536


def test_the_controller_that_is_told_is_one_whose_gateway_serves() -> None:
    assert controller_for(2, {1, 2, 3}, ()) == 2
    assert controller_for(2, {1, 2, 3}, {2}) == 3
    assert controller_for(3, {1, 2, 3}, {3}) == 1
    assert controller_for(2, {1, 3}, {3}) == 1, "Kafka does not name its broker"
    assert controller_for(2, {2}, {2}) is None


def test_what_can_be_read_counts_beside_what_cannot() -> None:
    assert stand_ins_of("2=host:1,3=tls+host,4=host:4") == {2: ("host", 1), 4: ("host", 4)}
