"""A hybrid topic as a table: which offsets are asked for, and what of remote storage holds them.

Offsets are inclusive at the start and exclusive at the end of every range; times are ms.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tideline.domain.coverage import OffsetRange, gaps_in, lineage_ranges, own_pieces
from tideline.domain.remote_log import EpochStart, RemoteSegment, SegmentState
from tideline.errors import RefusedError, TidelineError, UsageError

EARLIEST, LATEST = "earliest", "latest"
FIRST, LAST = -2, -1
"""Of an offset per partition, as Spark's source for Kafka spells them."""


class TableRefused(RefusedError):
    """The topic cannot be read as a table, or not these offsets."""


class TableUnreadable(TidelineError):
    """What is stored is not what the metadata says; the message names the offset."""

    def __init__(
        self, message: str, offset: int | None = None, last_offset: int | None = None
    ) -> None:
        """``offset`` to ``last_offset``, inclusive: what is concerned, as far as that is known."""
        super().__init__(message)
        self.offset = offset
        self.last_offset = offset if last_offset is None else last_offset


class Isolation(StrEnum):
    """As consumers have it."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


def parse_offsets(
    option: str, text: str, topic: str, partitions: Collection[int]
) -> dict[int, int]:
    """An offset per partition, :data:`FIRST` and :data:`LAST` among them: ``earliest``, ``latest``
    or ``{"topic": {"0": 23, "1": -2}}``, which must name every partition.

    Raises :class:`UsageError` that names the option.
    """
    if text.lower() in (EARLIEST, LATEST):
        return dict.fromkeys(partitions, FIRST if text.lower() == EARLIEST else LAST)
    try:
        document = json.loads(text)
        found = {int(partition): int(offset) for partition, offset in document[topic].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(
            f'{option} is {text!r}: write earliest, latest, or {{"{topic}": {{"0": 23, "1": -2}}}} '
            "(-2: earliest, -1: latest)"
        ) from None
    if found.keys() != set(partitions) or min(found.values(), default=0) < FIRST:
        raise UsageError(
            f"{option} names partitions {sorted(found)}: name each of {sorted(partitions)} once, "
            "with an offset of at least 0, -2 (earliest) or -1 (latest)"
        )
    return found


@dataclass(frozen=True, slots=True)
class Bounds:
    """What filters leave to read. Each may let too much through, never too little."""

    partitions: frozenset[int] | None = None
    """``None``: all."""
    first: int = 0
    end: int = 2**63 - 1
    """Offsets ``[first, end)``."""
    not_before: int = -1
    """ms; records that are older are not wanted."""

    def only(self, partitions: Iterable[int]) -> Bounds:
        wanted = frozenset(partitions)
        known = self.partitions
        return replace(self, partitions=wanted if known is None else wanted & known)

    def clip(self, range: OffsetRange) -> OffsetRange | None:
        return range.clip(OffsetRange(self.first, max(self.first, self.end)))


@dataclass(frozen=True, slots=True)
class PrefixPiece:
    """The part of a remote segment that is read."""

    segment: RemoteSegment
    range: OffsetRange


def prefix_cover(
    wanted: OffsetRange, segments: Iterable[RemoteSegment], lineage: Sequence[EpochStart]
) -> tuple[list[PrefixPiece], list[OffsetRange]]:
    """Finished segments of the log's own ``lineage`` that hold ``wanted``, each offset once, and
    the offsets that none of them has. Where several hold an offset the one that reaches furthest
    is taken: few pieces, and always the same ones."""
    epochs = lineage_ranges(lineage)
    pieces = sorted(
        (
            PrefixPiece(segment, piece)
            for segment in segments
            if segment.state is SegmentState.COPY_SEGMENT_FINISHED
            for piece in own_pieces(segment, epochs)
        ),
        key=lambda p: (p.range.start, p.range.end, p.segment.segment_id),
    )
    cover: list[PrefixPiece] = []
    gaps: list[OffsetRange] = []
    reached, at, best = wanted.start, 0, None
    while reached < wanted.end:
        while at < len(pieces) and pieces[at].range.start <= reached:
            if best is None or pieces[at].range.end > best.range.end:
                best = pieces[at]
            at += 1
        if best is not None and best.range.end > reached:
            end = min(best.range.end, wanted.end)
            cover.append(PrefixPiece(best.segment, OffsetRange(reached, end)))
        else:
            end = min(pieces[at].range.start if at < len(pieces) else wanted.end, wanted.end)
            gaps.append(OffsetRange(reached, end))
        reached = end
    return cover, gaps


def uncovered(wanted: OffsetRange, held: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The offsets of ``wanted`` that none of ``held`` has."""
    return list(gaps_in(wanted, [inside for one in held if (inside := one.clip(wanted))]))


def resolve(
    asked: Mapping[int, int], whole: Mapping[int, OffsetRange], topic: str, option: str
) -> dict[int, int]:
    """``asked`` with :data:`FIRST` and :data:`LAST` put in. Raises :class:`TableRefused` for an
    offset outside of the log."""
    found = {}
    for partition, offset in asked.items():
        log = whole[partition]
        found[partition] = {FIRST: log.start, LAST: log.end}.get(offset, offset)
        if not log.start <= found[partition] <= log.end:
            raise TableRefused(
                f"{option}: offset {offset} of {topic}-{partition} is outside of the log, which "
                f"has offsets {log.start} to {log.end - 1}; begin at earliest, or name one of these"
            )
    return found
