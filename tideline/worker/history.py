"""Keeps the beats of Postgres' history, and tells the fleet how far it has come.

A beat every few seconds; every half minute, or as it is set, the newest one is put beside the owner
object, after what lies there was found in Postgres again, and the standbys are looked at. A worker
whose Postgres is not the one that was seen ends: started again it is refused with the reason until
an operator has decided.
"""

from __future__ import annotations

import asyncio

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from tideline.control_plane import ControlPlane
from tideline.domain.history import HistoryWatch, ServerIdentity, WrongHistory, disagreement
from tideline.errors import TidelineError
from tideline.object_store.client import ObjectStoreClient
from tideline.ownership import REMEDY, fleet_position, write_position
from tideline.settings import ObjectStoreSettings
from tideline.worker.promotion import PromotionCheck

EVERY_S = 5.0
log = structlog.get_logger()


class HistoryKeeper:
    """One per worker process; several of them write one history."""

    def __init__(
        self,
        plane: ControlPlane,
        store: ObjectStoreClient,
        settings: ObjectStoreSettings,
        history: HistoryWatch,
        registry: CollectorRegistry = REGISTRY,
        *,
        position_s: float,
    ) -> None:
        """``position_s``: so much lies between two positions at most, but for what hangs."""
        self.every_s = min(EVERY_S, position_s)
        self.beats_per_position = int(position_s // self.every_s)
        self._plane, self._store, self._settings = plane, store, settings
        self._history = history
        self._promotion = PromotionCheck(plane, store, settings)
        self._told = 0
        """Beats since the position was written."""
        self._timeline = Gauge(
            "tideline_postgres_timeline", "Timeline of Postgres: grows by promotions",
            registry=registry,
        )  # fmt: skip
        self._synchronous = Gauge(
            "tideline_postgres_failover_loses_nothing",
            "1: commits wait for every standby that is attached; 0: a promotion may lose some",
            registry=registry,
        )

    async def run(self) -> None:
        """Until cancelled. Raises :class:`WrongHistory`."""
        while True:
            try:
                await self.beat()
            except WrongHistory:
                raise
            except TidelineError as error:
                log.warning("history_not_kept", why=str(error))
            await asyncio.sleep(self.every_s)

    async def beat(self) -> None:
        """One beat, and the position when it is due."""
        before = self._history.seen
        await self._plane.beat_history()
        now = await self._plane.identity(before)
        if (why := self._history.judge(before, now)) is not None:
            raise WrongHistory(f"Postgres is not the one that was seen: {why}. {REMEDY}")
        await self._promotion.look()
        self._timeline.set(now.timeline)
        promoted = before is not None and now.timeline != before.timeline
        if promoted or self._told % self.beats_per_position == 0:
            durability = await self._plane.check_synchronous_commit()
            self._synchronous.set(bool(durability) and durability.waits_for_standby)
        self._told += 1
        if self._told >= self.beats_per_position:
            await self._tell(now)
            self._told = 0

    async def _tell(self, now: ServerIdentity) -> None:
        position = await asyncio.to_thread(fleet_position, self._store, self._settings)
        if position is not None:
            found = await self._plane.identity(position)
            if (why := disagreement(position, found)) is not None:
                raise WrongHistory(
                    f"Postgres is not the one that the fleet has seen: {why}. {REMEDY}"
                )
        await asyncio.to_thread(write_position, self._store, self._settings, now)
