"""Ranges of objects, from memory or by a GET: what WAL batches and merged segments are read with.

Objects never change, so a range that was read once is right for ever. One GET per range runs at a
time, however many consumers want it, and cold segments never take the slots of the WAL's tail.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from tideline.gateway.metrics import CACHE_BYTES
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


class ObjectCache:
    """Pieces of objects in memory by object key, bounded by bytes, least recently used first out.

    A gateway's own WAL objects are inserted whole when they are committed: consumers that keep up
    do not read S3 at all.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pieces: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._starts: dict[str, list[int]] = {}
        self._bytes = 0

    @property
    def size(self) -> int:
        """bytes held"""
        return self._bytes

    def get(self, key: str, start: int, size: int) -> memoryview | None:
        """``[start, start + size)`` of an object, if one piece holds all of it."""
        for piece_start in self._starts.get(key, ()):
            piece = self._pieces[key, piece_start]
            if piece_start <= start and start + size <= piece_start + len(piece):
                self._pieces.move_to_end((key, piece_start))
                return memoryview(piece)[start - piece_start : start - piece_start + size]
        return None

    def rest(self, key: str, start: int) -> memoryview | None:
        """What one piece holds of an object from ``start`` on; the longest such."""
        found: tuple[int, int] | None = None
        for piece_start in self._starts.get(key, ()):
            end = piece_start + len(self._pieces[key, piece_start])
            if piece_start <= start < end and (found is None or end > found[1]):
                found = piece_start, end
        if found is None:
            return None
        self._pieces.move_to_end((key, found[0]))
        return memoryview(self._pieces[key, found[0]])[start - found[0] :]

    def put(self, key: str, start: int, piece: bytes) -> None:
        """Keep ``piece``, which begins at ``start`` of the object, and make room for it."""
        if len(piece) > self._max_bytes:
            return
        if (old := self._pieces.get((key, start))) is not None:
            if len(old) >= len(piece):
                return
            self._remove(key, start)
        self._pieces[key, start] = piece
        self._starts.setdefault(key, []).append(start)
        self._bytes += len(piece)
        while self._bytes > self._max_bytes:
            self._remove(*next(iter(self._pieces)))
        CACHE_BYTES.set(self._bytes)

    def _remove(self, key: str, start: int) -> None:
        self._bytes -= len(self._pieces.pop((key, start)))
        starts = self._starts[key]
        starts.remove(start)
        if not starts:
            del self._starts[key]


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
