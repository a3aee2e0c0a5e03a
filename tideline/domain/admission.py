"""Who may connect: bounds in all, for each address, and for those who have not shown themselves.

A connection is *young* until it has shown itself: by its first complete, well-formed request, or,
where clients have to log in, by that. Strangers are young. When there are too many young ones the
oldest of the address that has most of them gives way, so who opens many takes the place of his own,
and a client that speaks at once is in before it could be its turn.

Rates are those of Kafka's KIP-612: a connection beyond the rate of its address is accepted, not
read, and closed once the rate allows another one, a second later at most, so that a client that
connects anew at once does not do so in a circle.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

BURST_S = 4.0
"""An address that was quiet may open as many connections at once as the rate allows in so long: all
clients of a host connect anew when a gateway was restarted."""
LONGEST_THROTTLE_S = 1.0
MOST_RATES = 10_000
"""Addresses whose rate is remembered. Beyond, the one that was quiet for longest is forgotten,
which gives it a whole burst: who has so many addresses is held by the bounds in all."""

G = TypeVar("G")


class Bound(StrEnum):
    """Labels of ``inkless_gateway_bound_reached``."""

    CONNECTIONS = "connections"
    ADDRESS = "address"
    RATE = "rate"
    YOUNG = "young"
    FIRST_REQUEST = "first_request"
    FIRST_FRAME = "first_frame"


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    connections: int
    """Of all clients."""
    per_address: int
    young: int
    """Of them, those that have not shown themselves."""
    rate_per_address: int
    """New ones in a second; 0: any number."""


@dataclass(frozen=True, slots=True)
class Verdict(Generic[G]):
    """What becomes of a new connection, and of an older one."""

    reached: Bound | None = None
    """The bound that it met."""
    throttle_s: float = 0.0
    """Positive: it is in, is not read, and is closed after so many seconds."""
    gives_way: G | None = None
    """A young one that is closed for it."""

    @property
    def admitted(self) -> bool:
        """Whether it counts from now on, and has to leave."""
        return self.reached in (None, Bound.YOUNG) or self.throttle_s > 0


@dataclass(slots=True)
class _Address(Generic[G]):
    connections: int = 0
    young: dict[G, None] = field(default_factory=dict)
    """In the order of their coming."""


class Admissions(Generic[G]):
    """The books on who is in. Times are seconds of one clock that does not go back."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._in: dict[G, str] = {}
        self._addresses: dict[str, _Address[G]] = {}
        self._young = 0
        self._rates: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By address: connections that it may open at once, at a time."""

    def __len__(self) -> int:
        return len(self._in)

    @property
    def young(self) -> int:
        """How many have not shown themselves."""
        return self._young

    def arrive(self, guest: G, address: str, now: float) -> Verdict[G]:
        """A new connection. Whoever is admitted has to :meth:`leave`; the one that gives way has
        left already."""
        limits = self._limits
        if len(self._in) >= limits.connections:
            return Verdict(Bound.CONNECTIONS)
        throttle_s = self._throttle(address, now)
        own = self._addresses.get(address)
        if own is not None and own.connections >= limits.per_address:
            return Verdict(Bound.ADDRESS)
        gives_way = None
        if self._young >= limits.young:
            gives_way = self._oldest_of_most()
            self.leave(gives_way)
        self._in[guest] = address
        own = self._addresses.setdefault(address, _Address())
        own.connections += 1
        own.young[guest] = None
        self._young += 1
        if throttle_s > 0:
            return Verdict(Bound.RATE, throttle_s, gives_way)
        return Verdict(Bound.YOUNG if gives_way is not None else None, 0.0, gives_way)

    def show(self, guest: G) -> None:
        """It is a client. Harmless for one that has shown itself, or is not in."""
        address = self._in.get(guest)
        if address is not None and guest in self._addresses[address].young:
            del self._addresses[address].young[guest]
            self._young -= 1

    def leave(self, guest: G) -> None:
        """It has ended. Harmless for one that is not in."""
        self.show(guest)
        address = self._in.pop(guest, None)
        if address is None:
            return
        own = self._addresses[address]
        own.connections -= 1
        if own.connections == 0:
            del self._addresses[address]

    def _oldest_of_most(self) -> G:
        most = max(self._addresses.values(), key=lambda own: len(own.young))
        return next(iter(most.young))

    def _throttle(self, address: str, now: float) -> float:
        rate = self._limits.rate_per_address
        if rate == 0:
            return 0.0
        burst = rate * BURST_S
        left, at = self._rates.pop(address, (burst, now))
        left = min(burst, left + (now - at) * rate)
        # The debt is bounded: who goes on all the time has his share, and not one less for each
        # connection that was closed.
        left = max(left - 1, -rate * LONGEST_THROTTLE_S)
        self._rates[address] = (left, now)
        if len(self._rates) > MOST_RATES:
            self._rates.popitem(last=False)
        return max(0.0, -left / rate)
