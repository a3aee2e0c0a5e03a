"""The address that clients connect to, which is the gateway's also while it takes nobody.

Between its times of listening it is held by a socket that is bound and does not listen: the kernel
refuses connections to it, and gives it to no connection that leaves this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable

import structlog

from tideline.gateway.metrics import CONNECTIONS_REFUSED, LISTENING
from tideline.kafka.framing import FrameProtocol

BACKLOG = 512
HANDSHAKE_S = 10.0
"""A client that has not ended its TLS handshake by then is disconnected."""
SHUTDOWN_S = 5.0
"""The same, of taking leave."""

log = structlog.get_logger()


class Listener:
    """Accepts connections, or refuses them."""

    def __init__(
        self,
        host: str,
        port: int,
        accept: Callable[[], FrameProtocol],
        *,
        tls: ssl.SSLContext | None = None,
        most_handshakes: int = BACKLOG,
        name: str = "gateway",
        note: Callable[[float], None] = LISTENING.set,
    ) -> None:
        """``most_handshakes``: of TLS, under way at once; beyond: closed at once. ``name`` is for
        the log; ``note`` hears 1 when it begins to listen and 0 when it ends."""
        self._host, self._port = host, port
        self._tls, self._most_handshakes = tls, most_handshakes
        self._begun: deque[tuple[float, FrameProtocol]] = deque()
        """With when they began: handshakes, and what was accepted since the oldest of them."""
        self._accept = accept
        self._name, self._note = name, note
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
            self._servers.append(await self._serve(bound))
        if self._closed:
            self.close()
            return
        self._note(1)
        log.info(f"{self._name} listens", address="{}:{}".format(*self.address))

    async def _serve(self, bound: socket.socket) -> asyncio.Server:
        encrypted = self._tls is not None
        return await asyncio.get_running_loop().create_server(
            self._accept if self._tls is None else self._accept_handshake,
            sock=bound,
            backlog=BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=HANDSHAKE_S if encrypted else None,
            ssl_shutdown_timeout=SHUTDOWN_S if encrypted else None,
        )

    def _accept_handshake(self) -> FrameProtocol:
        """asyncio tells nobody of a handshake that fails: it counts until its time is up. An
        exception here closes the connection."""
        now = asyncio.get_running_loop().time()
        while self._begun and self._is_over(*self._begun[0], now):
            self._begun.popleft()
        if len(self._begun) >= self._most_handshakes:
            self._begun = deque(each for each in self._begun if not self._is_over(*each, now))
        if len(self._begun) >= self._most_handshakes:
            CONNECTIONS_REFUSED.inc()
            raise ConnectionRefusedError(f"{self._most_handshakes} TLS handshakes are under way")
        accepted = self._accept()
        self._begun.append((now, accepted))
        return accepted

    @staticmethod
    def _is_over(began: float, accepted: FrameProtocol, now: float) -> bool:
        return accepted.transport is not None or began <= now - HANDSHAKE_S

    async def encrypt_with(self, tls: ssl.SSLContext) -> None:
        """Connections from now on are encrypted by ``tls``; those that there are stay as they are.
        Nobody is refused meanwhile: the listening socket stays open, and is served anew."""
        self._tls = tls
        for old in tuple(self._servers):
            new = [await self._serve(each) for each in _sockets_again(old)]
            if self._closed or old not in self._servers:  # it was told to stop meanwhile
                for server in new:
                    server.close()
                continue
            self._servers.remove(old)
            self._servers += new
            old.close()

    def refuse(self) -> None:
        """Refuse connections from now on; those that were accepted stay."""
        addresses = [
            (held.family, held.getsockname()) for server in self._servers for held in server.sockets
        ]
        self._stop_listening()
        with contextlib.suppress(OSError):  # then listen() takes it again, or says who has it
            self._sockets = [_bound(family, address) for family, address in addresses]
        log.warning(f"{self._name} refuses connections", address="{}:{}".format(*self.address))

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
        self._note(0)


def _sockets_again(server: asyncio.Server) -> list[socket.socket]:
    """Other handles of the sockets at which ``server`` listens."""
    again = [socket.socket(fileno=os.dup(each.fileno())) for each in server.sockets]
    for each in again:
        each.setblocking(False)
    return again


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
