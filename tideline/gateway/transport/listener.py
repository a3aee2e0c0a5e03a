"""The address that clients connect to, which is the gateway's also while it takes nobody.

Between its times of listening it is held by a socket that is bound and does not listen: the kernel
refuses connections to it, and nobody else can listen there. For that the socket does not allow the
address to be used again (``SO_REUSEADDR``) while it is held: of two that do, and do not listen yet,
both have it, and who listens first keeps it. (Linux before 6.8 lets others bind it all the same;
they find out when they listen.)
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import structlog

from tideline.gateway.metrics import LISTENING
from tideline.gateway.transport.acceptor import Acceptor
from tideline.gateway.transport.handshakes import Handshakes
from tideline.gateway.transport.serving import ServedConnection

BACKLOG = 512

log = structlog.get_logger()


class Listener:
    """Accepts connections, or refuses them."""

    def __init__(
        self,
        host: str,
        port: int,
        accept: Callable[[], ServedConnection],
        *,
        handshakes: Handshakes | None = None,
        name: str = "gateway",
        note: Callable[[float], None] = LISTENING.set,
    ) -> None:
        """``handshakes``: the books on them, if connections are encrypted. ``name`` is for the log;
        ``note`` hears 1 when it begins to listen and 0 when it ends."""
        self._host, self._port = host, port
        self._handshakes = handshakes
        self._accept = accept
        self._name, self._note = name, note
        self._sockets: list[socket.socket] = []
        """Bound ones, which do not listen."""
        self._servers: list[Acceptor] = []
        self._closed = False

    @property
    def address(self) -> tuple[str, int]:
        """Where clients connect to, listening or not."""
        return self._host, self._port

    @property
    def listening(self) -> bool:
        return bool(self._servers)

    @property
    def is_held(self) -> bool:
        """Whether the address is this one's, listening or not."""
        return bool(self._sockets or self._servers)

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
        """Accept connections from now on. Raises ``OSError`` if the address was lost; then it is
        let go of, and taken by the next call."""
        if not self._sockets:
            await self.bind()
        sockets, self._sockets = self._sockets, []
        begin = self._take if self._handshakes is None else self._shake_hands
        try:
            for bound in sockets:
                # What it accepts has it from it, and must not keep it from being held again.
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self._servers.append(Acceptor(bound, BACKLOG, begin))
        except OSError:
            self._stop_listening()
            for bound in sockets:
                bound.close()
            raise
        if self._closed:
            self.close()
            return
        self._note(1)
        log.info(f"{self._name} listens", address="{}:{}".format(*self.address))

    def _take(self, accepted: socket.socket, address: tuple[Any, ...]) -> None:
        self._accept().adopt(accepted, address)

    def _shake_hands(self, accepted: socket.socket, address: tuple[Any, ...]) -> None:
        assert self._handshakes is not None
        self._handshakes.begin(accepted, address, self._accept)

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


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.setblocking(False)
        bound.bind(address)  # also where connections of before are not quite over
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError:
        bound.close()
        raise
    return bound
