"""Tells the other gateways whether this one accepts connections, so that they stand in for it while
it does not, and not any more when it is back.

Nothing that is fenced goes by it: a gateway that has said that it does not serve still holds its
lease, and every barrier waits for it, until it has nothing left that could append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

import structlog

from tideline.background import cancel_and_wait, keep
from tideline.domain.stand_in import stand_in_for
from tideline.errors import TidelineError
from tideline.gateway.tracking.lease import Lease
from tideline.gateway.tracking.peers import Peers

log = structlog.get_logger()
LOOK_S = 0.2
TELL_PATIENCE_S = 2.0
HEARD_MARGIN_S = 0.5
"""After everybody has begun to read the registry anew: that the answer is there."""


class Presence:
    """This gateway in the registry. Made before it registers: until it serves it does not."""

    def __init__(self, lease: Lease, peers: Peers, node: int) -> None:
        self._lease, self._peers, self._node = lease, peers, node
        self._told: tuple[UUID, bool] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        lease.serving = False
        lease.served.add(peers.own_changed)

    def follow(self, listening: Callable[[], bool]) -> None:
        """From now on the registry says what ``listening`` does."""
        self._tasks.append(keep(self._follow(listening), "presence"))

    async def _follow(self, listening: Callable[[], bool]) -> None:
        while True:
            wanted = (self._lease.incarnation, listening())
            if wanted != self._told:
                try:
                    if await self._lease.tell_serving(wanted[1]):
                        self._told = wanted
                except TidelineError as error:
                    log.warning("presence.not_told", serving=wanted[1], error=str(error))
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        """Say nothing more."""
        await cancel_and_wait(*self._tasks)

    async def leave(self) -> None:
        """This gateway will stop. Returns when the others have had the time to stand in for it; at
        once if none would, or if the registry does not hear of it."""
        await self.close()
        try:
            async with asyncio.timeout(TELL_PATIENCE_S):
                told = await self._lease.tell_serving(False)
        except (TidelineError, TimeoutError) as error:
            log.warning("presence.not_told", serving=False, error=str(error))
            return
        fleet = self._peers.fleet
        if told and stand_in_for(self._node, fleet, fleet.keys(), None) is not None:
            await asyncio.sleep(self._peers.poll_s + HEARD_MARGIN_S)
