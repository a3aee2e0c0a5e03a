"""Where objects without a told outcome lie in one log, when there is exactly one way.

Goes through the ways to fill every hole between known batches; whoever asks stops at the second. An
object may never have been committed, so it may be passed over, and of one that was committed single
batches may be missing, but where its stream keeps the order of decision 0022. One way is enough to
know only because what fills a hole must be in the bucket: an object that was committed is not
deleted before Postgres says so (decision 0022). Whoever has lost objects of the bucket cannot rely
on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

STEPS = 20_000
"""Looks that one log's search may take; beyond them nothing is placed."""
DEEP = 500
"""Objects in one way; each is a call within a call."""


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets of which no batch is known, the last one inclusive."""

    base_offset: int
    last_offset: int

    @property
    def size(self) -> int:
        return self.last_offset - self.base_offset + 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one object of the tail may have added to the log."""

    key: str
    stream: UUID
    sequence: int
    records: tuple[int, ...]
    """Of each of its batches."""
    in_order: bool = False
    """It was committed whole, and before what comes behind it in its stream, or not at all."""

    @property
    def whole(self) -> int:
        return sum(self.records)

    def amounts(self, limit: int) -> list[int]:
        """All numbers of records up to ``limit`` that it may have added: any of its batches may be
        missing. Raises :class:`TooManyWays`."""
        if self.in_order:
            return [self.whole] if self.whole <= limit else []
        sums = {0}
        for count in self.records:
            sums |= {known + count for known in sums if known + count <= limit}
            if len(sums) > STEPS:
                raise TooManyWays
        return sorted(sums - {0})


Way = dict[str, int]
"""Base offsets by key, of objects that are placed whole."""


_Placed = dict[str, tuple[int, int | None]]
"""Base offset, and the number of records where it is not all of them."""


@dataclass(slots=True)
class Search:
    """All ways to fill ``holes`` with ``candidates``, in the order of each stream."""

    holes: Sequence[Hole]
    candidates: Sequence[Candidate]
    floors: Mapping[str, int]
    """By key, the first offset at which the object may lie: behind what its stream has told before
    it."""
    steps: int = 0
    _streams: list[list[Candidate]] = field(init=False)

    def __post_init__(self) -> None:
        by_stream: dict[UUID, list[Candidate]] = {}
        for candidate in sorted(self.candidates, key=lambda c: c.sequence):
            by_stream.setdefault(candidate.stream, []).append(candidate)
        self._streams = list(by_stream.values())

    def ways(self) -> Iterator[Way | None]:
        """Each way; ``None`` for one that takes an object in part. Raises :class:`TooManyWays`."""
        for placed in self._fill(0, 0, [0] * len(self._streams), {}):
            parts = any(amount is not None for _, amount in placed.values())
            yield None if parts else {key: base for key, (base, _) in placed.items()}

    def _fill(
        self, hole: int, filled: int, next_of: list[int], placed: _Placed
    ) -> Iterator[_Placed]:
        if hole == len(self.holes):
            yield placed
            return
        base = self.holes[hole].base_offset + filled
        left = self.holes[hole].size - filled
        for index, stream in enumerate(self._streams):
            start = next_of[index]
            for place in range(start, len(stream)):
                candidate = stream[place]
                if self.floors.get(candidate.key, 0) > base:
                    break
                next_of[index] = place + 1
                for amount in candidate.amounts(left):
                    self.steps += 1
                    if self.steps > STEPS or len(placed) > DEEP:
                        raise TooManyWays
                    whole = amount == candidate.whole
                    placed[candidate.key] = (base, None if whole else amount)
                    following = (hole + 1, 0) if amount == left else (hole, filled + amount)
                    yield from self._fill(*following, next_of, placed)
                placed.pop(candidate.key, None)
                if candidate.in_order:
                    break  # nothing behind it without it
            next_of[index] = start


class TooManyWays(Exception):
    """The search was given up."""
