"""Gateways: incarnations, leases and fences (architecture "Fencing 4")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tideline.control_plane.model import GatewayRegistration
from tideline.control_plane.pool import Pool


def registration(row: Mapping[str, Any]) -> GatewayRegistration:
    """A row that begins with the columns of ``gateways``."""
    return GatewayRegistration(
        gateway_id=row["gateway_id"],
        broker_id=row["broker_id"],
        incarnation=row["incarnation"],
        status=row["status"],
        renewals=row["renewals"],
        lease_ms=row["lease_ms"],
        address=row["address"],
        version=row["version"],
        registered_at=row["registered_at"],
    )


class Gateways:
    """Part of :class:`tideline.control_plane.ControlPlane`."""

    _pool: Pool

    async def register_gateway(
        self,
        gateway_id: int,
        broker_id: int,
        incarnation: UUID,
        address: str,
        version: str,
        lease_ms: int,
    ) -> None:
        """Register this process. An older incarnation of the id is fenced for ever.

        Load the tracked topics only after this has returned, and serve only after that: whoever
        counts gateways at a barrier then either sees this one or has been seen by it.
        Raises ``GatewayRetired`` for a retired id, ``GatewayFenced`` for an ended incarnation.
        """
        await self._pool.fetch(
            "SELECT tideline.register_gateway(%s, %s, %s, %s, %s, %s)",
            gateway_id, broker_id, incarnation, address, version, lease_ms,
        )  # fmt: skip

    async def renew_lease(self, gateway_id: int, incarnation: UUID) -> int:
        """Count one renewal and return the counter. Not retried: the caller times its validity
        from before the call. Raises ``GatewayFenced``.
        """
        rows = await self._pool.fetch(
            "SELECT tideline.renew_lease(%s, %s) AS renewals", gateway_id, incarnation, retry=False
        )
        return int(rows[0]["renewals"])

    async def list_gateways(self) -> list[GatewayRegistration]:
        """Every gateway ever registered, by id, retired ones included."""
        return [registration(row) for row in await self._pool.fetch(
            "SELECT * FROM tideline.list_gateways()"
        )]  # fmt: skip

    async def fence_gateway(self, gateway_id: int, incarnation: UUID, reason: str) -> bool:
        """Fence the incarnation. False when a newer one has registered or it is retired."""
        rows = await self._pool.fetch(
            "SELECT tideline.fence_gateway(%s, %s, %s) AS fenced", gateway_id, incarnation, reason
        )
        return bool(rows[0]["fenced"])

    async def retire_gateway(self, gateway_id: int, attested_by: str) -> None:
        """Strike the id off every barrier: ``attested_by`` made sure that it is cut off.

        Raises ``UnknownGateway``.
        """
        await self._pool.fetch("SELECT tideline.retire_gateway(%s, %s)", gateway_id, attested_by)

    async def identity(self) -> tuple[str, int]:
        """System identifier and timeline: another pair means another history (schedule 16)."""
        rows = await self._pool.fetch("SELECT * FROM tideline.server_identity()")
        return str(rows[0]["system_identifier"]), int(rows[0]["timeline"])
