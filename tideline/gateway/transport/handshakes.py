"""TLS handshakes under way: bounded in number, for each address and in all, in rate and in time.

A handshake costs a place and the most CPU that a stranger can make a gateway spend, before the door
(:mod:`tideline.gateway.transport.admission`) sees a connection. Who is shaking hands is a stranger
by the rule of :mod:`tideline.domain.admission`, in books of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from tideline.background import spawn
from tideline.domain.admission import AdmissionLimits, Admissions, Bound
from tideline.gateway.metrics import CONNECTIONS_REFUSED, HANDSHAKES
from tideline.gateway.transport.admission import ReachedBounds, address_of
from tideline.gateway.transport.serving import ServedConnection
from tideline.settings import GatewaySettings

HANDSHAKE_S = 10.0
"""A client that has not ended its TLS handshake by then is disconnected."""
PLACES = "handshakes"
"""Label of ``inkless_gateway_bound_reached`` for the places of all."""
_REMEDIES: Mapping[str, str] = {
    PLACES: "raise TIDELINE_GATEWAY_MAX_CONNECTIONS if so many clients connect at once",
    Bound.ADDRESS: "raise TIDELINE_GATEWAY_MAX_CONNECTIONS_PER_ADDRESS if many clients share it",
    Bound.RATE: "raise TIDELINE_GATEWAY_CONNECTION_RATE_PER_ADDRESS if many clients share it",
}

log = structlog.get_logger()


class _Guest:
    """A socket whose peer has not shaken hands yet."""

    def __init__(self, accepted: socket.socket, host: str, port: int) -> None:
        self.socket = accepted
        self.peer = f"{host}:{port}"
        self.served: ServedConnection | None = None
        """Whose its socket is, from the first step of the handshake on."""

    def turn_away(self) -> None:
        if self.served is not None:
            self.served.turn_away("others came, and it had not shaken hands")
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
        address: tuple[Any, ...],
        served_by: Callable[[], ServedConnection],
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
            spawn(self._shake(guest, address, served_by()), "handshake")
        HANDSHAKES.set(len(self))

    async def _shake(
        self, guest: _Guest, address: tuple[Any, ...], served: ServedConnection
    ) -> None:
        guest.served = served
        try:
            await served.shake(guest.socket, address, HANDSHAKE_S)
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
