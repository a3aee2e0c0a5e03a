"""Whether a partition that is diskless has one replica in each rack, and what would give it one
(seed 003, "Migration RF Normalization").

Only ever adds and replaces replicas: a replica set never becomes smaller. While Kafka holds a
prefix, nothing is taken away at all: reads below B0 are served by replicas only. Nor is anything
done by half of a picture: while some brokers have no rack, or to what has no gateway yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tideline.domain.placement import Broker, Load, Replicas, least_loaded, racks_of

NO_RACK = "(none)"


@dataclass(frozen=True, slots=True)
class PlacedPartition:
    """One partition as Kafka has it, and what it is to Tideline."""

    topic: str
    partition: int
    replicas: Replicas
    in_sync: frozenset[int]
    leader: int
    """-1: none."""
    has_prefix: bool
    """Kafka may hold records below B0: reads of them go to replicas."""
    ready: bool
    """It has crossed and, if it has a prefix, remote storage holds all of it."""
    moving: bool = False
    """It is being reassigned."""


class Spread(StrEnum):
    """How the replicas of a partition lie."""

    EVEN = "even"
    """One in each rack."""
    SINGLE = "one replica"
    UNEVEN = "racks uneven"
    """A rack has none, or two, or a replica is on no known broker."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """One partition, judged."""

    partition: PlacedPartition
    spread: Spread
    missing: tuple[str, ...]
    """Racks without a replica."""
    target: Replicas | None
    """What would make it even, or more even; ``None``: nothing can, or need be done."""
    why_not: str = ""
    """Why it is not even and has no target."""

    @property
    def rack_aware(self) -> bool:
        """The seed's ``rack_aware``: exactly one replica in each rack."""
        return self.spread is Spread.EVEN


def assess(placed: PlacedPartition, brokers: Mapping[int, Broker], load: Load) -> Assessment:
    """Judge one partition; ``load`` grows by what its target adds.

    A broker that is registered holds its replica, alive or not: one that restarts is waited for,
    never replaced.
    """
    racks = racks_of(brokers.values())
    here = Counter(
        b.rack for n in placed.replicas if (b := brokers.get(n)) is not None and b.gateway
    )
    missing = sorted(racks - here.keys(), key=rack_name)
    if not missing and len(placed.replicas) == len(racks) == here.total():
        return Assessment(placed, Spread.EVEN, (), None)
    spread = Spread.SINGLE if len(placed.replicas) == 1 else Spread.UNEVEN
    names = tuple(map(rack_name, missing))
    why_not = _obstacle(placed, missing, brokers)
    if why_not:
        return Assessment(placed, spread, names, None, why_not)
    added = [
        least_loaded((b for b in brokers.values() if _may_take(b, rack)), load).node
        for rack in missing
        if any(_may_take(b, rack) for b in brokers.values())
    ]
    load.held.update(added)
    kept = _kept(placed, brokers, max(len(racks), len(placed.replicas)) - len(added))
    return Assessment(placed, spread, names, (*kept, *added))


def rack_name(rack: str | None) -> str:
    return NO_RACK if rack is None else rack


def _may_take(broker: Broker, rack: str | None) -> bool:
    return broker.rack == rack and broker.alive and broker.gateway


def _obstacle(
    placed: PlacedPartition, missing: Sequence[str | None], brokers: Mapping[int, Broker]
) -> str:
    """Why the partition is left as it is; empty: it is not."""
    if placed.moving:
        return "it is being reassigned"
    if not placed.ready:
        return "it is not ready yet"
    bare = sorted(b.node for b in brokers.values() if b.rack is None)
    if 0 < len(bare) < len(brokers):
        # Kafka's own tool refuses this, too: nobody knows in which racks these are.
        return (
            f"broker {', '.join(map(str, bare))} has no rack and others have: set `broker.rack`, "
            "or unregister what is gone"
        )
    if not missing:
        return "every rack has a replica; what is more than that is kept"
    if not any(_may_take(b, rack) for b in brokers.values() for rack in missing):
        racks = ", ".join(map(rack_name, missing))
        return f"no broker of rack {racks} is alive"
    if placed.leader < 0:
        return "it has no leader: bring one of its replicas back"
    return ""


def _kept(placed: PlacedPartition, brokers: Mapping[int, Broker], room: int) -> Replicas:
    """Of the present replicas, in their order, those that stay: with a prefix all that exist, else
    one of each rack (the leader before one in sync), those whose gateway is not known, since it may
    come yet and then theirs is the one of its rack, and others as there is room."""
    known = [n for n in placed.replicas if n in brokers]
    if placed.has_prefix:
        return tuple(known)
    best = sorted(known, key=lambda n: (n != placed.leader, n not in placed.in_sync))
    first: dict[str | None, int] = {}
    for n in best:
        if brokers[n].gateway:
            first.setdefault(brokers[n].rack, n)
    certain = {*first.values(), *(n for n in known if not brokers[n].gateway)}
    spare = [n for n in best if n not in certain]
    stays = {*certain, *spare[: max(room - len(certain), 0)]}
    return tuple(n for n in known if n in stays)
