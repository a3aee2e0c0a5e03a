"""A standby of Postgres takes over, which lacks nothing or what was committed last.

What is modelled: connections end, and new ones are compared with what was seen and committed in
those before; calls under way have no outcome, the timeline grows by one, and nothing is committed
until everybody who was active has been heard of on the new one. Not modelled: the worker's beats.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from tideline.control_plane import ControlPlane
from tideline.domain.wal_footer import Footer, decode_tail
from tideline.errors import TidelineError
from tideline.object_store.listing import ObjectEntry
from tideline.worker import promotion

EVERY_S, GONE_AFTER_S = 1.0, 4.5
"""Between two looks, and from when on a gateway is looked for in the bucket: shorter, as runs
are."""


class Bucket:
    """What the check asks of the bucket. Everything in it is new."""

    bucket = prefix = ""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.store, self._objects = self, objects

    def list_objects(self, bucket: str, prefix: str) -> Iterator[ObjectEntry]:
        now = datetime.fromtimestamp(time.time(), UTC)
        for key, body in list(self._objects.items()):
            yield ObjectEntry(key, len(body), now)

    def endings(self, entries: Iterable[ObjectEntry]) -> Iterator[tuple[ObjectEntry, Footer]]:
        for entry in entries:
            yield entry, decode_tail(self._objects[entry.key], entry.size)


class Promotions(promotion.PromotionCheck):
    """The worker's look for gateways that stay away, over the bucket of the run."""

    def __init__(self, plane: ControlPlane, objects: Mapping[str, bytes]) -> None:
        self._plane, self._clock = plane, time.monotonic
        self._reader, self._waits_since = Bucket(objects), {}  # type: ignore[assignment]

    async def keep(self) -> None:
        while True:
            with suppress(TidelineError):  # a history that is halted shows in what comes of it
                await self.look()
            await asyncio.sleep(EVERY_S)
