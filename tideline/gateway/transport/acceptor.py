"""Takes connections from a listening socket, on any event loop, and goes on when that fails.

The loops' own servers tell neither the address of who comes nor that a handshake has failed, and
uvloop's closes its socket, without a word, when the process has no descriptor left for a
connection: no client would reach the gateway again before it is started anew.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import structlog

ACCEPT_AGAIN_S = 1.0
"""After the process had no descriptor or memory for another connection."""

log = structlog.get_logger()


class Acceptor:
    """What :class:`asyncio.Server` is, of one socket."""

    def __init__(self, listening: socket.socket, backlog: int, begin: Callable[..., None]) -> None:
        """``begin`` is given each socket that was accepted, and the address of its peer."""
        self.sockets: tuple[socket.socket, ...] = (listening,)
        self._backlog, self._begin = backlog, begin
        self._again: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        listening.listen(backlog)
        self._resume()

    def _resume(self) -> None:
        self._again = None
        for listening in self.sockets:
            asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(self._backlog):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error(
                    "connections cannot be accepted: raise the limit on open files, or free memory",
                    reason=str(error),
                )
                loop.remove_reader(listening.fileno())
                self._again = loop.call_later(ACCEPT_AGAIN_S, self._resume)
                return
            accepted.setblocking(False)
            self._begin(accepted, address)

    def close(self) -> None:
        """Accept nobody any more, and let go of the socket."""
        if self._again is not None:
            self._again.cancel()
        for listening in self.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
            listening.close()
        self.sockets = ()
