"""Ranges of objects' bytes, and the fewest GETs that hold many of them."""

from __future__ import annotations

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

    def holds(self, other: ByteRange) -> bool:
        """Whether every byte of ``other`` is in this range."""
        return (
            (self.key, self.tiered) == (other.key, other.tiered)
            and self.start <= other.start
            and other.end <= self.end
        )


def coalesce(wanted: Iterable[ByteRange]) -> list[ByteRange]:
    """The fewest ranges that hold all that are ``wanted``, each at most :data:`MAX_GET` unless one
    of them is larger, over gaps of at most :data:`COALESCE_GAP` bytes."""
    found: list[ByteRange] = []
    for part in sorted(wanted, key=lambda r: (r.tiered, r.key, r.start)):
        last = found[-1] if found else None
        if (
            last is not None
            and (last.key, last.tiered) == (part.key, part.tiered)
            and part.start - last.end <= COALESCE_GAP
            and max(part.end, last.end) - last.start <= MAX_GET
        ):
            found[-1] = replace(last, end=max(part.end, last.end))
        else:
            found.append(part)
    return found


def slice_of(bodies: Mapping[ByteRange, bytes], wanted: ByteRange) -> memoryview:
    """The bytes of ``wanted`` out of what was read of the ranges that :func:`coalesce` made."""
    for held, body in bodies.items():
        if held.holds(wanted):
            return memoryview(body)[wanted.start - held.start : wanted.end - held.start]
    raise AssertionError("coalesce() covers every range that it was given")
