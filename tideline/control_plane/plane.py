"""The adapter to Postgres, the only authority on B0."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from tideline.control_plane.boundary import Boundary
from tideline.control_plane.data_path import DataPath
from tideline.control_plane.gateways import Gateways
from tideline.control_plane.housekeeping import Housekeeping
from tideline.control_plane.listener import listen
from tideline.control_plane.pool import Pool
from tideline.control_plane.steering import Steering
from tideline.control_plane.tracking import Tracking
from tideline.settings import ControlPlaneSettings

CONTROL_CHANNEL = "tideline_control"
"""``topic:<name>`` or ``log:<topic_id>:<partition>``: read it again."""
ACKS_CHANNEL = "tideline_acks"
"""``tracking:<name>`` or ``quiesce:<topic_id>:<partition>:<generation>``."""
REQUESTS_CHANNEL = "tideline_requests"
"""Name of a topic whose migration was requested."""


class ControlPlane(Gateways, Tracking, Boundary, Steering, DataPath, Housekeeping):
    """Every operation of the control plane.

    Each raises ``ControlPlaneUnavailable`` when Postgres cannot be reached in time, and a typed
    refusal of :mod:`tideline.control_plane.errors` when a rule forbids it. All are idempotent, so
    an operation whose outcome is unknown may be repeated.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def listen(
        self, channels: Sequence[str], on_listening: Callable[[], None] | None = None
    ) -> AsyncIterator[tuple[str, str]]:
        """(channel, payload) of every notification, on a dedicated connection.

        ``on_listening`` is called once nothing can be missed any more: read the state after it.
        Raises ``ControlPlaneUnavailable`` when the connection breaks; then listen and read anew.
        """
        return listen(self._pool.conninfo, channels, on_listening)


@asynccontextmanager
async def connect(
    settings: ControlPlaneSettings, *, application_name: str
) -> AsyncIterator[ControlPlane]:
    """The control plane at ``settings``. Does not fail while Postgres is down: the operations do,
    until it answers.
    """
    pool = Pool(settings, application_name)
    await pool.open()
    try:
        yield ControlPlane(pool)
    finally:
        await pool.close()
