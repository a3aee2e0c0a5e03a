"""How many connections to one broker are opened at a time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tideline.gateway.transport.broker import Address

AT_ONCE = 32
"""Kafka's default for those that it has not accepted yet is 50 (``socket.listen.backlog.size``,
KIP-764). The kernel drops one beyond, and tries again a second later: of a hundred clients that
come back at once half would wait for that."""
ACCEPTED_S = 0.01
"""So long one that is open counts as not accepted: nothing tells when it is."""


class Dialling:
    """Bounds the connections that are being opened, by the address of their broker."""

    def __init__(self) -> None:
        self._places: dict[Address, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(AT_ONCE)
        )

    @asynccontextmanager
    async def turn(self, address: Address) -> AsyncIterator[None]:
        """Around the opening of one; it waits for its place."""
        places = self._places[address]
        await places.acquire()
        try:
            yield
        except BaseException:
            places.release()
            raise
        asyncio.get_running_loop().call_later(ACCEPTED_S, places.release)
