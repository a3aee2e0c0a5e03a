"""Ranges of objects' bytes, and the fewest GETs that hold many of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

COALESCE_GAP = 64 * 1024
"""bytes; closer ranges of one object are read by one GET: a request costs more than these bytes."""
MAX_GET = 8 * 1024 * 1024
"""bytes; one GET asks for more only when one wanted range is larger."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """``[start, end)`` of one object. ``tiered``: it lies in the bucket of the segments."""

    key: str
    start: int
    end: int
    tiered: bool = False

    @property
    def size(self) -> int:
        return self.end - self.start


def coalesce(wanted: Iterable[ByteRange]) -> list[ByteRange]:
    """The fewest ranges that hold all that are ``wanted``, each at most :data:`MAX_GET` unless one
    of them is larger, over gaps of at most :data:`COALESCE_GAP` bytes."""
    found: list[ByteRange] = []
    for part in sorted(wanted, key=lambda r: (r.tiered, r.key, r.start, -r.end)):
        last = found[-1] if found else None
        if (
            last is not None
            and (last.key, last.tiered) == (part.key, part.tiered)
            and part.start - last.end <= COALESCE_GAP
            and (part.end <= last.end or part.end - last.start <= MAX_GET)
        ):
            found[-1] = replace(last, end=max(part.end, last.end))
        else:
            found.append(part)
    return found


class ReadRanges:
    """What was read of the ranges that :func:`coalesce` made. A lookup costs the logarithm of how
    many ranges of the object there are, so that thousands of batches are matched in milliseconds.
    """

    def __init__(self, bodies: Mapping[ByteRange, bytes | memoryview]) -> None:
        self._of_object: dict[tuple[str, bool], tuple[list[int], list[bytes | memoryview]]] = {}
        for held in sorted(bodies, key=lambda part: part.start):
            starts, found = self._of_object.setdefault((held.key, held.tiered), ([], []))
            starts.append(held.start)
            found.append(bodies[held])

    def slice(self, wanted: ByteRange) -> memoryview:
        """The bytes of ``wanted``. Raises ``KeyError`` if they were not read."""
        starts, bodies = self._of_object.get((wanted.key, wanted.tiered), ([], []))
        # Ranges may overlap, but none lies in another: the last that begins at or before `wanted`
        # is the one that coalesce() put it into.
        at = bisect_right(starts, wanted.start) - 1
        if at < 0 or wanted.end > starts[at] + len(bodies[at]):
            raise KeyError(f"bytes {wanted.start} to {wanted.end} of {wanted.key} were not read")
        return memoryview(bodies[at])[wanted.start - starts[at] : wanted.end - starts[at]]
