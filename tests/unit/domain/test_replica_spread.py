"""Which partitions have one replica in each rack, and what is done about the others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.domain.test_placement import cluster, clusters
from tideline.domain.placement import Broker, Load, racks_of
from tideline.domain.replica_spread import Assessment, PlacedPartition, Spread, assess


def partition(*replicas: int, **changes: Any) -> PlacedPartition:
    values: dict[str, Any] = {
        "topic": "t",
        "partition": 0,
        "replicas": replicas,
        "in_sync": frozenset(replicas),
        "leader": replicas[0],
        "has_prefix": False,
        "ready": True,
    }
    return PlacedPartition(**(values | changes))


def judged(brokers: list[Broker], placed: PlacedPartition) -> Assessment:
    return assess(placed, {b.node: b for b in brokers}, Load())


def test_one_replica_in_each_rack_is_even_and_stays() -> None:
    found = judged(cluster("a", "b", "c"), partition(3, 1, 2))
    assert (found.spread, found.target, found.rack_aware) == (Spread.EVEN, None, True)


def test_a_single_replica_gets_one_in_every_other_rack_and_stays_the_leader() -> None:
    found = judged(cluster("a", "b", "c"), partition(2))
    assert found.spread is Spread.SINGLE
    assert found.missing == ("a", "c")
    assert found.target == (2, 1, 3)


def test_a_rack_that_is_used_twice_gives_one_replica_away_and_never_the_leaders() -> None:
    found = judged(cluster("a", "a", "b", "c"), partition(2, 1, 3))
    assert found.spread is Spread.UNEVEN
    assert found.target == (2, 3, 4)


def test_a_replica_in_sync_stays_before_one_that_is_not() -> None:
    found = judged(
        cluster("a", "b", "b", "c"), partition(1, 2, 3, in_sync=frozenset({1, 3}), leader=1)
    )
    assert found.target == (1, 3, 4)


def test_with_a_prefix_every_replica_stays() -> None:
    found = judged(cluster("a", "a", "b", "c"), partition(2, 1, 3, has_prefix=True))
    assert found.target == (2, 1, 3, 4)


def test_more_replicas_than_racks_are_told_and_kept() -> None:
    found = judged(cluster("a", "a", "b"), partition(1, 2, 3))
    assert found.spread is Spread.UNEVEN
    assert found.target is None
    assert "kept" in found.why_not


def test_a_cluster_without_racks_loses_no_replica() -> None:
    found = judged(cluster(None, None, None), partition(1, 2, 3))
    assert found.target is None


def test_a_broker_that_is_away_is_waited_for_and_not_replaced() -> None:
    found = judged(cluster("a", "a", "b", away=(1,)), partition(1, 3, leader=3))
    assert found.spread is Spread.EVEN


def test_a_replica_beside_whose_broker_no_gateway_is_known_is_not_taken_away() -> None:
    """Its gateway may be on its way: by then the replica is the one of its rack."""
    brokers = [Broker(1, "a"), Broker(2, "b"), Broker(3, "c", gateway=False)]
    found = judged(brokers, partition(1, 3))
    assert found.missing == ("b",)
    assert found.target == (1, 3, 2), "rack b lacks one in either case"
    registered = [*brokers[:2], Broker(3, "c")]
    assert judged(registered, partition(1, 3, 2)).rack_aware


@pytest.mark.parametrize("gateway", [True, False])
def test_while_a_broker_has_no_rack_and_others_have_nothing_is_moved(gateway: bool) -> None:
    """It may be of a rack that has a replica; two such brokers need not be of one rack."""
    brokers = [Broker(1, "a"), Broker(2, "b"), Broker(3, None, gateway=gateway), Broker(4, None)]
    for placed in (partition(1), partition(3, 4), partition(1, 2)):
        found = judged(brokers, placed)
        assert found.target is None
        assert "broker 3, 4 has no rack" in found.why_not


def test_a_broker_that_is_not_registered_any_more_is_replaced() -> None:
    found = judged(cluster("a", "b", "c"), partition(1, 2, 99))
    assert found.target == (1, 2, 3)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ready": False}, "not ready"),
        ({"moving": True}, "being reassigned"),
        ({"leader": -1}, "no leader"),
    ],
)
def test_only_ready_partitions_that_somebody_leads_are_moved(
    changes: dict[str, Any], why: str
) -> None:
    found = judged(cluster("a", "b"), partition(1, **changes))
    assert found.target is None
    assert why in found.why_not


def test_a_rack_without_a_live_broker_is_waited_for() -> None:
    found = judged(cluster("a", "b", away=(2,)), partition(1))
    assert found.target is None
    assert "rack b" in found.why_not


def test_what_one_partition_is_given_counts_for_the_next() -> None:
    brokers = {b.node: b for b in cluster("a", "b", "b")}
    load = Load()
    given_ = [assess(partition(1), brokers, load).target for _ in range(4)]
    assert given_ == [(1, 2), (1, 3), (1, 2), (1, 3)]


@given(st.data())
def test_a_target_is_better_never_smaller_and_keeps_what_a_prefix_needs(
    data: st.DataObject,
) -> None:
    brokers = data.draw(clusters())
    nodes = [b.node for b in brokers]
    replicas = data.draw(st.lists(st.sampled_from(nodes), min_size=1, unique=True))
    leader = data.draw(st.sampled_from([-1, *replicas]))
    in_sync = frozenset(data.draw(st.lists(st.sampled_from(replicas)))) | ({leader} - {-1})
    prefix = data.draw(st.booleans())
    placed = partition(*replicas, leader=leader, in_sync=in_sync, has_prefix=prefix)
    found = judged(brokers, placed)
    if found.target is None:
        assert found.rack_aware or found.why_not
        return
    by_node = {b.node: b for b in brokers}
    added = set(found.target) - set(replicas)
    assert added
    assert all(by_node[n].alive and by_node[n].gateway for n in added)
    assert len(set(found.target)) == len(found.target) >= len(replicas)
    assert leader in found.target
    assert {n for n in replicas if not by_node[n].gateway} <= set(found.target)
    assert len({b.rack is None for b in brokers}) == 1
    if prefix:
        assert set(replicas) <= set(found.target)

    def covered(of: Any) -> set[str | None]:
        return {by_node[n].rack for n in of if by_node[n].gateway}

    assert covered(replicas) < covered(found.target) <= racks_of(brokers)
