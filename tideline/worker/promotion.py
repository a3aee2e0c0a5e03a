"""Looks into the bucket for gateways that stay away after a promotion of Postgres.

A gateway that lives shows by its next renewal that its last commit is on the new timeline. One that
was lost together with the primary shows nothing: then what it has put into the bucket is compared
with what is committed. An object that may have been acknowledged and is not committed halts the
history (schedule 16); whether it was is for an operator to find out (docs/restore.md).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import structlog

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import StoredObject, UnheardGateway
from tideline.domain.history import WrongHistory
from tideline.domain.wal_footer import Footer
from tideline.object_store.client import ObjectEntry, ObjectStoreClient
from tideline.ownership import places
from tideline.rebuild.reader import WAL, BucketReader
from tideline.settings import ObjectStoreSettings

GONE_AFTER_S = 30.0
"""Who has not renewed for so long, and for two of its leases, is looked for in the bucket: one that
lives connects anew within seconds, and what it had under way looks like a loss until it does."""
CLOCKS_DIFFER = timedelta(minutes=5)
"""Between Postgres and the object store, at most."""
ASKED_AT_ONCE = 1_000
UNKNOWN, BEHIND_ALL = UUID(int=0), 2**63 - 1
"""The stream of an object that does not say it, and a place in it."""
log = structlog.get_logger()


class PromotionCheck:
    """One per worker; several find the same."""

    def __init__(
        self,
        plane: ControlPlane,
        store: ObjectStoreClient,
        settings: ObjectStoreSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plane, self._clock = plane, clock
        place = places(settings)[0]
        self._reader = BucketReader(store, place.bucket, place.prefix)
        self._waits_since: dict[UUID, float] = {}

    async def look(self) -> None:
        """Raises :class:`WrongHistory` when commits are missing, and what Postgres and the store
        raise: then nothing is decided."""
        unheard = await self._plane.unheard_gateways()
        now = self._clock()
        self._waits_since = {
            g.incarnation: self._waits_since.get(g.incarnation, now) for g in unheard
        }
        if not unheard:
            return
        if any(now - self._waits_since[g.incarnation] < _patience_s(g) for g in unheard):
            log.warning(
                "promotion.waits_for_gateways",
                gateways=[f"{g.gateway_id} at {g.address}" for g in unheard],
                what="commits wait until each has renewed, or was looked for in the bucket",
            )
            return
        stored = await self._stored(unheard)
        why = await self._plane.settle_for_absent(
            unheard[0].timeline, [g.incarnation for g in unheard], stored
        )
        if why is not None:
            raise WrongHistory(why)
        log.warning(
            "promotion.lacks_nothing_of_absent_gateways",
            gateways=[f"{g.gateway_id} at {g.address}" for g in unheard],
            objects=len(stored),
        )

    async def _stored(self, unheard: Sequence[UnheardGateway]) -> list[StoredObject]:
        """Objects with batches that nobody has told to be given up: those under keys that are
        registered and not committed, and new ones under keys that only the lost primary knew."""
        owners = {key: g.incarnation for g in unheard for key in g.keys}
        since = datetime.fromtimestamp(min(g.beat_ms for g in unheard) / 1000, UTC) - CLOCKS_DIFFER
        listed = await asyncio.to_thread(self._listed, owners.keys(), since)
        wanted = [entry for entry in listed if entry.key in owners]
        others = [entry for entry in listed if entry.key not in owners]
        for begin in range(0, len(others), ASKED_AT_ONCE):
            some = others[begin : begin + ASKED_AT_ONCE]
            unknown = set(await self._plane.unknown_keys([entry.key for entry in some]))
            wanted += [entry for entry in some if entry.key in unknown]
        history = (await self._plane.identity()).history_id
        return await asyncio.to_thread(self._read, wanted, owners, history)

    def _listed(self, registered: Collection[str], since: datetime) -> list[ObjectEntry]:
        reader = self._reader
        return [
            entry
            for entry in reader.store.list_objects(reader.bucket, reader.prefix + WAL)
            if entry.key in registered or entry.last_modified >= since
        ]

    def _read(
        self, entries: Sequence[ObjectEntry], owners: Mapping[str, UUID], history: UUID
    ) -> list[StoredObject]:
        found: dict[str, StoredObject] = {}
        given_up: set[str] = set()
        for entry, ending in self._reader.endings(entries):
            if isinstance(ending, Footer):
                given_up |= {told.object_key for told in ending.earlier if told.is_given_up}
                if ending.batches and ending.history_id == history:
                    found[entry.key] = StoredObject(entry.key, ending.incarnation, ending.sequence)
            elif ending is not None:
                owner = owners.get(entry.key, UNKNOWN)
                found[entry.key] = StoredObject(entry.key, owner, BEHIND_ALL)
        return [one for key, one in found.items() if key not in given_up]


def _patience_s(gateway: UnheardGateway) -> float:
    return max(GONE_AFTER_S, 2 * gateway.lease_ms / 1000)
