"""The address that clients connect to, which is the gateway's also while it takes nobody.

Between its times of listening it is held by a socket that is bound and does not listen: the kernel
refuses connections to it, and gives it to no connection that leaves this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

import structlog

from tideline.gateway.metrics import LISTENING

BACKLOG = 512

log = structlog.get_logger()


class Listener:
    """Accepts connections, or refuses them."""

    def __init__(self, host: str, port: int, accept: Callable[[], asyncio.BaseProtocol]) -> None:
        self._host, self._port = host, port
        self._accept = accept
        self._sockets: list[socket.socket] = []
        """Bound ones, which do not listen."""
        self._servers: list[asyncio.Server] = []
        self._closed = False

    @property
    def address(self) -> tuple[str, int]:
        """Where clients connect to, listening or not."""
        return self._host, self._port

    @property
    def listening(self) -> bool:
        return bool(self._servers)

    async def bind(self) -> None:
        """Take the address and refuse connections to it. Raises ``OSError`` if it is taken."""
        found = await asyncio.get_running_loop().getaddrinfo(
            self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        self._sockets = [
            _bound(family, address) for family, _, _, _, address in dict.fromkeys(found)
        ]
        if self._port == 0:
            self._port = self._sockets[0].getsockname()[1]

    async def listen(self) -> None:
        """Accept connections from now on. Raises ``OSError`` if the address was lost."""
        if not self._sockets:
            await self.bind()
        sockets, self._sockets = self._sockets, []
        for bound in sockets:
            server = await asyncio.get_running_loop().create_server(
                self._accept, sock=bound, backlog=BACKLOG
            )
            self._servers.append(server)
        if self._closed:
            self.close()
            return
        LISTENING.set(1)
        log.info("gateway listens", address="{}:{}".format(*self.address))

    def refuse(self) -> None:
        """Refuse connections from now on; those that were accepted stay."""
        addresses = [
            (held.family, held.getsockname()) for server in self._servers for held in server.sockets
        ]
        self._stop_listening()
        with contextlib.suppress(OSError):  # then listen() takes it again, or says who has it
            self._sockets = [_bound(family, address) for family, address in addresses]
        log.warning("gateway refuses connections", address="{}:{}".format(*self.address))

    def close(self) -> None:
        """Let go of the address, for good."""
        self._closed = True
        self._stop_listening()
        for bound in self._sockets:
            bound.close()
        self._sockets = []

    def _stop_listening(self) -> None:
        for server in self._servers:
            server.close()
        self._servers = []
        LISTENING.set(0)


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.setblocking(False)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
