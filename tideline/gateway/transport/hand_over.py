"""Ending connections so that their clients notice nothing but that they have to connect anew."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tideline.gateway.transport.serving import ServedConnection

LOOK_S = 0.01
GONE_S = 1.0
"""How long a client may take to end its side of a connection whose other side has ended."""


async def hand_over(connections: Iterable[ServedConnection], patience_s: float, reason: str) -> int:
    """Take no further request of these connections, and end each at a moment when nothing is owed
    to its client, and its broker has served what needs no answer; what is owed something for longer
    than ``patience_s`` is closed without. Returns of how many that is so."""
    open_ = [connection for connection in connections if not connection.has_ended]
    handed_over = list(open_)
    for connection in open_:
        connection.drain()
    loop = asyncio.get_running_loop()
    until = loop.time() + patience_s
    served: dict[ServedConnection, asyncio.Future[None]] = {}
    while open_ and loop.time() < until:
        for connection in open_:
            if not connection.is_idle:
                served.pop(connection, None)
            elif connection not in served:
                served[connection] = asyncio.ensure_future(connection.drain_barrier())
            if (barrier := served.get(connection)) is not None and barrier.done():
                connection.hand_over(reason)
        open_ = [c for c in open_ if not c.has_ended]
        if open_:
            await asyncio.sleep(LOOK_S)
    for connection in open_:
        connection.close(reason)
    if handed_over:
        await asyncio.wait([connection.gone for connection in handed_over], timeout=GONE_S)
    return len(open_)
