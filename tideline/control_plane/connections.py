"""The sum of connections to Postgres, looked at when a gateway or a worker starts."""

from __future__ import annotations

import structlog

from tideline.control_plane.plane import ControlPlane
from tideline.control_plane.pool import LANE_SIZES
from tideline.domain.connections import ConnectionRoom, Wants, refusal, shortages
from tideline.errors import RefusedError
from tideline.settings import ControlPlaneSettings

LISTENS = 1
WORKER_BESIDE_POOL = 5
"""Two that listen, for acknowledgements and for requests, and one each for the gauges of coverage,
tiering and collection."""
RETIRED = "retired"


def gateways(count: int = 1) -> Wants:
    """Of a gateway: each lane with one connection, or with all that it may have."""
    least, most = len(LANE_SIZES) + LISTENS, sum(LANE_SIZES.values()) + LISTENS
    return Wants("gateway", least, most, count, shares_role=False)


def workers(settings: ControlPlaneSettings, count: int = 1) -> Wants:
    return Wants("worker", 2, settings.postgres_pool_size + WORKER_BESIDE_POOL, count)


async def missing_connections(
    plane: ControlPlane, settings: ControlPlaneSettings, room: ConnectionRoom, *, is_gateway: bool
) -> tuple[str | None, list[str]]:
    """Of ``room``: why a process of this kind alone cannot have what it needs, if so; and what is
    too small for the gateways that are registered and for the workers and tasks that the settings
    state. Raises ``ControlPlaneUnavailable``."""
    registered = [g for g in await plane.list_gateways() if g.status != RETIRED]
    fleet = gateways(max(len(registered), 1))
    staff = workers(settings, settings.postgres_workers)
    tasks = Wants("task", 1, 1, settings.postgres_tasks)
    own, others = (fleet, [staff, tasks]) if is_gateway else (staff, [fleet, tasks])
    return refusal(room, own), list(shortages(room, own, others))


async def check_connections(
    plane: ControlPlane, settings: ControlPlaneSettings, *, is_gateway: bool
) -> None:
    """Log what :func:`missing_connections` finds too small.

    Raises :class:`RefusedError` when this process alone cannot have what it needs, and
    ``ControlPlaneUnavailable``.
    """
    room = await plane.connection_room()
    refused, short = await missing_connections(plane, settings, room, is_gateway=is_gateway)
    if refused is not None:
        raise RefusedError(refused)
    for why in short:
        structlog.get_logger().warning("connections_are_short", why=why)
