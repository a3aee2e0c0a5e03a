"""How many bytes leave a rack, and how long a rack waits for an answer: counting, without I/O."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from tideline.demo.ledger import Ledger

SUFFIX_BYTES = "inkless_gateway_suffix_bytes_total"
STARTED = "process_start_time_seconds"
DIRECTIONS = ("produced", "fetched")


@dataclass(frozen=True, slots=True)
class Crossing:
    """Bytes between clients and gateways: in the client's rack, to another one, and of clients
    that do not say where they are."""

    same: float = 0.0
    other: float = 0.0
    unknown: float = 0.0

    def __add__(self, more: Crossing) -> Crossing:
        return Crossing(self.same + more.same, self.other + more.other, self.unknown + more.unknown)

    def __sub__(self, less: Crossing) -> Crossing:
        return Crossing(self.same - less.same, self.other - less.other, self.unknown - less.unknown)

    @property
    def leaving(self) -> float:
        """The share of what is known that leaves the rack; 0.0 of nothing."""
        known = self.same + self.other
        return self.other / known if known else 0.0


Counted = dict[str, Crossing]
"""By direction."""


class Meter:
    """Adds up the counters of gateways that come and go: each process counts from zero."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, float], Counted] = {}

    def read(self, gateway: str, exposition: str) -> None:
        """``exposition``: what the gateway's ``/metrics`` says now."""
        found: dict[str, dict[str, float]] = defaultdict(dict)
        started = 0.0
        for family in text_string_to_metric_families(exposition):
            for sample in family.samples:
                if sample.name == SUFFIX_BYTES:
                    found[sample.labels["direction"]][sample.labels["zone"]] = sample.value
                elif sample.name == STARTED:
                    started = sample.value
        self._read[gateway, started] = {d: Crossing(**zones) for d, zones in found.items()}

    @property
    def total(self) -> Counted:
        """What all of them have counted, as far as it was read."""
        return {
            direction: sum(
                (counted.get(direction, Crossing()) for counted in self._read.values()),
                Crossing(),
            )
            for direction in DIRECTIONS
        }


def since(now: Counted, before: Counted) -> Counted:
    return {direction: now[direction] - before[direction] for direction in now}


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of the demo. Times are of the monotonic clock, in seconds."""

    name: str
    began: float
    ended: float
    bytes: Counted
    gaps: Mapping[str, float] = field(default_factory=dict)
    """By rack: the longest time in ms without an acknowledgement in a partition."""


def longest_gap_ms(times: Iterable[float], began: float, ended: float) -> float:
    """The longest time between two acknowledgements that overlaps ``[began, ended]``, in ms;
    up to ``ended`` where nothing was acknowledged after."""
    ordered = sorted(times)
    before = [at for at in ordered if at <= began][-1:] or [began]
    after = [at for at in ordered if at >= ended][:1] or [ended]
    inside = [at for at in ordered if began < at < ended]
    steps = itertools.pairwise([*before, *inside, *after])
    return max(b - a for a, b in steps) * 1000.0


def rack_gap_ms(ledger: Ledger, rack: str, began: float, ended: float) -> float:
    """:func:`longest_gap_ms` of the producer called ``rack``, over all partitions."""
    return max(
        longest_gap_ms(
            (a.at for a in ledger.acknowledgements(p) if a.record_id.startswith(f"{rack}/")),
            began,
            ended,
        )
        for p in ledger.partitions
    )


def acknowledged_since(
    ledger: Ledger, producers: Collection[str], partitions: int, at: float
) -> dict[int, int] | None:
    """By partition the highest offset that was acknowledged after ``at``, once each of
    ``producers`` has had an answer in each; ``None`` until then."""
    found: dict[int, int] = {}
    for partition in range(partitions):
        waiting = set(producers)
        for ack in reversed(ledger.acknowledgements(partition)):
            if ack.at <= at:
                break
            waiting.discard(ack.record_id.partition("/")[0])
            found[partition] = max(found.get(partition, -1), ack.offset)
        if waiting:
            return None
    return found


def has_passed(ledger: Ledger, offsets: Mapping[int, int]) -> bool:
    """Whether a reader is at or past these, by partition."""
    return all(ledger.consumed_through(p) >= offset for p, offset in offsets.items())


@dataclass(frozen=True, slots=True)
class Placed:
    """Where Kafka has a partition, in node ids."""

    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    leader: int
    """Whom the client that asked was told; -1: nobody."""


def one_in_each_rack(placed: Iterable[Placed], racks: Mapping[int, str]) -> bool:
    return all(
        sorted(racks[node] for node in partition.replicas) == sorted(set(racks.values()))
        for partition in placed
    )


def by_broker(placed: Iterable[Placed]) -> dict[int, int]:
    """How many replicas each broker has."""
    return dict(sorted(Counter(node for p in placed for node in p.replicas).items()))


def in_sync_but(placed: Iterable[Placed], lost: Collection[int]) -> bool:
    """Whether all replicas are in sync but those on ``lost`` brokers."""
    return all(set(p.in_sync) == set(p.replicas) - set(lost) for p in placed)


def racks_led_in(placed: Sequence[Placed], racks: Mapping[int, str]) -> set[str]:
    """The racks that a client is sent to."""
    return {racks.get(partition.leader, "none") for partition in placed}
