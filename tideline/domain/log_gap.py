"""A log gap ``[log end, B0)``: what of it remote segments hold, and what nobody holds.

No replica reaches B0 any more, as an unclean election or a lost disk leaves it. Kafka serves a
remote segment only below the end of its leader's log, and may delete it (docs/kafka.md), so what a
segment holds is neither lost nor readable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from uuid import UUID

from tideline.domain.coverage import OffsetRange, SegmentObjects
from tideline.domain.remote_log import RemoteSegment, SegmentState

PERHAPS_THERE = (SegmentState.COPY_SEGMENT_STARTED, SegmentState.COPY_SEGMENT_FINISHED)


@dataclass(frozen=True, slots=True)
class GapPart:
    """Neighbouring offsets of a gap that the same segments hold, or nobody."""

    range: OffsetRange
    held_by: tuple[UUID, ...] = ()
    """Segments, by id; none: nobody holds it."""
    kept: bool = False
    """Each of them has been copied whole to where no broker deletes it."""


def holders(
    segments: Iterable[RemoteSegment], objects: Mapping[UUID, SegmentObjects]
) -> list[RemoteSegment]:
    """Segments whose log object is there: also of a deposed leader, also in a copy that has not
    finished, and whatever its size is (compressed or encrypted, it can still be unpacked)."""
    return [
        segment
        for segment in segments
        if segment.state in PERHAPS_THERE
        and (there := objects.get(segment.segment_id)) is not None
        and there.log_bytes is not None
    ]


def is_copied(original: SegmentObjects, copy: SegmentObjects | None) -> bool:
    """Whether ``copy`` has every object of ``original``, and the log in its size."""
    return (
        copy is not None and copy.log_bytes == original.log_bytes and original.kinds <= copy.kinds
    )


def parts_of(
    gap: OffsetRange, held: Iterable[RemoteSegment], kept: frozenset[UUID] = frozenset()
) -> tuple[GapPart, ...]:
    """The whole of ``gap``, in order, each part as long as possible."""
    pieces = [
        (piece, segment.segment_id)
        for segment in held
        if (piece := OffsetRange(segment.start_offset, segment.end_offset + 1).clip(gap))
    ]
    edges = sorted({gap.start, gap.end, *(e for p, _ in pieces for e in (p.start, p.end))})
    found: list[GapPart] = []
    for start, end in pairwise(edges):
        ids = tuple(s for piece, s in pieces if piece.start <= start and end <= piece.end)
        part = GapPart(OffsetRange(start, end), ids, bool(ids) and set(ids) <= kept)
        before = found[-1] if found else None
        if before is not None and (before.held_by, before.kept) == (part.held_by, part.kept):
            found[-1] = GapPart(OffsetRange(before.range.start, end), ids, part.kept)
        else:
            found.append(part)
    return tuple(found)


def ranges(parts: Iterable[GapPart], *, held: bool) -> tuple[OffsetRange, ...]:
    """The offsets that segments hold, or those that nobody holds, in order and joined."""
    joined: list[OffsetRange] = []
    for part in parts:
        if bool(part.held_by) is not held:
            continue
        if joined and joined[-1].end == part.range.start:
            joined[-1] = OffsetRange(joined[-1].start, part.range.end)
        else:
            joined.append(part.range)
    return tuple(joined)


def in_words(parts: Iterable[GapPart]) -> str:
    """Both kinds of ranges, for a person."""
    parts = tuple(parts)
    said = []
    if held := ranges(parts, held=True):
        kept = " (copies are kept)" if all(p.kept for p in parts if p.held_by) else ""
        said.append(f"remote segments hold {_listed(held)}{kept}, which Kafka does not serve")
    if lost := ranges(parts, held=False):
        said.append(f"nobody holds {_listed(lost)}")
    return "; ".join(said)


def gap_detail(gap: OffsetRange, parts: Iterable[GapPart]) -> dict[str, Any]:
    """As JSON values: of a finding of the watches."""
    parts = tuple(parts)
    by_holder = {
        "remote_segments": ranges(parts, held=True),
        "nobody": ranges(parts, held=False),
    }
    return {
        "first": gap.start,
        "end": gap.end,
        "offsets": {who: sum(r.end - r.start for r in found) for who, found in by_holder.items()},
        "said": in_words(parts),
    }


def _listed(found: tuple[OffsetRange, ...], limit: int = 5) -> str:
    more = f" and {len(found) - limit} more ranges" if len(found) > limit else ""
    return ", ".join(f"{r.start} to {r.end - 1}" for r in found[:limit]) + more
