"""Pieces of WAL objects and segments in memory, bounded by bytes, least recently used first out.

Objects never change, so a piece is right for ever. A gateway's own objects are inserted whole when
they are committed: consumers that keep up do not read S3 at all.
"""

from __future__ import annotations

from collections import OrderedDict

from tideline.gateway.tracked_metrics import CACHE_BYTES


class ObjectCache:
    """Byte ranges by object key."""

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
