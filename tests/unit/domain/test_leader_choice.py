"""Whom clients are told to ask for a partition, by its state, who lives and where the client is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.ids import TopicIdPartition
from tideline.domain.leader_choice import (
    NamedLeader,
    Placement,
    Why,
    leader_for,
    may_be_led_elsewhere,
    zone_among,
    zone_told,
)
from tideline.domain.request_handling import (
    CLASSIC,
    DELETED,
    UNKNOWN,
    PartitionRoute,
    RouteKind,
)

LOG = TopicIdPartition(UUID(int=7), 3)
PENDING = PartitionRoute(RouteKind.PENDING, 1)
QUIESCING = PartitionRoute(RouteKind.QUIESCING, 2)
NOT_READY = PartitionRoute(RouteKind.SUFFIX, 2, boundary=100, boundary_epoch=5)
HYBRID = replace(NOT_READY, ready=True)
PREFIX_GONE = replace(HYBRID, prefix_gone=True)
BORN_DISKLESS = PartitionRoute(RouteKind.SUFFIX, 0, boundary=0, boundary_epoch=0)
KEPT_AS_KAFKA_SAYS = (CLASSIC, UNKNOWN, DELETED, PENDING, QUIESCING, NOT_READY)
ANYBODYS = (PREFIX_GONE, BORN_DISKLESS)
OTHERS_MAY_LEAD = (HYBRID, *ANYBODYS)

ZONES = {1: "a", 2: "b", 3: "c", 4: "a", 5: "b", 6: "c"}
ON_123 = Placement(leader=1, replicas=(1, 2, 3), in_sync=(1, 2, 3))

nodes = st.integers(0, 9)
zones = st.sampled_from([None, "a", "b", "c"])
live_gateways = st.dictionaries(nodes, zones, max_size=10)
logs = st.builds(TopicIdPartition, st.uuids(), st.integers(0, 100))


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    replicas = draw(st.lists(nodes, unique=True, max_size=4))
    in_sync = draw(st.lists(st.sampled_from(replicas), unique=True)) if replicas else []
    return Placement(draw(st.sampled_from([-1, *in_sync])), tuple(replicas), tuple(in_sync))


def without(*dead: int) -> dict[int, str | None]:
    return {node: zone for node, zone in ZONES.items() if node not in dead}


@pytest.mark.parametrize("route", KEPT_AS_KAFKA_SAYS)
@given(placement=placements(), live=live_gateways, zone=zones)
def test_nothing_is_changed_where_the_leader_is_needed(
    route: PartitionRoute, placement: Placement, live: dict[int, str | None], zone: str | None
) -> None:
    """Before B0, and before readiness, appends or reads need Kafka's leader."""
    assert not may_be_led_elsewhere(route)
    assert leader_for(LOG, route, placement, live, zone) == NamedLeader(placement.leader, Why.KAFKA)


any_look_at_a_partition = given(
    log=logs,
    route=st.sampled_from(OTHERS_MAY_LEAD),
    placement=placements(),
    live=live_gateways,
    zone=zones,
)


@any_look_at_a_partition
def test_nobody_is_named_who_does_not_live_while_anybody_does(
    log: TopicIdPartition,
    route: PartitionRoute,
    placement: Placement,
    live: dict[int, str | None],
    zone: str | None,
) -> None:
    named = leader_for(log, route, placement, live, zone)
    assert named.node in live or (not live and named.node == placement.leader)


@any_look_at_a_partition
def test_a_replica_that_lives_comes_before_everybody_else(
    log: TopicIdPartition,
    route: PartitionRoute,
    placement: Placement,
    live: dict[int, str | None],
    zone: str | None,
) -> None:
    """Only replicas can serve tiered reads, and placement is what operators see."""
    named = leader_for(log, route, placement, live, zone)
    if live.keys() & placement.replicas:
        assert named.node in placement.replicas
        assert named.why is not Why.FALLBACK
    near = [n for n in placement.replicas if n in live and zone and live[n] == zone]
    if near and not route.has_prefix:
        assert live[named.node] == zone


@given(
    log=logs,
    route=st.sampled_from(OTHERS_MAY_LEAD),
    placement=placements(),
    live=live_gateways,
    zone=zones,
    newcomer=st.tuples(st.integers(10, 20), zones),
)
def test_who_comes_or_goes_elsewhere_moves_nothing(
    log: TopicIdPartition,
    route: PartitionRoute,
    placement: Placement,
    live: dict[int, str | None],
    zone: str | None,
    newcomer: tuple[int, str | None],
) -> None:
    """The order in which gateways are heard of does not matter, and a choice is given up only for
    somebody better: of the same kind only when the chosen one is gone."""
    named = leader_for(log, route, placement, live, zone)
    assert leader_for(log, route, placement, dict(reversed(live.items())), zone) == named
    if live and named.why is not Why.FALLBACK:
        assert leader_for(log, route, placement, {**live, newcomer[0]: newcomer[1]}, zone) == named
    for gone in live.keys() - {named.node}:
        left = {node: where for node, where in live.items() if node != gone}
        if gone not in placement.replicas:
            assert leader_for(log, route, placement, left, zone).node == named.node


@given(log=logs, route=st.sampled_from(OTHERS_MAY_LEAD), placement=placements(), live=live_gateways)
def test_without_a_zone_kafkas_leader_stays_while_it_lives(
    log: TopicIdPartition,
    route: PartitionRoute,
    placement: Placement,
    live: dict[int, str | None],
) -> None:
    """Seed 000 "Practical stability rule"."""
    if placement.leader in live:
        expected = NamedLeader(placement.leader, Why.KAFKA)
        assert leader_for(log, route, placement, live, None) == expected
        assert leader_for(log, route, placement, live, "nowhere") == expected


@pytest.mark.parametrize("route", OTHERS_MAY_LEAD)
def test_a_replica_in_the_clients_zone_is_named(route: PartitionRoute) -> None:
    assert leader_for(LOG, route, ON_123, ZONES, "c") == NamedLeader(3, Why.ZONE)
    assert leader_for(LOG, route, ON_123, ZONES, "a") == NamedLeader(1, Why.KAFKA)


@pytest.mark.parametrize("route", OTHERS_MAY_LEAD)
def test_a_leader_that_does_not_live_is_routed_around(route: PartitionRoute) -> None:
    named = leader_for(LOG, route, ON_123, without(1), None)
    assert named.why is Why.ROUTED_AROUND
    assert named.node in (2, 3)
    assert leader_for(LOG, route, ON_123, without(1), "b") == NamedLeader(2, Why.ROUTED_AROUND)


@pytest.mark.parametrize("route", OTHERS_MAY_LEAD)
def test_with_every_replica_away_any_gateway_is_named_first_of_the_clients_zone(
    route: PartitionRoute,
) -> None:
    """From B0 on everybody serves; of a prefix nobody but replicas does, which is refused there."""
    leaderless = replace(ON_123, leader=-1)
    assert leader_for(LOG, route, leaderless, without(1, 2, 3), "b") == NamedLeader(5, Why.FALLBACK)
    named = leader_for(LOG, route, leaderless, without(1, 2, 3), "nowhere")
    assert named.node in (4, 5, 6)
    assert named.why is Why.FALLBACK


def test_a_replica_that_is_behind_serves_no_prefix() -> None:
    behind = Placement(leader=-1, replicas=(1, 2, 3), in_sync=(1, 2))
    assert leader_for(LOG, HYBRID, behind, without(1), "c").node == 2
    assert leader_for(LOG, HYBRID, behind, without(1, 2), None).node == 3
    for route in ANYBODYS:
        assert leader_for(LOG, route, behind, without(1), "c").node == 3


def test_who_does_not_fetch_from_followers_is_told_the_leader_of_a_prefix() -> None:
    for zone, live in (("c", ZONES), (None, without(1)), (None, without(1, 2, 3))):
        kept = leader_for(LOG, HYBRID, ON_123, live, zone, reads_followers=False)
        assert kept == NamedLeader(1, Why.KAFKA)
        for route in ANYBODYS:
            named = leader_for(LOG, route, ON_123, live, zone, reads_followers=False)
            assert named == leader_for(LOG, route, ON_123, live, zone)


def test_partitions_are_spread_over_those_who_can_take_them() -> None:
    topic_id, nobody = uuid4(), Placement(-1, (), ())
    shares = Counter(
        leader_for(TopicIdPartition(topic_id, n), BORN_DISKLESS, nobody, ZONES, None).node
        for n in range(600)
    )
    assert set(shares) == set(ZONES)
    assert min(shares.values()) > 50


RACKS = {"a", "eu-1", "eu-1c", "eu-1c-x", "in,two words"}


@pytest.mark.parametrize(
    ("client_id", "zone"),
    [
        (None, None),
        ("", None),
        ("diskless_az=a", "a"),
        ("orders,diskless_az=eu-1c", "eu-1c"),
        ("orders diskless_az=eu-1c more", "eu-1c"),
        ("orders,diskless_az=eu-1c,more=1", "eu-1c"),
        ("my_diskless_az=a", None),
        ("diskless_az=", None),
        ("diskless_az", None),
        ("diskless_az=a-StreamThread-1-producer", "a"),
        ("orders,diskless_az=eu-1c-StreamThread-1-restore-consumer", "eu-1c"),
        ("diskless_az=eu-1-StreamThread-1-producer", "eu-1"),
        ("diskless_az=eu-1c-x-StreamThread-1-producer", "eu-1c-x"),
        ("diskless_az=eu-1c-xy", "eu-1c"),
        ("diskless_az=in,two words,more", "in,two words"),
        ("diskless_az=eu-1d", None),
        ("diskless_az=eu", None),
        ("diskless_az=ab", None),
        ("diskless_az=A", None),
        ("diskless_az=a=1", None),
        ("diskless_az=b,diskless_az=a", None),
    ],
)
def test_a_client_names_its_zone_in_its_id(client_id: str | None, zone: str | None) -> None:
    """Streams and Connect put their own text behind it; a zone is a rack, and no other name."""
    assert zone_among(zone_told(client_id), RACKS) == zone


def test_where_there_are_no_racks_no_client_has_a_zone() -> None:
    assert zone_among(zone_told("diskless_az=a"), ()) is None
