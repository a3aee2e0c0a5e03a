"""A gateway process's incarnation and its lease on tracked topics.

What always holds: the lease is counted from before the renewal was sent, on a clock that runs on
while the machine is suspended, so it ends here no later than a waiter can see it end in Postgres
(schedules 1 and 15; architecture "Fencing 4").
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from uuid import uuid4

import structlog

from tideline.control_plane import ControlPlane
from tideline.control_plane.errors import GatewayFenced
from tideline.errors import TidelineError
from tideline.gateway.listeners import Listeners
from tideline.gateway.metrics import LEASE_FENCED, LEASE_RENEWALS, LEASE_VALID

log = structlog.get_logger()
Clock = Callable[[], float]
BeforeServing = Callable[[], Awaitable[None]]
"""What a new incarnation has to learn before anything is served under it."""


def boot_clock() -> float:
    """Seconds since boot, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """Registers, renews, and says whether it is valid now."""

    def __init__(
        self,
        control_plane: ControlPlane,
        *,
        gateway_id: int,
        broker_id: int,
        address: str,
        version: str,
        duration_ms: int,
        clock: Clock = boot_clock,
    ) -> None:
        self._control_plane = control_plane
        self.gateway_id = gateway_id
        self._broker_id = broker_id
        self._address = address
        self._version = version
        self._duration_ms = duration_ms
        self._clock = clock
        self._valid_until = float("-inf")
        self._registered = False
        self.incarnation = uuid4()
        self.gained: Listeners[[]] = Listeners()
        """Called whenever the lease becomes valid after it was not."""
        self.fenced: Listeners[[]] = Listeners()
        """Called when the incarnation is over, before another one registers: whoever has
        something pending drops it."""
        LEASE_VALID.set_function(lambda: float(self.valid()))

    def valid(self) -> bool:
        """Whether nobody can have fenced this incarnation yet."""
        return self._clock() < self._valid_until

    @property
    def registered(self) -> bool:
        return self._registered

    async def renew(self, before_serving: BeforeServing | None = None) -> None:
        """Register or renew once; a new incarnation awaits ``before_serving`` before it counts as
        registered. Raises what that raises, and ``ControlPlaneUnavailable``; being fenced is
        handled here, a retired gateway id raises ``GatewayRetired``."""
        was_valid = self.valid()
        sent = self._clock()
        if not self._registered:
            incarnation = self.incarnation
            await self._control_plane.register_gateway(
                self.gateway_id,
                broker_id=self._broker_id,
                incarnation=incarnation,
                address=self._address,
                version=self._version,
                lease_ms=self._duration_ms,
            )
            if before_serving is not None:
                await before_serving()
            self._registered = True
        else:
            try:
                await self._control_plane.renew_lease(self.gateway_id, self.incarnation)
            except GatewayFenced as error:
                self.end_incarnation(str(error))
                return
        LEASE_RENEWALS.inc()
        self._valid_until = sent + self._duration_ms / 1000
        if not was_valid and self.valid():
            self.gained()

    def end_incarnation(self, reason: str) -> None:
        """Postgres has fenced this one: drop what is pending, then live on as another one."""
        log.warning("lease.fenced", incarnation=str(self.incarnation), reason=reason)
        LEASE_FENCED.inc()
        self._valid_until = float("-inf")
        self._registered = False
        self.incarnation = uuid4()
        self.fenced()

    async def keep(self, before_serving: BeforeServing) -> None:
        """:meth:`renew` every third of the duration, for ever; sooner after a failure."""
        pause = self._duration_ms / 3000
        while True:
            try:
                await self.renew(before_serving)
                delay = pause if self._registered else 0.05
            except TidelineError as error:
                log.warning("lease.not_renewed", valid=self.valid(), error=str(error))
                delay = pause / 4
            await asyncio.sleep(delay)
