"""Which ranges of a topic a run looks at, and what its verdict says. No I/O.

A difference that a verdict names stays until its range was read and was right, or is no part of the
log any more: a run that happens to look elsewhere has found nothing that speaks against it.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from spark.table.pieces import Piece, Place
from spark.table.plan import Plan
from spark.verify.compare import Difference, RangeVerdict
from tideline.control_plane.tiering_model import PartitionRow
from tideline.domain.coverage import OffsetRange

NAMED = 100
"""Differences of a topic that are kept; the others are counted."""
EDGE_OFFSETS = 1_000
"""On either side of B0, looked at in every partition whatever the sample."""

Span = tuple[int, OffsetRange]
"""Offsets of a partition."""


@dataclass(frozen=True)
class Ranges:
    """What of a topic can be looked at."""

    plan: Plan
    pieces: Sequence[Piece]
    missing: Sequence[Difference] = ()
    """Of partitions that the plan alone says to lack something: none of their pieces is there."""
    left_alone: Mapping[int, str] = field(default_factory=dict)
    """Partitions that cannot be read now, and why: none of their pieces is there either."""

    def held(self) -> list[Span]:
        """All that is in the log."""
        unplanned = {one.partition for one in self.missing} | self.left_alone.keys()
        return [
            *((piece.partition, piece.range) for piece in self.pieces),
            *((partition, self.plan.whole[partition]) for partition in unplanned),
        ]


@dataclass
class TopicVerdict:
    """What was found so far."""

    of: Ranges
    before: Sequence[Difference] = ()
    """What the last verdict names."""
    ranges: int = 0
    batches: int = 0
    records: int = 0
    byte_count: int = 0
    gone: int = 0
    differences: int = 0
    _one_each: list[Difference] = field(default_factory=list)
    """Of every range the first one: each is to be looked at again."""
    _others: list[Difference] = field(default_factory=list)
    _judged: list[Span] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._note(self.of.missing)

    def add(self, found: RangeVerdict) -> None:
        self.ranges += 1
        self.batches += found.batches
        self.records += found.records
        self.byte_count += found.byte_count
        self.gone += found.gone
        self.differences += found.differences
        self._one_each += found.first[:1]
        self._others += found.first[1 : 1 + NAMED - len(self._others)]
        if not found.gone:
            self._judged.append((found.partition, OffsetRange(found.start, found.end)))

    def settle(self) -> None:
        """All was looked at: of the last verdict stays what nothing speaks against."""
        known = {(one.partition, one.offset) for one in self._one_each}
        left = outstanding(self.before, self.of.held(), self._judged)
        self._note([one for one in left if (one.partition, one.offset) not in known])

    def _note(self, found: Sequence[Difference]) -> None:
        self.differences += len(found)
        self._one_each += found

    @property
    def first(self) -> list[Difference]:
        """Those that are named, by partition and offset."""
        named = [*self._one_each, *self._others][:NAMED]
        return sorted(named, key=lambda one: (one.partition, one.offset))

    def details(self) -> dict[str, Any]:
        return {
            "topic": self.of.plan.topic,
            "partitions": len(self.of.plan.rows),
            "ranges": self.ranges,
            "batches": self.batches,
            "records": self.records,
            "bytes": self.byte_count,
            "gone": self.gone,
            "differences": self.differences,
            "first_differences": [asdict(one) for one in self.first],
        }


def sampled(
    pieces: Sequence[Piece],
    rows: Mapping[int, PartitionRow],
    sample: float,
    dice: random.Random,
    before: Collection[Difference] = (),
) -> list[Piece]:
    """The ranges that are looked at: so many of all, one at least, those next to each B0, and those
    where the verdict ``before`` names a difference."""
    if sample >= 1 or not pieces:
        return list(pieces)
    chosen = set(dice.sample(range(len(pieces)), max(1, round(sample * len(pieces)))))
    looked_at = (
        piece
        if number in chosen or any(_has((piece.partition, piece.range), one) for one in before)
        else _edge(piece, rows[piece.partition])
        for number, piece in enumerate(pieces)
    )
    return [piece for piece in looked_at if piece is not None]


def outstanding(
    before: Iterable[Difference], held: Sequence[Span], judged: Sequence[Span]
) -> list[Difference]:
    """Those that were not looked at again although the log still has their offsets."""
    return [
        one
        for one in before
        if any(_has(span, one) for span in held) and not any(_has(span, one) for span in judged)
    ]


def _has(span: Span, one: Difference) -> bool:
    partition, range = span
    return partition == one.partition and range.start <= one.offset < range.end


def _edge(piece: Piece, row: PartitionRow) -> Piece | None:
    """The part of a piece that is next to B0."""
    if piece.place is Place.PREFIX and piece.end == row.prefix_end:
        return replace(piece, start=max(piece.start, piece.end - EDGE_OFFSETS))
    if piece.start == row.boundary:
        return replace(piece, end=min(piece.end, piece.start + EDGE_OFFSETS))
    return None
