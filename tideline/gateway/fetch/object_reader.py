"""Ranges of objects, from memory or by a GET: what WAL batches and merged segments are read with.

Objects never change, so a range that was read once is right for ever. One GET per range runs at a
time, however many consumers want it, and cold segments never take the slots of the WAL's tail.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable

from tideline.background import spawn
from tideline.gateway.metrics import CACHE_BYTES
from tideline.gateway.room import Room
from tideline.object_store.async_store import ObjectStore
from tideline.object_store.byte_ranges import ByteRange

PARALLEL_GETS = 8
"""Of WAL objects."""
PARALLEL_SEGMENT_GETS = 4


class ObjectCache:
    """Pieces of objects in memory by object key, bounded by bytes, least recently used first out.

    A gateway's own WAL objects are inserted whole when they are committed: consumers that keep up
    do not read S3 at all.
    """

    def __init__(self, max_bytes: int, room: Room | None = None) -> None:
        self._max_bytes = max_bytes
        self._room = room or Room()
        self._room.shrink.add(self._shrink)
        self._pieces: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._starts: dict[str, list[int]] = {}
        self._bytes = 0

    @property
    def size(self) -> int:
        """bytes held"""
        return self._bytes

    def get(self, key: str, start: int, size: int) -> memoryview | None:
        """``[start, start + size)`` of an object, if one piece holds all of it."""
        found = self.piece(key, start, size)
        if found is None:
            return None
        piece_start, piece = found
        return piece[start - piece_start : start - piece_start + size]

    def piece(self, key: str, start: int, size: int) -> tuple[int, memoryview] | None:
        """The piece that holds all of ``[start, start + size)`` of an object, and where it begins
        in the object."""
        for piece_start in self._starts.get(key, ()):
            piece = self._pieces[key, piece_start]
            if piece_start <= start and start + size <= piece_start + len(piece):
                self._pieces.move_to_end((key, piece_start))
                return piece_start, memoryview(piece)
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
        if len(piece) > min(self._max_bytes, self._bytes + self._room.left):
            return
        if (old := self._pieces.get((key, start))) is not None:
            if len(old) >= len(piece):
                return
            self._remove(key, start)
        self._pieces[key, start] = piece
        self._starts.setdefault(key, []).append(start)
        self._bytes += len(piece)
        self._room.take("cache", len(piece))
        self._shrink(max(self._bytes - self._max_bytes, self._room.excess))

    def _shrink(self, size: int) -> None:
        """Let go of ``size`` bytes at least, or of all."""
        wanted = max(0, self._bytes - size) if size > 0 else self._bytes
        while self._bytes > wanted:
            self._remove(*next(iter(self._pieces)))
        CACHE_BYTES.set(self._bytes)

    def forget(self, key: str) -> None:
        """Keep nothing of the object."""
        for start in list(self._starts.get(key, ())):
            self._remove(key, start)
        CACHE_BYTES.set(self._bytes)

    def _remove(self, key: str, start: int) -> None:
        size = len(self._pieces.pop((key, start)))
        self._bytes -= size
        self._room.give("cache", size)
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
        self._under_way: dict[ByteRange, asyncio.Task[bytes]] = {}

    def cached(self, part: ByteRange) -> memoryview | None:
        """The whole of ``part``, if one piece in memory holds it."""
        return self._cache.get(_name(part.key, part.tiered), part.start, part.size)

    def all_cached(self, places: Iterable[tuple[str, bool, int, int]]) -> list[memoryview | None]:
        """As :meth:`cached`, of each (key, whether tiered, first byte, bytes). Neighbours are
        mostly in one piece, which is looked for once."""
        found: list[memoryview | None] = []
        at: tuple[str, bool] | None = None
        first = end = 0
        piece = memoryview(b"")
        for key, tiered, start, size in places:
            if at != (key, tiered) or start < first or start + size > end:
                got = self._cache.piece(_name(key, tiered), start, size)
                if got is None:
                    at = None
                    found.append(None)
                    continue
                (first, piece), at = got, (key, tiered)
                end = first + len(piece)
            found.append(piece[start - first : start - first + size])
        return found

    def forget(self, part: ByteRange) -> None:
        """Its object is read anew by whoever asks next."""
        self._cache.forget(_name(part.key, part.tiered))

    async def whole(self, part: ByteRange) -> memoryview:
        """The whole of ``part``, from memory or by a GET."""
        if part.start == part.end:
            return memoryview(b"")
        cached = self.cached(part)
        return cached if cached is not None else memoryview(await self.get(part))

    async def at_least(self, part: ByteRange, size: int) -> memoryview:
        """What memory holds from ``part.start`` on if that is ``size`` bytes or more, else all of
        ``part`` by a GET."""
        cached = self._cache.rest(_name(part.key, part.tiered), part.start)
        if cached is not None and len(cached) >= size:
            return cached
        return memoryview(await self.get(part))

    async def get(self, part: ByteRange) -> bytes:
        """``part`` by a GET, which others that want the same share."""
        task = self._under_way.get(part)
        if task is None:
            task = spawn(self._fetch(part), "suffix-get")
            self._under_way[part] = task
            task.add_done_callback(lambda done: self._done(part, done))
        return await asyncio.shield(task)

    def _done(self, part: ByteRange, task: asyncio.Task[bytes]) -> None:
        self._under_way.pop(part, None)
        if not task.cancelled():
            task.exception()  # those who waited may have given up: then nobody else asks for it

    async def _fetch(self, part: ByteRange) -> bytes:
        async with self._slots[part.tiered]:
            body = await self._store.get(part.key, part.start, part.size, tiered=part.tiered)
        self._cache.put(_name(part.key, part.tiered), part.start, body)
        return body


def _name(key: str, tiered: bool) -> str:
    """Of the object in the cache: two buckets may hold the same key."""
    return f"tiered:{key}" if tiered else key
