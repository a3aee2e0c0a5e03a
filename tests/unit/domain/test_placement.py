"""Replicas of diskless partitions: one in each rack, least loaded first (seed 003)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.placement import (
    Broker,
    Load,
    place,
    racks_of,
    refusal_of_assignment,
    refusal_of_factor,
)

RACKS = ("a", "b", "c", None)


def cluster(*racks: str | None, away: tuple[int, ...] = ()) -> list[Broker]:
    """Brokers 1 and on, in these racks."""
    return [Broker(n, rack, alive=n not in away) for n, rack in enumerate(racks, 1)]


@st.composite
def clusters(draw: st.DrawFn) -> list[Broker]:
    racks = draw(st.lists(st.sampled_from(RACKS), min_size=1, max_size=9))
    return [
        Broker(n, rack, alive=draw(st.booleans()), gateway=draw(st.booleans()) or n == 1)
        for n, rack in enumerate(racks, 1)
    ]


def loads(brokers: list[Broker]) -> st.SearchStrategy[list[list[int]]]:
    nodes = [b.node for b in brokers]
    return st.lists(st.lists(st.sampled_from(nodes), min_size=1, unique=True), max_size=12)


def rack_of(brokers: list[Broker], node: int) -> str | None:
    (rack,) = (b.rack for b in brokers if b.node == node)
    return rack


@given(st.data())
def test_each_partition_has_one_replica_in_each_rack_and_all_beside_gateways(
    data: st.DataObject,
) -> None:
    brokers = data.draw(clusters())
    load = Load.of(data.draw(loads(brokers)))
    for replicas in place(brokers, load, data.draw(st.integers(1, 12))):
        racks = [rack_of(brokers, n) for n in replicas]
        assert len(racks) == len(set(racks))
        assert set(racks) == racks_of(brokers)
        assert all(b.gateway for b in brokers if b.node in replicas)


@given(st.data())
def test_within_a_rack_nobody_is_taken_while_an_equal_one_holds_less(data: st.DataObject) -> None:
    brokers = data.draw(clusters())
    placed = data.draw(loads(brokers))
    held = Load.of(placed).held
    for replicas in place(brokers, Load.of(placed), 8):
        for taken in (b for b in brokers if b.node in replicas):
            for other in brokers:
                if other.gateway and other.rack == taken.rack and other.alive >= taken.alive:
                    assert other.alive == taken.alive
                    assert held[taken.node] <= held[other.node]
        held.update(replicas)


@given(st.data())
def test_the_same_cluster_gives_the_same_placement_in_whatever_order_it_is_told(
    data: st.DataObject,
) -> None:
    brokers = data.draw(clusters())
    placed = data.draw(loads(brokers))
    shuffled = data.draw(st.permutations(brokers))
    assert place(brokers, Load.of(placed), 5) == place(shuffled, Load.of(placed[::-1]), 5)


@given(st.data())
def test_the_first_replica_is_alive_where_any_is(data: st.DataObject) -> None:
    brokers = data.draw(clusters())
    alive = {b.node for b in brokers if b.alive}
    for replicas in place(brokers, Load(), 6):
        assert replicas[0] in alive or not alive & set(replicas)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 40))
def test_leaders_and_replicas_of_a_topic_differ_by_one_at_most_where_racks_are_alike(
    racks: int, size: int, partitions: int
) -> None:
    brokers = cluster(*(f"rack-{n % racks}" for n in range(racks * size)))
    placed = place(brokers, Load(), partitions)
    for counted in (
        Counter(replicas[0] for replicas in placed),
        Counter(n for replicas in placed for n in replicas),
    ):
        counts = [counted[b.node] for b in brokers]
        assert max(counts) - min(counts) <= 1


def test_what_a_leader_led_does_not_go_to_one_broker_when_it_fails() -> None:
    placed = place(cluster("a", "b", "c"), Load(), 6)
    for leader in (1, 2, 3):
        seconds = Counter(replicas[1] for replicas in placed if replicas[0] == leader)
        assert list(seconds.values()) == [1, 1]


def test_the_topic_spreads_its_leaders_although_one_broker_leads_nothing_yet() -> None:
    full = [[1, 2]] * 50 + [[2, 1]] * 50
    placed = place(cluster("a", "b", "c"), Load.of(full), 6)
    assert Counter(replicas[0] for replicas in placed) == {1: 2, 2: 2, 3: 2}


def test_the_next_topic_goes_where_the_one_before_did_not() -> None:
    brokers, load = cluster("a", "a", "b", "b"), Load()
    (first,), (second,) = place(brokers, load, 1), place(brokers, load, 1)
    assert set(first) == {1, 3}
    assert set(second) == {2, 4}


def test_a_rack_whose_brokers_restart_keeps_its_replica() -> None:
    """They are registered: they come back, and placement is static (seed 003)."""
    (replicas,) = place(cluster("a", "b", "c", away=(1,)), Load(), 1)
    assert set(replicas) == {1, 2, 3}
    assert replicas[0] != 1


def test_brokers_without_a_rack_are_one_rack_together() -> None:
    assert [len(r) for r in place(cluster(None, None, None), Load(), 1)] == [1]
    assert [len(r) for r in place(cluster("a", None, None), Load(), 1)] == [2]


@given(st.data())
def test_a_topic_that_has_its_own_factor_keeps_it_and_doubles_a_rack_only_when_all_are_used(
    data: st.DataObject,
) -> None:
    brokers = data.draw(clusters())
    usable = [b for b in brokers if b.gateway]
    factor = data.draw(st.integers(1, len(usable)))
    for replicas in place(brokers, Load(), 4, factor):
        assert len(set(replicas)) == factor
        used = Counter(rack_of(brokers, n) for n in replicas)
        assert len(used) == min(factor, len(racks_of(brokers)))


@pytest.mark.parametrize("factor", [0, 3])
def test_more_replicas_than_brokers_is_an_error(factor: int) -> None:
    with pytest.raises(ValueError, match="2 brokers"):
        place(cluster("a", "b"), Load(), 1, factor)


def test_a_cluster_without_gateways_places_nothing() -> None:
    with pytest.raises(ValueError, match="0 brokers"):
        place([Broker(1, "a", gateway=False)], Load(), 1)


def test_a_factor_of_minus_one_or_one_is_the_clusters_and_any_other_is_refused() -> None:
    assert refusal_of_factor("t", -1) is None
    assert refusal_of_factor("t", 1) is None
    for factor in (-2, 0, 2, 3):
        reason = refusal_of_factor("t", factor)
        assert reason is not None
        assert f"replication factor {factor} of topic t" in reason
        assert "ask for -1" in reason
    assert "leave the assignment out" in refusal_of_assignment("t")
