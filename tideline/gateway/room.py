"""The memory that one gateway may use for other people's bytes: one budget for the whole process.

Requests that were read and are not answered, answers that nobody has taken, produces that wait,
WAL objects under way and the cache of objects all count into it. When it is used up the cache gives
way first; then answers of the suffix are made smaller and clients are not read, so that TCP holds
them back, until there is room again. Frames that are half read then go on one at a time: no two can
wait for each other, and the budget is exceeded by one frame at most (and by what the smallest
possible answers need).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tideline.gateway.listeners import Listeners
from tideline.gateway.metrics import BOUND_REACHED, HELD_BYTES

UNBOUNDED = 2**62
LOW = 7 / 8
"""Once full, reading goes on when less than this part is used."""
KINDS = ("requests", "answers", "parked", "wal", "cache")


class Room:
    """Bytes held, by kind, and whether more may be taken in."""

    def __init__(self, max_bytes: int = UNBOUNDED) -> None:
        self._max = max_bytes
        self._held = dict.fromkeys(KINDS, 0)
        self._total = 0
        self.full = False
        """Whether clients are not read at present."""
        self.shrink: Listeners[[int]] = Listeners()
        """Called with the bytes that are too many, before the room counts as full."""
        self.changed: Listeners[[]] = Listeners()
        """Called when it is full, and when there is room again."""
        for kind in KINDS:
            HELD_BYTES.labels(kind).set_function(partial(self._held.__getitem__, kind))

    @property
    def left(self) -> int:
        """bytes, never negative"""
        return max(0, self._max - self._total)

    @property
    def excess(self) -> int:
        """bytes held beyond the budget"""
        return max(0, self._total - self._max)

    def held(self, kind: str) -> int:
        """bytes"""
        return self._held[kind]

    def take(self, kind: str, size: int) -> None:
        """Account for ``size`` bytes that are there now; nothing is refused here."""
        self._held[kind] += size
        self._total += size
        if kind == "cache":
            return  # who fills it makes room for it at once
        if self.excess:
            self.shrink(self.excess)
        if self.excess and not self.full:
            self.full = True
            BOUND_REACHED.labels("memory").inc()
            self.changed()

    def give(self, kind: str, size: int) -> None:
        """``size`` bytes are gone."""
        self._held[kind] -= size
        self._total -= size
        if self.full and self._total <= self._max * LOW:
            self.full = False
            self.changed()

    @contextmanager
    def answer(self, wanted: int) -> Iterator[int]:
        """How many of the ``wanted`` bytes an answer may have, held while it is made."""
        granted = min(wanted, self.left)
        if granted < wanted:
            BOUND_REACHED.labels("memory").inc()
        self.take("answers", granted)
        try:
            yield granted
        finally:
            self.give("answers", granted)
