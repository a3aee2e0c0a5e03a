"""Which gateway a client is told to ask for a partition ("leader lying": seeds 000 and 003).

Kafka's leader matters to what Kafka answers: appends before B0, reads below it. From B0 on any
gateway serves any partition, so another one may be named: one near the client, or one that lives
where the leader's does not. What always holds: the answer follows from its inputs alone, so that
it stays while they do; while Kafka's leader lives and nobody nearer does it is the leader; and a
gateway that does not live is named only where nothing may be changed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import TypeAlias

from tideline.domain.answers import SERVED_ANYWHERE, state_of
from tideline.domain.ids import TopicIdPartition
from tideline.domain.request_handling import PartitionRoute

_ZONE_IN_CLIENT_ID = re.compile(r"(?:^|[ ,])diskless_az=(.*)", re.DOTALL)
_AFTER_A_ZONE = "-, "

LiveGateways: TypeAlias = Mapping[int, str | None]
"""Node ids whose gateway and broker live, and the zone of each; ``None``: it has none."""


class Why(StrEnum):
    KAFKA = "kafka"
    """Kafka's own leader, or whatever Kafka says where nothing may be changed."""
    ZONE = "zone"
    """A live replica in the client's zone; Kafka's leader lives elsewhere."""
    ROUTED_AROUND = "routed_around"
    """Kafka's leader does not live; another replica does."""
    FALLBACK = "fallback"
    """No replica lives: any live gateway, by hash."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What Kafka says of a partition, in node ids."""

    leader: int
    """-1: there is none."""
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NamedLeader:
    node: int
    why: Why


def zone_told(client_id: str | None) -> str:
    """What follows ``diskless_az=`` in a client id, to its end, where that begins a word: commas or
    blanks part them. Empty if it says no zone."""
    found = _ZONE_IN_CLIENT_ID.search(client_id) if client_id else None
    return found.group(1) if found else ""


def zone_among(told: str, zones: Collection[str]) -> str | None:
    """The longest of ``zones`` that ``told`` begins with, where the word ends or ``-`` follows:
    Streams and Connect make ``<client.id>-StreamThread-1-producer`` of an id."""
    if not told:
        return None
    fits = (z for z in zones if told.startswith(z) and told[len(z) : len(z) + 1] in _AFTER_A_ZONE)
    return max(fits, key=len, default=None)


def may_be_led_elsewhere(route: PartitionRoute) -> bool:
    """Whether appends and reads do without Kafka's leader."""
    return state_of(route) in SERVED_ANYWHERE


def leader_for(
    log: TopicIdPartition,
    route: PartitionRoute,
    placement: Placement,
    live: LiveGateways,
    zone: str | None,
    *,
    reads_followers: bool = True,
) -> NamedLeader:
    """Whom to name to a client in ``zone`` (``None``: it is not known). Of a partition with a
    prefix a client that is not known to fetch from followers (``reads_followers``; brokers refuse
    it below B0) is told Kafka's leader, whatever has become of it."""
    leader = placement.leader
    as_kafka_says = NamedLeader(leader, Why.KAFKA)
    if not live or not may_be_led_elsewhere(route):
        return as_kafka_says
    if route.has_prefix and not reads_followers:
        return as_kafka_says
    able = _able(route, placement, live)
    near = _in_zone(able, live, zone)
    if leader in live and (leader in near or not near):
        return as_kafka_says
    if near:
        return NamedLeader(_by_hash(log, near), Why.ZONE if leader in live else Why.ROUTED_AROUND)
    if able:
        return NamedLeader(_by_hash(log, able), Why.ROUTED_AROUND)
    return NamedLeader(_by_hash(log, _in_zone(live, live, zone) or live), Why.FALLBACK)


def nearer_replica(
    log: TopicIdPartition,
    route: PartitionRoute,
    placement: Placement,
    live: LiveGateways,
    zone: str,
    *,
    here: int,
) -> int | None:
    """The live replica in ``zone`` to which a consumer of the suffix is sent on from the gateway
    ``here`` (KIP-392), or ``None``: there is none, or this one is as near. Nobody is sent away from
    the zone, and so in circles; to replicas only, since clients know of no others."""
    if not may_be_led_elsewhere(route) or live.get(here) == zone:
        return None
    near = _in_zone(_able(route, placement, live), live, zone)
    return _by_hash(log, near) if near else None


def _able(route: PartitionRoute, placement: Placement, live: LiveGateways) -> Collection[int]:
    """The live replicas. Of those that Kafka would ask for the prefix the ones in sync, if any is:
    one that is behind cannot serve it."""
    alive = [node for node in placement.replicas if node in live]
    if route.has_prefix and (in_sync := [node for node in alive if node in placement.in_sync]):
        return in_sync
    return alive


def _in_zone(nodes: Iterable[int], live: LiveGateways, zone: str | None) -> list[int]:
    return [node for node in nodes if zone is not None and live[node] == zone]


def _by_hash(log: TopicIdPartition, nodes: Collection[int]) -> int:
    """One of ``nodes``, partitions spread over them. Another is chosen only when that one is not
    among them any more (rendezvous hashing): who comes or goes moves no other partition."""
    if len(nodes) == 1:
        return next(iter(nodes))
    return max(nodes, key=lambda node: (_weight(log, node), node))


def _weight(log: TopicIdPartition, node: int) -> bytes:
    seed = log.topic_id.bytes + b"%d:%d" % (log.partition, node)
    return blake2b(seed, digest_size=8).digest()
