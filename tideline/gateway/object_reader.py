"""Ranges of objects, from memory or by a GET: what WAL batches and merged segments are read with.

Objects never change, so a range that was read once is right for ever. One GET per range runs at a
time, however many consumers want it, and cold segments never take the slots of the WAL's tail.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tideline.gateway.cache import ObjectCache
from tideline.object_store import ObjectStore

MAX_GET = 8 * 1024 * 1024
"""bytes; one GET asks for more only when one batch is larger."""
PARALLEL_GETS = 8
"""Of WAL objects."""
PARALLEL_SEGMENT_GETS = 4


@dataclass(frozen=True, slots=True)
class Span:
    """``[start, end)`` of one object. ``tiered``: it lies in the bucket of the segments."""

    key: str
    start: int
    end: int
    tiered: bool = False


class ObjectReader:
    """Raises ``ObjectMissing``, ``ObjectStoreUnavailable`` or ``ObjectStoreRefused``."""

    def __init__(self, store: ObjectStore, cache: ObjectCache) -> None:
        self._store = store
        self._cache = cache
        self._slots = {
            False: asyncio.Semaphore(PARALLEL_GETS),
            True: asyncio.Semaphore(PARALLEL_SEGMENT_GETS),
        }
        self._under_way: dict[Span, asyncio.Task[bytes]] = {}

    def cached(self, span: Span) -> memoryview | None:
        """The whole of ``span``, if one piece in memory holds it."""
        return self._cache.get(_name(span.key, span.tiered), span.start, span.end - span.start)

    async def whole(self, span: Span) -> memoryview:
        """The whole of ``span``, from memory or by a GET."""
        if span.start == span.end:
            return memoryview(b"")
        cached = self.cached(span)
        return cached if cached is not None else memoryview(await self.get(span))

    async def at_least(self, span: Span, size: int) -> memoryview:
        """What memory holds from ``span.start`` on if that is ``size`` bytes or more, else all of
        ``span`` by a GET."""
        cached = self._cache.rest(_name(span.key, span.tiered), span.start)
        if cached is not None and len(cached) >= size:
            return cached
        return memoryview(await self.get(span))

    async def get(self, span: Span) -> bytes:
        """``span`` by a GET, which others that want the same share."""
        task = self._under_way.get(span)
        if task is None:
            task = asyncio.create_task(self._fetch(span), name="suffix-get")
            self._under_way[span] = task
            task.add_done_callback(lambda done: self._done(span, done))
        return await asyncio.shield(task)

    def _done(self, span: Span, task: asyncio.Task[bytes]) -> None:
        self._under_way.pop(span, None)
        if not task.cancelled():
            task.exception()  # those who waited may have given up: then nobody else asks for it

    async def _fetch(self, span: Span) -> bytes:
        async with self._slots[span.tiered]:
            size = span.end - span.start
            body = await self._store.get(span.key, span.start, size, tiered=span.tiered)
        self._cache.put(_name(span.key, span.tiered), span.start, body)
        return body


def _name(key: str, tiered: bool) -> str:
    """Of the object in the cache: two buckets may hold the same key."""
    return f"tiered:{key}" if tiered else key
