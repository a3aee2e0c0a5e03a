"""TLS handshakes under way: bounded in number, for each address and in all, in rate and in time.

A handshake costs a place and the most CPU that a stranger can make a gateway spend, before the door
(:mod:`tideline.gateway.transport.admission`) sees a connection. Who is shaking hands is a stranger
by the rule of :mod:`tideline.domain.admission`, in books of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from tideline.background import spawn
from tideline.domain.admission import AdmissionLimits, Admissions, Bound
from tideline.gateway.metrics import CONNECTIONS_REFUSED, HANDSHAKES
from tideline.gateway.transport.admission import ReachedBounds, address_of
from tideline.kafka.framing import FrameProtocol
from tideline.settings import GatewaySettings

HANDSHAKE_S = 10.0
"""A client that has not ended its TLS handshake by then is disconnected."""
SHUTDOWN_S = 5.0
"""The same, of taking leave."""
PLACES = "handshakes"
"""Label of ``inkless_gateway_bound_reached`` for the places of all."""
_REMEDIES: Mapping[str, str] = {
    PLACES: "raise TIDELINE_GATEWAY_MAX_CONNECTIONS if so many clients connect at once",
    Bound.ADDRESS: "raise TIDELINE_GATEWAY_MAX_CONNECTIONS_PER_ADDRESS if many clients share it",
    Bound.RATE: "raise TIDELINE_GATEWAY_CONNECTION_RATE_PER_ADDRESS if many clients share it",
}

log = structlog.get_logger()


class Shakes(Protocol):
    """What shakes hands with a client by its socket, without the event loop's transports."""

    async def shake(
        self, accepted: socket.socket, address: tuple[object, ...], within_s: float
    ) -> None:
        """Return once that is done; then the client is served. Raises ``OSError`` if it fails. The
        socket is its own from the first step on."""

    def turn_away(self, reason: str) -> None:
        """End it at once."""


class _Guest:
    """A socket whose peer has not shaken hands yet."""

    def __init__(self, accepted: socket.socket, host: str, port: int) -> None:
        self.socket = accepted
        self.peer = f"{host}:{port}"
        self.shaken: Shakes | None = None
        """Whose its socket is, if the event loop does not shake hands with it."""

    def turn_away(self) -> None:
        """Whoever waits for the end of the handshake hears that its peer has gone."""
        if self.shaken is not None:
            self.shaken.turn_away("others came, and it had not shaken hands")
            return
        with contextlib.suppress(OSError):  # it has gone
            self.socket.shutdown(socket.SHUT_RDWR)


class Handshakes:
    """The books of one gateway, over all addresses at which it listens."""

    def __init__(self, settings: GatewaySettings) -> None:
        """There are as many places as there may be connections, and an address has as many as it
        may have connections. When all are taken the oldest handshake of the address that has most
        gives way."""
        places = settings.gateway_max_connections
        self._admissions: Admissions[_Guest] = Admissions(
            AdmissionLimits(
                connections=places + 1,  # the places are what bounds
                per_address=settings.gateway_max_connections_per_address,
                young=places,
                rate_per_address=settings.gateway_connection_rate_per_address,
            )
        )
        self._bounds = ReachedBounds("handshake.bound_reached", _REMEDIES)

    def __len__(self) -> int:
        return len(self._admissions)

    def begin(
        self,
        accepted: socket.socket,
        address: tuple[object, ...],
        tls: ssl.SSLContext,
        served_by: Callable[[], FrameProtocol | Shakes],
    ) -> None:
        """Shake hands with ``accepted``, or close it: at once, or, beyond the rate of its address,
        unread within a second. ``served_by`` makes what hears of the connection afterwards."""
        loop = asyncio.get_running_loop()
        host, port = str(address[0]), int(str(address[1]))
        guest = _Guest(accepted, host, port)
        verdict = self._admissions.arrive(guest, address_of(host), loop.time())
        if verdict.reached is not None:
            young = verdict.reached is Bound.YOUNG
            self._bounds.tell(PLACES if young else verdict.reached, guest.peer)
        if verdict.gives_way is not None:
            verdict.gives_way.turn_away()
        if not verdict.admitted:
            CONNECTIONS_REFUSED.inc()
            accepted.close()
        elif verdict.throttle_s > 0:
            spawn(self._close_after(verdict.throttle_s, guest), "handshake-throttled")
        else:
            spawn(self._shake(guest, address, tls, served_by), "handshake")
        HANDSHAKES.set(len(self))

    async def _shake(
        self,
        guest: _Guest,
        address: tuple[object, ...],
        tls: ssl.SSLContext,
        served_by: Callable[[], FrameProtocol | Shakes],
    ) -> None:
        served = served_by()
        try:
            if not isinstance(served, FrameProtocol):
                guest.shaken = served
                await served.shake(guest.socket, address, HANDSHAKE_S)
                return
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: served,
                guest.socket,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError as error:  # of TLS, too, and of its time
            log.debug("handshake failed", client=guest.peer, reason=str(error))
        finally:
            self._leave(guest)

    async def _close_after(self, seconds: float, guest: _Guest) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            guest.socket.close()
            self._leave(guest)

    def _leave(self, guest: _Guest) -> None:
        self._admissions.leave(guest)
        HANDSHAKES.set(len(self))
