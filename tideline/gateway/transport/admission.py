"""The door of a gateway: who is let in, and how long and with how much one may stay a stranger.

The rule is :mod:`tideline.domain.admission`. Here it gets sockets, a clock, metrics and log lines,
which are bounded, too: who connects a thousand times in a second does not write a thousand lines.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping
from typing import Protocol

import structlog

from tideline.domain.admission import AdmissionLimits, Admissions, Bound
from tideline.gateway.metrics import BOUND_REACHED, CONNECTIONS_REFUSED, CONNECTIONS_YOUNG
from tideline.settings import GatewaySettings

PRODUCE = 0
TELL_EVERY_S = 10.0
CLOSINGS_TOLD = 50
"""Log lines about connections that were closed, in :data:`TELL_EVERY_S`; the rest is counted."""
_REMEDIES: Mapping[str, str] = {
    Bound.CONNECTIONS: "raise TIDELINE_GATEWAY_MAX_CONNECTIONS if they are your clients",
    Bound.ADDRESS: "raise TIDELINE_GATEWAY_MAX_CONNECTIONS_PER_ADDRESS if many clients share it, "
    "behind a proxy or a NAT",
    Bound.RATE: "raise TIDELINE_GATEWAY_CONNECTION_RATE_PER_ADDRESS if many clients share it, or "
    "find the one that connects again and again",
    Bound.YOUNG: "raise TIDELINE_GATEWAY_MAX_YOUNG_CONNECTIONS if so many clients connect at once",
    Bound.FIRST_REQUEST: "look what connects and sends no Kafka request: a port scanner, a health "
    "check that keeps its connection, a client that expects TLS",
    Bound.FIRST_FRAME: "look what connects: no Kafka client begins with such a request; if one "
    "does, raise TIDELINE_GATEWAY_FIRST_FRAME_MAX_BYTES",
}

log = structlog.get_logger()


class Guest(Protocol):
    """A client's connection, as the door sees it."""

    @property
    def peer(self) -> str:
        """``host:port``"""

    def turn_away(self, reason: str) -> None:
        """End it at once, without sending anything more."""

    def wait_unread(self) -> None:
        """Read nothing from it any more."""


class Telling:
    """Log lines of one kind, at most so many in a while; those left out are counted."""

    def __init__(self, most: int = 1, every_s: float = TELL_EVERY_S) -> None:
        self._most, self._every_s = most, every_s
        self._since = float("-inf")
        self._told = self._left_out = 0

    def due(self) -> dict[str, int] | None:
        """What the line has to add, or ``None`` if there is to be none."""
        now = asyncio.get_running_loop().time()
        if now - self._since >= self._every_s:
            self._since, self._told = now, 0
        if self._told >= self._most:
            self._left_out += 1
            return None
        self._told += 1
        left_out, self._left_out = self._left_out, 0
        return {"more_since_the_last_line": left_out} if left_out else {}


class ReachedBounds:
    """Counts bounds that were reached, and tells of each now and then."""

    def __init__(self, event: str, remedies: Mapping[str, str]) -> None:
        """``event``: the line of the log; ``remedies``: by the label of each bound."""
        self._event, self._remedies = event, remedies
        self._tellings = {bound: Telling() for bound in remedies}

    def tell(self, bound: str, peer: str) -> None:
        """``peer`` has met it."""
        BOUND_REACHED.labels(bound).inc()
        if (more := self._tellings[bound].due()) is not None:
            remedy = self._remedies[bound]
            log.warning(self._event, bound=str(bound), client=peer, remedy=remedy, **more)


class Door:
    """One per listening address, shared by its connections."""

    def __init__(self, settings: GatewaySettings, *, login_required: bool = False) -> None:
        """``login_required``: a connection shows itself by logging in, so that not even a Produce
        may be long before."""
        self._admissions: Admissions[Guest] = Admissions(
            AdmissionLimits(
                connections=settings.gateway_max_connections,
                per_address=settings.gateway_max_connections_per_address,
                young=settings.gateway_max_young_connections,
                rate_per_address=settings.gateway_connection_rate_per_address,
            )
        )
        self._first_request_s = settings.gateway_first_request_ms / 1000
        self._first_frame = settings.gateway_first_frame_max_bytes
        self._login_required = login_required
        self._deadlines: dict[Guest, asyncio.TimerHandle] = {}
        self._bounds = ReachedBounds("connection.bound_reached", _REMEDIES)
        self._closings = Telling(CLOSINGS_TOLD)
        self._shut = False

    def shut(self) -> None:
        """Let nobody in any more: a connection that was accepted before its address was let go of
        may only now be made, with TLS as late as its handshake ends."""
        self._shut = True

    def let_in(self, guest: Guest, host: str) -> bool:
        """Whether the new connection may stay; one that may not was turned away. Whoever may has
        to :meth:`leave`."""
        if self._shut:
            guest.turn_away("the gateway stops")
            return False
        loop = asyncio.get_running_loop()
        verdict = self._admissions.arrive(guest, address_of(host), loop.time())
        if verdict.reached is not None:
            self._bounds.tell(verdict.reached, guest.peer)
        if verdict.gives_way is not None:
            self._forget_deadline(verdict.gives_way)
            verdict.gives_way.turn_away("it had not shown itself, and others came")
        if not verdict.admitted:
            CONNECTIONS_REFUSED.inc()
            guest.turn_away(f"bound on connections: {verdict.reached}")
            return False
        if verdict.throttle_s > 0:
            guest.wait_unread()
        self._deadlines[guest] = loop.call_later(
            verdict.throttle_s or self._first_request_s, self._late, guest, verdict.throttle_s > 0
        )
        self._count()
        return True

    def show(self, guest: Guest) -> None:
        """It is a client: with its first complete, well-formed request, or once it has logged in.
        The bounds for strangers hold for it no longer."""
        self._forget_deadline(guest)
        self._admissions.show(guest)
        self._count()

    def leave(self, guest: Guest) -> None:
        """It has ended; harmless for one that was not let in, or has left."""
        self._forget_deadline(guest)
        self._admissions.leave(guest)
        self._count()

    def check_first(self, guest: Guest, size: int, head: bytes) -> str | None:
        """Why a frame of ``size`` bytes that begins with ``head`` (its API's key at least) is not
        taken from one that has not shown itself.

        Some clients (Sarama for brokers of before 2.4, librdkafka without
        ``api.version.request``) begin with what they have to send, and a Produce may be long."""
        if size <= self._first_frame:
            return None
        if not self._login_required and int.from_bytes(head[:2], "big") == PRODUCE:
            return None
        self._bounds.tell(Bound.FIRST_FRAME, guest.peer)
        return f"a first request of {size} bytes: {self._first_frame} are allowed"

    def tell_closed(self, about: Mapping[str, object], reason: str) -> None:
        """The log's line on a connection that the gateway closed, and on its request that was the
        reason."""
        if (more := self._closings.due()) is not None:
            log.info("connection closed", reason=reason, **{**about, **more})

    def _late(self, guest: Guest, throttled: bool) -> None:
        if throttled:
            guest.turn_away("its address connects too often")
            return
        self._bounds.tell(Bound.FIRST_REQUEST, guest.peer)
        missing = "has not logged in" if self._login_required else "sent no complete request"
        guest.turn_away(f"it {missing} within {self._first_request_s:g} s")

    def _forget_deadline(self, guest: Guest) -> None:
        if (deadline := self._deadlines.pop(guest, None)) is not None:
            deadline.cancel()

    def _count(self) -> None:
        CONNECTIONS_YOUNG.set(self._admissions.young)


def address_of(host: str) -> str:
    """What counts as one address: of IPv6 the network of 64 bits that one host usually has."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
