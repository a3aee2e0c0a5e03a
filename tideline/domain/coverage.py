"""Does remote storage hold the tiered prefix without a gap?

What always holds: a byte counts as covered only if a ``COPY_SEGMENT_FINISHED`` segment has it,
the segment's objects exist in their right sizes, and its leader epoch at that offset is the one
of the log's own lineage. Leaders after an election may upload overlapping segments, and a
deposed leader may have uploaded a divergent one: overlaps are allowed, foreign epochs do not
count (seed 000, "Determining tieringComplete"; Kafka: ``RemoteLogManager.isRemoteSegmentWithin``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from tideline.domain.remote_log import EpochStart, RemoteSegment, SegmentState

FOREVER = 2**63 - 1

OWN_KINDS = frozenset({"index", "timeindex", "snapshot", "leader-epoch-checkpoint"})
"""Beside ``log`` and, if the segment has aborted transactions, ``txnindex``."""
AIVEN_KINDS = frozenset({"indexes", "rsm-manifest"})
"""Aiven's plugin packs every index into one object."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """``[start, end)``: start inclusive, end exclusive."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"

    def clip(self, other: OffsetRange) -> OffsetRange | None:
        """The part inside ``other``, or ``None``."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return OffsetRange(start, end) if start < end else None


@dataclass(frozen=True, slots=True)
class SegmentObjects:
    """What the object store has of one segment."""

    log_bytes: int | None
    """Size of the segment's log object; ``None``: there is none."""
    kinds: frozenset[str] = frozenset()
    """Suffixes of the other objects, without the dot."""

    def missing(self, *, txn_index: bool) -> tuple[str, ...]:
        """Kinds of objects that a segment must have and has not; ``txn_index``: that one, too."""
        if self.kinds & AIVEN_KINDS:
            return tuple(sorted(AIVEN_KINDS - self.kinds))
        needed = OWN_KINDS | {"txnindex"} if txn_index else OWN_KINDS
        return tuple(sorted(needed - self.kinds))


def txn_indexes_told_from(segments: Iterable[RemoteSegment]) -> int:
    """The start of a log's first segment whose metadata say that it has no transaction index; from
    it on each other one must have its own. Before it nobody knows: brokers before Kafka 4.0 say so
    of none (KIP-1058, ``TxnIndexEmpty``), and what they have not uploaded Kafka takes for empty
    (``RemoteIndexCache``)."""
    return min((s.start_offset for s in segments if s.txn_index_empty), default=FOREVER)


@dataclass(frozen=True, slots=True)
class Coverage:
    """What remote storage has of ``wanted`` = [log start, boundary)."""

    wanted: OffsetRange
    gaps: tuple[OffsetRange, ...]
    covered_to: int
    """First offset at or after the log start that is not covered (exclusive end)."""
    earliest_remote: int
    """Smallest start offset among finished segments of this lineage; -1 if there is none."""
    rests_on: Mapping[UUID, int]
    """Segments that contribute, and the last offset (inclusive) of each."""
    overlapping: int
    overshooting: int
    """Segments that reach past the boundary; clipped."""
    unfinished: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    """Segments of a deposed leader: no offset of theirs belongs to the log's lineage."""
    broken: dict[str, str] = field(default_factory=dict)
    """Segments whose objects are missing or short, and what is wrong."""

    @property
    def segments(self) -> int:
        """How many contribute."""
        return len(self.rests_on)

    @property
    def complete(self) -> bool:
        """Whether any replica may serve every offset of ``wanted`` from remote storage."""
        return not self.gaps

    def reason(self) -> str:
        """Why it is not complete, in an operator's words; empty when it is."""
        if self.complete:
            return ""
        shown = ", ".join(str(gap) for gap in self.gaps[:3])
        more = f" and {len(self.gaps) - 3} more" if len(self.gaps) > 3 else ""
        parts = [f"offsets {shown}{more} are not in remote storage yet"]
        if self.broken:
            name, problem = next(iter(self.broken.items()))
            parts.append(f"{len(self.broken)} segments have bad objects, e.g. {name}: {problem}")
        if self.unfinished:
            parts.append(f"{len(self.unfinished)} copies are under way")
        return "; ".join(parts)


def assess(
    log_start: int,
    boundary: int,
    segments: Iterable[RemoteSegment],
    objects: Mapping[UUID, SegmentObjects] | None,
    lineage: Sequence[EpochStart],
) -> Coverage:
    """Judge the coverage of ``[log_start, boundary)``.

    ``objects``: by segment id; ``None`` skips the comparison with the object store.
    ``lineage``: the log's leader epochs in ascending order, its first entry at or below the log
    start. An empty lineage belongs to a log that never had a leader, so that nothing is covered.
    """
    wanted = OffsetRange(log_start, max(log_start, boundary))
    pieces: list[OffsetRange] = []
    unfinished: list[str] = []
    foreign: list[str] = []
    broken: dict[str, str] = {}
    rests_on: dict[UUID, int] = {}
    overlapping = overshooting = 0
    earliest = -1
    ranges = lineage_ranges(lineage)
    ordered = sorted(segments, key=lambda s: (s.start_offset, s.end_offset))
    told_from = txn_indexes_told_from(ordered)
    for segment in ordered:
        name = f"{segment.start_offset:020d}-{segment.segment_id}"
        if segment.state is SegmentState.COPY_SEGMENT_STARTED:
            unfinished.append(name)
            continue
        if segment.state is not SegmentState.COPY_SEGMENT_FINISHED:
            continue
        mine = own_pieces(segment, ranges)
        if not mine:
            foreign.append(name)
            continue
        if objects is not None and (
            problem := object_problem(segment, objects.get(segment.segment_id), told_from)
        ):
            broken[name] = problem
            continue
        earliest = mine[0].start if earliest < 0 else min(earliest, mine[0].start)
        clipped = [piece for p in mine if (piece := p.clip(wanted))]
        if clipped:
            rests_on[segment.segment_id] = segment.end_offset
            overlapping += any(p.start < q.end and q.start < p.end for p in clipped for q in pieces)
            pieces.extend(clipped)
        if segment.start_offset < boundary <= segment.end_offset:
            overshooting += 1
    gaps = tuple(gaps_in(wanted, pieces))
    return Coverage(
        wanted=wanted,
        gaps=gaps,
        covered_to=gaps[0].start if gaps else wanted.end,
        earliest_remote=earliest,
        rests_on=rests_on,
        overlapping=overlapping,
        overshooting=overshooting,
        unfinished=tuple(unfinished),
        foreign=tuple(foreign),
        broken=broken,
    )


def lineage_ranges(lineage: Sequence[EpochStart]) -> dict[int, OffsetRange]:
    """The offsets that belong to each leader epoch of a log."""
    ends = [entry.start_offset for entry in lineage[1:]] + [FOREVER]
    return {
        entry.epoch: OffsetRange(entry.start_offset, end)
        for entry, end in zip(lineage, ends, strict=False)
    }


def own_pieces(segment: RemoteSegment, lineage: Mapping[int, OffsetRange]) -> list[OffsetRange]:
    """The parts of a segment whose leader epoch is the log's own at those offsets, by
    :func:`lineage_ranges`."""
    starts = [max(entry.start_offset, segment.start_offset) for entry in segment.leader_epochs]
    ends = [*starts[1:], segment.end_offset + 1]
    pieces = []
    for entry, start, end in zip(segment.leader_epochs, starts, ends, strict=True):
        if (own := lineage.get(entry.epoch)) and (piece := OffsetRange(start, end).clip(own)):
            pieces.append(piece)
    return pieces


def object_problem(
    segment: RemoteSegment, found: SegmentObjects | None, told_from: int
) -> str | None:
    """What is wrong with the objects of a finished segment; ``None``: nothing. A size other than
    the metadata's is what a plugin that compresses or encrypts leaves; its bytes prove nothing.
    ``told_from``: :func:`txn_indexes_told_from` of its log."""
    if found is None or found.log_bytes is None:
        return "its log object is not in the bucket"
    if found.log_bytes != segment.size_bytes:
        return (
            f"its log object has {found.log_bytes} bytes instead of {segment.size_bytes}"
            " (compressed or encrypted?)"
        )
    has_transactions = not segment.txn_index_empty and segment.start_offset >= told_from
    if missing := found.missing(txn_index=has_transactions):
        return f"its {', '.join(missing)} object is not in the bucket"
    return None


def gaps_in(wanted: OffsetRange, pieces: Iterable[OffsetRange]) -> Iterable[OffsetRange]:
    """The offsets of ``wanted`` that none of ``pieces``, which lie in it, has."""
    reached = wanted.start
    for piece in sorted(pieces):
        if piece.start > reached:
            yield OffsetRange(reached, piece.start)
        reached = max(reached, piece.end)
    if reached < wanted.end:
        yield OffsetRange(reached, wanted.end)
