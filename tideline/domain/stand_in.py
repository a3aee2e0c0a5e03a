"""Which gateway answers for a broker whose own gateway is away.

A gateway that is away takes a healthy broker with it: its classic partitions, groups and
transactions. So another gateway *stands in*: it serves connections whose broker is that one, at an
address of its own, which clients are told in the place of the gateway's. What always holds: the
answer follows from its inputs alone, so that it stays while they do; who serves is never stood in
for; and a gateway is named only where the registry says that it stands in, which holds gateways of
one installation, and so of one Kafka cluster (:mod:`tideline.ownership`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias

Address: TypeAlias = tuple[str, int]
LONGEST_NODE = len(str(2**31 - 1))
MOST_BYTES = 262_144
"""Of what is registered; no process reads more of it."""


@dataclass(frozen=True, slots=True)
class Sibling:
    """A gateway as the registry tells of it."""

    zone: str | None = None
    lives: bool = True
    """It is active, and its lease has not lapsed for certain."""
    serves: bool = True
    """It accepts connections."""
    stand_ins: Mapping[int, Address] | None = None
    """By node id: where it stands in for that gateway."""

    @property
    def is_away(self) -> bool:
        return not (self.lives and self.serves)


Fleet: TypeAlias = Mapping[int, Sibling]
"""By node id, which is the broker's that the gateway stands beside."""


def away(fleet: Fleet, brokers: Collection[int], addressed: Collection[int]) -> frozenset[int]:
    """The nodes that somebody has to stand in for: Kafka names the broker (``brokers``), clients
    are told an address for it (``addressed``), and its gateway serves no more. One that has never
    registered is not away: until it takes that address over its broker may serve clients there."""
    return frozenset(
        node for node in addressed if node in brokers and node in fleet and fleet[node].is_away
    )


def stand_in_for(
    node: int, fleet: Fleet, brokers: Collection[int], zone: str | None
) -> Address | None:
    """The address that a client in ``zone`` (``None``: it is not known) is told for ``node``, whose
    gateway is away; ``None``: nobody stands in for it."""
    able = {
        other: address
        for other, sibling in fleet.items()
        if other != node and other in brokers and not sibling.is_away
        if (address := (sibling.stand_ins or {}).get(node)) is not None
    }
    near = {n: a for n, a in able.items() if zone is not None and fleet[n].zone == zone}
    among = near or able
    if not among:
        return None
    return among[max(among, key=lambda other: (_weight(node, other), other))]


def _weight(node: int, other: int) -> bytes:
    """Rendezvous hashing: who comes or goes moves nobody else's stand-in."""
    return blake2b(b"%d:%d" % (node, other), digest_size=8).digest()


def controller_for(asked: int, brokers: Collection[int], away: Collection[int]) -> int | None:
    """Whom a client that asked the gateway of ``asked`` is told as the controller: with KRaft any
    broker, since each passes on what is the controller's to do. The gateway that was asked is one
    that the client can reach; librdkafka waits for the one that it was told until it asks anew,
    and gives its request up. The next one by id if that broker is not among ``brokers``, or its
    gateway is ``away`` or about to be; ``None``: there is none."""
    able = sorted(node for node in brokers if node not in away)
    if not able:
        return None
    return next((node for node in able if node >= asked), able[0])


def as_registered(stand_ins: Mapping[int, Address]) -> str | None:
    """As :func:`stand_ins_of` reads it; ``None``: there are none."""
    entries = (f"{node}={_shown(*at)}" for node, at in sorted(stand_ins.items()))
    return ",".join(entries) or None


def stand_ins_of(registered: str | None) -> Mapping[int, Address]:
    """What a gateway has registered, by node id. What cannot be read, by a newer version for
    example, is passed over: nobody is led there."""
    if not registered or len(registered) > MOST_BYTES:
        return {}
    found: dict[int, Address] = {}
    for entry in registered.split(","):
        node, _, at = entry.strip().partition("=")
        host, _, port = at.rpartition(":")
        numbers = node.isascii() and node.isdigit() and port.isascii() and port.isdigit()
        short = len(node) <= LONGEST_NODE and len(port) < 6
        if numbers and host and short and 0 < int(port) < 65536:
            found[int(node)] = host.strip("[]"), int(port)
    return found


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
