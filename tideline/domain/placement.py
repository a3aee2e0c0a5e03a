"""Which brokers hold the replicas of diskless partitions: one in each rack (seed 003, "Placement
Model").

Brokers without a rack are one rack together, as Kafka's own placer has it. Only a broker beside
which a gateway stands is given replicas: clients are led to no other.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

MANAGED_RF = "diskless.managed.rf.enabled"
"""The setting of seed 003; ``TIDELINE_DISKLESS_MANAGED_RF_ENABLED`` of gateways."""
BY_THE_CLUSTER = (-1, 1)
"""Replication factors that leave the number to the cluster: -1 by meaning, 1 because clients of
before wrote it."""
Replicas = tuple[int, ...]
"""Node ids; the first is the preferred leader."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A registered broker."""

    node: int
    rack: str | None
    alive: bool = True
    """Not fenced. One that restarts is registered and not alive."""
    gateway: bool = True
    """A gateway stands beside it."""


@dataclass(slots=True)
class Load:
    """What each broker holds, by node id; grows with what is placed."""

    held: Counter[int] = field(default_factory=Counter)
    """Replicas."""
    led: Counter[int] = field(default_factory=Counter)
    """Partitions whose preferred leader it is."""

    @classmethod
    def of(cls, placed: Iterable[Sequence[int]]) -> Load:
        """Of the replica lists of all partitions of the cluster."""
        load = cls()
        for replicas in placed:
            load.add(replicas)
        return load

    def add(self, replicas: Sequence[int]) -> None:
        self.held.update(replicas)
        self.led.update(replicas[:1])


def racks_of(brokers: Iterable[Broker]) -> frozenset[str | None]:
    """The racks that count: each has a registered broker with a gateway."""
    return frozenset(b.rack for b in brokers if b.gateway)


def refusal_of_factor(topic: str, factor: int) -> str | None:
    """Why a diskless topic may not ask for ``factor`` replicas, or ``None``."""
    if factor in BY_THE_CLUSTER:
        return None
    return (
        f"replication factor {factor} of topic {topic}: {MANAGED_RF} is on, so a diskless topic "
        "has one replica in each rack; ask for -1, or for 1"
    )


def refusal_of_assignment(topic: str) -> str:
    """Why nobody may place the replicas of a diskless topic by hand when it comes into being."""
    return (
        f"replica assignment of topic {topic}: {MANAGED_RF} is on, so the replicas of a diskless "
        "topic are placed one in each rack; leave the assignment out, and reassign afterwards if "
        "they must be elsewhere"
    )


def place(
    brokers: Iterable[Broker], load: Load, partitions: int, factor: int | None = None
) -> list[Replicas]:
    """Replicas for so many new partitions of one topic; ``load`` grows by them.

    ``factor``: as many replicas, where a topic has its own number already; ``None``: one for each
    rack. Within a rack the broker with the fewest replicas is taken, one that is alive before one
    that is not. The first replica is alive where any is, and the topic's partitions take turns
    over the racks. Raises :class:`ValueError` if there are not so many brokers.
    """
    usable = sorted((b for b in brokers if b.gateway), key=lambda b: b.node)
    wanted = len(racks_of(usable)) if factor is None else factor
    if not 0 < wanted <= len(usable):
        raise ValueError(f"{wanted} replicas on {len(usable)} brokers with a gateway")
    racks = {
        rack: sorted(_rank(b, load) for b in usable if b.rack == rack) for rack in racks_of(usable)
    }
    by_node = {b.node: b for b in usable}
    turns: Counter[tuple[int, ...]] = Counter()
    placed = []
    for _ in range(partitions):
        chosen = [by_node[node] for node in _chosen(racks, wanted)]
        replicas = _in_order(chosen, load, turns)
        load.add(replicas)
        placed.append(replicas)
        for broker in chosen:
            insort(racks[broker.rack], _rank(broker, load))
    return placed


_Rank = tuple[bool, int, int]


def _chosen(racks: Mapping[str | None, list[_Rank]], wanted: int) -> list[int]:
    """Taken out of ``racks``, which has the ranks of each in their order. A rack is used twice only
    when every rack is used."""
    chosen: list[int] = []
    used: Counter[str | None] = Counter()
    while len(chosen) < wanted:
        best = min((r for r, ranks in racks.items() if ranks), key=lambda r: (used[r], racks[r][0]))
        chosen.append(racks[best].pop(0)[-1])
        used[best] += 1
    return chosen


def least_loaded(candidates: Iterable[Broker], load: Load) -> Broker:
    """Of brokers of one rack: alive before not, then the fewest replicas, then the lowest id."""
    return min(candidates, key=lambda b: _rank(b, load))


def _rank(broker: Broker, load: Load) -> _Rank:
    return not broker.alive, load.held[broker.node], broker.node


def _in_order(chosen: Iterable[Broker], load: Load, turns: Counter[tuple[int, ...]]) -> Replicas:
    """Whoever led least in this topic leads, then who leads least of all; behind it go those who
    came at that place behind it least: when it fails, what it led goes to several brokers."""
    rest, order = list(chosen), list[int]()
    while rest:
        so_far = (len(order), *order[:1])
        taken = min(
            rest,
            key=lambda b: (not b.alive, turns[*so_far, b.node], load.led[b.node], b.node),
        )
        turns[*so_far, taken.node] += 1
        rest.remove(taken)
        order.append(taken.node)
    return tuple(order)
