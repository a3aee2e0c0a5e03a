"""Where to begin reading in a segment, from the bytes of its indexes.

Kafka's ``OffsetIndex`` and ``TimeIndex``: entries with offsets relative to the segment's base, in
strictly increasing order. The bytes come from an object store and are believed only as far as
they agree with themselves: every entry that a search touches must lie in the segment and between
the entries around it. Nothing here does I/O or copies the index; a lookup touches O(log n)
entries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tideline.domain.offset_search import NO_TIMESTAMP
from tideline.kafka.batches import Buffer

OFFSET_ENTRY = struct.Struct(">ii")
"""Relative last offset of a batch, position of that batch in the ``.log``."""
TIME_ENTRY = struct.Struct(">qi")
"""Largest timestamp so far (ms), relative last offset of the first batch that has it."""


class CorruptIndex(ValueError):
    """Index bytes that Kafka would not have written for this segment."""


@dataclass(frozen=True, slots=True)
class SegmentExtent:
    """What a segment's metadata says of it. Offsets inclusive, sizes in bytes."""

    base_offset: int
    last_offset: int
    log_bytes: int


@dataclass(frozen=True, slots=True)
class OffsetPosition:
    """An entry of ``.index``: a batch ends at ``offset`` (inclusive) and begins at byte
    ``position`` of the ``.log``."""

    offset: int
    position: int


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    """An entry of ``.timeindex``: no record up to ``offset`` (inclusive) is younger than
    ``timestamp`` (ms)."""

    timestamp: int
    offset: int


def position_for_offset(index: Buffer, segment: SegmentExtent, offset: int) -> int:
    """The byte of the ``.log`` to read from so that the batch with ``offset`` is met.

    The position of the largest entry whose offset is at most ``offset``, else 0. It is the start
    of a batch. Raises :class:`CorruptIndex`.
    """
    return lookup_offset(index, segment, offset).position


def lookup_offset(index: Buffer, segment: SegmentExtent, offset: int) -> OffsetPosition:
    """The largest entry whose offset is at most ``offset``; (base offset, 0) without one
    (``OffsetIndex.lookup``). Raises :class:`CorruptIndex`."""
    count = _entries(index, OFFSET_ENTRY.size, "offset index")
    low = OffsetPosition(segment.base_offset, 0)
    high = OffsetPosition(segment.last_offset + 1, segment.log_bytes)
    first, end = 0, count
    while first < end:
        middle = (first + end) // 2
        entry = _offset_entry(index, segment, middle)
        # Strictly, for the first entry too: the first batch of a segment is never indexed.
        if entry.offset <= low.offset or entry.position <= low.position:
            raise _unordered("offset index", middle)
        if entry.offset >= high.offset or entry.position >= high.position:
            raise _unordered("offset index", middle)
        if entry.offset <= offset:
            low, first = entry, middle + 1
        else:
            high, end = entry, middle
    return low


def offset_for_timestamp(timeindex: Buffer, segment: SegmentExtent, timestamp: int) -> int:
    """The offset to search from for the first record at or after ``timestamp`` (ms): every record
    of a batch that ends below it is older. Raises :class:`CorruptIndex`."""
    return lookup_timestamp(timeindex, segment, timestamp).offset


def lookup_timestamp(timeindex: Buffer, segment: SegmentExtent, timestamp: int) -> TimestampOffset:
    """The largest entry whose timestamp is at most ``timestamp`` (ms); (-1, base offset) without
    one (``TimeIndex.lookup``). Raises :class:`CorruptIndex`."""
    count = _entries(timeindex, TIME_ENTRY.size, "time index")
    low = TimestampOffset(NO_TIMESTAMP, segment.base_offset)
    high: TimestampOffset | None = None
    first, end = 0, count
    while first < end:
        middle = (first + end) // 2
        entry = _time_entry(timeindex, segment, middle)
        if entry.timestamp <= low.timestamp or (entry.offset <= low.offset and first > 0):
            raise _unordered("time index", middle)
        if high is not None and (entry.timestamp >= high.timestamp or entry.offset >= high.offset):
            raise _unordered("time index", middle)
        if entry.timestamp <= timestamp:
            low, first = entry, middle + 1
        else:
            high, end = entry, middle
    return low


def position_for_timestamp(
    index: Buffer,
    timeindex: Buffer,
    segment: SegmentExtent,
    timestamp: int,
    start_offset: int | None = None,
) -> int:
    """The byte of the ``.log`` to scan from for the first record at or after ``timestamp`` (ms)
    and at or after ``start_offset`` (default: the segment's base).

    Kafka: ``LogSegment.findOffsetByTimestamp``. Raises :class:`CorruptIndex`.
    """
    from_time = offset_for_timestamp(timeindex, segment, timestamp)
    start = segment.base_offset if start_offset is None else start_offset
    return position_for_offset(index, segment, max(from_time, start))


def offset_entries(index: Buffer, segment: SegmentExtent) -> Iterator[OffsetPosition]:
    """Every entry of an ``.index``, in order, each checked. Raises :class:`CorruptIndex`."""
    previous = OffsetPosition(segment.base_offset, 0)
    for number in range(_entries(index, OFFSET_ENTRY.size, "offset index")):
        entry = _offset_entry(index, segment, number)
        if entry.offset <= previous.offset or entry.position <= previous.position:
            raise _unordered("offset index", number)
        yield entry
        previous = entry


def time_entries(timeindex: Buffer, segment: SegmentExtent) -> Iterator[TimestampOffset]:
    """Every entry of a ``.timeindex``, in order, each checked. Raises :class:`CorruptIndex`."""
    previous: TimestampOffset | None = None
    for number in range(_entries(timeindex, TIME_ENTRY.size, "time index")):
        entry = _time_entry(timeindex, segment, number)
        if previous is not None and (
            entry.timestamp <= previous.timestamp or entry.offset <= previous.offset
        ):
            raise _unordered("time index", number)
        yield entry
        previous = entry


def _entries(data: Buffer, size: int, what: str) -> int:
    count, rest = divmod(len(data), size)
    if rest:
        raise CorruptIndex(
            f"the {what} has {len(data)} bytes, which is no multiple of its {size} byte entries"
        )
    return count


def _offset_entry(index: Buffer, segment: SegmentExtent, number: int) -> OffsetPosition:
    relative, position = OFFSET_ENTRY.unpack_from(index, number * OFFSET_ENTRY.size)
    entry = OffsetPosition(segment.base_offset + relative, position)
    if not segment.base_offset <= entry.offset <= segment.last_offset:
        raise _outside("offset index", number, f"offset {entry.offset}", segment)
    if not 0 <= position < segment.log_bytes:
        raise _outside("offset index", number, f"position {position}", segment)
    return entry


def _time_entry(timeindex: Buffer, segment: SegmentExtent, number: int) -> TimestampOffset:
    timestamp, relative = TIME_ENTRY.unpack_from(timeindex, number * TIME_ENTRY.size)
    entry = TimestampOffset(timestamp, segment.base_offset + relative)
    if not segment.base_offset <= entry.offset <= segment.last_offset:
        raise _outside("time index", number, f"offset {entry.offset}", segment)
    if timestamp <= NO_TIMESTAMP:
        raise _outside("time index", number, f"timestamp {timestamp}", segment)
    return entry


def _outside(what: str, number: int, value: str, segment: SegmentExtent) -> CorruptIndex:
    return CorruptIndex(
        f"entry {number} of the {what} has {value}, outside the segment with offsets "
        f"{segment.base_offset} to {segment.last_offset} and {segment.log_bytes} bytes"
    )


def _unordered(what: str, number: int) -> CorruptIndex:
    return CorruptIndex(f"entry {number} of the {what} does not follow the entries around it")
