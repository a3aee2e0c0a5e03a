"""Which gateways renew their leases: read again and again, because one reading tells nothing of
life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from tideline.control_plane.model import GatewayRegistration
from tideline.control_plane.plane import ControlPlane
from tideline.domain.preflight import GatewayHealth
from tideline.domain.quiescence import LeaseReading, LeaseWatch
from tideline.errors import UnreachableError

LEASE_POLL_S = 0.5
LEASE_LOOK_S = 0.1


def _nobody_waits() -> None:
    """For a caller that need not be told that the look goes on."""


class LeaseObserver:
    """Reads every gateway's renewal counter, on ``clock_ms``, which is suspend-proof."""

    def __init__(self, control_plane: ControlPlane, clock_ms: Callable[[], float]) -> None:
        self._control_plane = control_plane
        self._clock_ms = clock_ms
        self.watch = LeaseWatch()

    async def run(self) -> None:
        """Poll until cancelled: a gateway that died before a quiesce needs no second wait in it."""
        while True:
            with suppress(UnreachableError):
                await self.read()
            await asyncio.sleep(LEASE_POLL_S)

    async def read(self) -> list[GatewayRegistration]:
        """One reading of all gateways, taken into the watch."""
        sent = self._clock_ms()
        gateways = await self._control_plane.list_gateways()
        received = self._clock_ms()
        self.watch.observe((reading(g) for g in gateways), sent_ms=sent, received_ms=received)
        return gateways

    async def watched(self, alive: Callable[[], None] = _nobody_waits) -> list[GatewayRegistration]:
        """The registrations, once each active gateway has renewed its lease or let it lapse;
        ``alive`` is called between the readings.

        A process that has just started has no reading to compare with.
        """
        gateways = await self.read()
        first = {g.incarnation: g.renewals for g in gateways}
        # Twice the longest lease: one that registers again and again is not waited for, either.
        ends = self._clock_ms() + 2 * max((g.lease_ms for g in gateways), default=0)
        while True:
            gateways = await self.read()
            now = self._clock_ms()
            undecided = [
                g
                for g in gateways
                if g.status == "active"
                and first.setdefault(g.incarnation, g.renewals) == g.renewals
                and self._silent_ms(g, now) <= g.lease_ms
            ]
            if not undecided or now > ends:
                return gateways
            alive()
            await asyncio.sleep(LEASE_LOOK_S)

    def health(self, gateways: Sequence[GatewayRegistration]) -> tuple[GatewayHealth, ...]:
        """As the preflight judges them."""
        now = self._clock_ms()
        return tuple(
            GatewayHealth(
                gateway_id=g.gateway_id,
                status=g.status,
                version=g.version,
                silent_ms=self._silent_ms(g, now),
                lease_ms=g.lease_ms,
                address=g.address,
            )
            for g in gateways
        )

    def _silent_ms(self, gateway: GatewayRegistration, now: float) -> float:
        return self.watch.silent_ms(gateway.incarnation, gateway.renewals, sent_ms=now)


def reading(gateway: GatewayRegistration) -> LeaseReading:
    """A registration as the lease watch wants it."""
    return LeaseReading(gateway.gateway_id, gateway.incarnation, gateway.renewals, gateway.lease_ms)
