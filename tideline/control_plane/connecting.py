"""The one way in which a process opens the control plane: with its catalog."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from tideline.control_plane.catalog_writer import writer_of
from tideline.control_plane.cataloged import CatalogedControlPlane
from tideline.control_plane.plane import ControlPlane
from tideline.control_plane.pool import Lanes, Pool
from tideline.control_plane.postgres import PostgresControlPlane
from tideline.domain.history import HistoryWatch
from tideline.object_store.client import GATEWAY, WORKER
from tideline.settings import ControlPlaneSettings, ObjectStoreSettings


@asynccontextmanager
async def connect(
    settings: ControlPlaneSettings,
    *,
    application_name: str,
    in_lanes: bool = False,
    history: HistoryWatch | None = None,
    at_once: bool = False,
) -> AsyncIterator[ControlPlane]:
    """The control plane at ``settings``. Does not fail while Postgres is down: the operations do,
    until it answers. ``in_lanes``: lease, commits, confirmations and reads have connections of
    their own, as a gateway needs it. ``history``: every connection is compared with what it has
    seen, and calls raise :class:`tideline.domain.history.WrongHistory` while none agrees.

    ``at_once``: what writes the catalog is made now, as it is to be where producers wait for the
    first record.

    The settings of every process have an object store, and its catalog is kept with each call that
    creates a fact. Without one the calls are Postgres' alone.
    """
    pool = (Lanes if in_lanes else Pool)(settings, application_name, history=history)
    await pool.open()
    try:
        plane: ControlPlane = PostgresControlPlane(pool)  # type: ignore[abstract]  # see `call`
        if isinstance(settings, ObjectStoreSettings):
            bounds = GATEWAY if in_lanes else WORKER
            writer = await asyncio.to_thread(writer_of, settings, bounds, at_once=at_once)
            plane = cast(ControlPlane, CatalogedControlPlane(plane, writer))
        yield plane
    finally:
        await pool.close()
