"""Merged segments, read straight from the object store through their indexes (seed 002 §4.5).

What always holds: a batch that is answered lies in the segment, follows the one before it and
reaches the wanted offset; bytes that contradict the segment's metadata are an error, never an
answer. The bytes were made final when the segment was built: offsets, leader epoch and
LogAppendTime stand in them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from tideline.control_plane.model import BatchCoordinates, SegmentCoordinates
from tideline.domain.topic_configs import LOG_APPEND_TIME
from tideline.errors import TidelineError
from tideline.gateway.fetch.object_reader import ObjectReader
from tideline.gateway.fetch.record_search import BatchSearch, RecordSearch, Searcher
from tideline.kafka.batches import (
    HEADER_BYTES,
    BatchHeader,
    InvalidBatch,
    parse_header,
    verify_crc,
)
from tideline.kafka.record_search import FoundRecord, found_by_append_time, largest
from tideline.kafka.segment_files import SegmentFile
from tideline.kafka.segment_lookup import (
    TIME_ENTRY,
    CorruptIndex,
    OffsetPosition,
    SegmentExtent,
    lookup_offset,
    lookup_timestamp,
)
from tideline.object_store.byte_ranges import MAX_GET, ByteRange

READ_AHEAD = 1024 * 1024
"""bytes; what one GET asks for at least, so that small fetches are served from memory."""
SLACK = 64 * 1024
"""bytes; an index entry lies no further before the wanted batch, unless batches are large."""
SCAN_BYTES = 64 * 1024
"""bytes; first GET of a search, which mostly ends within one interval of the index."""
SCAN_GROWTH = 4
MAX_BATCHES = 500
"""Of one answer, as ``find_batches`` has it."""


class SegmentUnreadable(TidelineError):
    """The objects of a merged segment contradict its metadata or each other."""


@dataclass(frozen=True, slots=True)
class SegmentBatch(BatchCoordinates):
    """A batch in the ``.log`` of a merged segment, which lies in the bucket of the segments."""


class SegmentReader:
    """Finds batches and records in merged segments.

    Every method raises :class:`SegmentUnreadable`, ``ObjectMissing`` when the segment was deleted
    meanwhile, ``ObjectStoreUnavailable`` or ``ObjectStoreRefused``.
    """

    def __init__(self, objects: ObjectReader, search: RecordSearch) -> None:
        self._objects = objects
        self._search = search

    async def batches(
        self, segment: SegmentCoordinates, fetch_offset: int, max_bytes: int
    ) -> tuple[SegmentBatch, ...]:
        """Batches from the one that holds ``fetch_offset`` (inclusive) on: at least one, however
        large, then as many as ``max_bytes``, one GET and :data:`MAX_BATCHES` allow.

        Their bytes are in memory afterwards, unless the cache is smaller than one GET.
        """
        cursor = _Cursor(
            self._objects,
            segment,
            await self._entry(segment, fetch_offset),
            first_get=min(max(READ_AHEAD, max_bytes + SLACK), MAX_GET),
        )
        found: list[SegmentBatch] = []
        left = max_bytes
        while len(found) < MAX_BATCHES and not (found and not cursor.at_hand(HEADER_BYTES)):
            header = await cursor.next()
            if header is None:
                break
            if header.last_offset < fetch_offset:
                continue
            if found and (header.size > left or not cursor.holds(header)):
                break
            if not found:
                await cursor.load(header)
            found.append(_coordinates(segment, header))
            left -= header.size
        if not found:
            raise _unreadable(segment, f"no batch holds offset {fetch_offset}")
        return tuple(found)

    async def first_at_or_after(
        self, segment: SegmentCoordinates, timestamp: int, start_offset: int, searcher: Searcher
    ) -> FoundRecord | None:
        """The first record at or after ``timestamp`` (ms) and at or after ``start_offset``."""
        entry = await self._entry_for_timestamp(segment, timestamp, start_offset)
        cursor = _Cursor(self._objects, segment, entry, first_get=SCAN_BYTES, growth=SCAN_GROWTH)
        while (header := await cursor.next()) is not None:
            if header.max_timestamp < timestamp or header.last_offset < start_offset:
                continue
            body = partial(cursor.body, header)
            record = await self._within(searcher, timestamp, segment, header, start_offset, body)
            if record is not None:
                return record
        return None

    async def of_max_timestamp(
        self, segment: SegmentCoordinates, start_offset: int, searcher: Searcher
    ) -> FoundRecord | None:
        """The first record with the largest timestamp among those from ``start_offset`` on.

        Only when the largest of the whole segment lies below ``start_offset`` are the headers of
        the rest read.
        """
        found = await self.first_at_or_after(segment, segment.max_timestamp, start_offset, searcher)
        if found is not None or start_offset <= segment.base_offset:
            return found
        entry = await self._entry(segment, start_offset)
        cursor = _Cursor(self._objects, segment, entry, first_get=SCAN_BYTES, growth=SCAN_GROWTH)
        best: BatchHeader | None = None
        while (header := await cursor.next()) is not None:
            if header.base_offset < start_offset <= header.last_offset:
                body = partial(cursor.body, header)
                found = await self._within(searcher, None, segment, header, start_offset, body)
            elif header.base_offset >= start_offset:
                best = header if best is None or header.max_timestamp > best.max_timestamp else best
        if best is None:
            return found
        part = ByteRange(
            segment.object_key_stem + SegmentFile.LOG, best.position, best.end, tiered=True
        )
        body = partial(self._objects.whole, part)
        return largest(
            found,
            await self._within(searcher, best.max_timestamp, segment, best, start_offset, body),
        )

    async def _within(
        self,
        searcher: Searcher,
        timestamp: int | None,
        segment: SegmentCoordinates,
        header: BatchHeader,
        start: int,
        body: Callable[[], Awaitable[memoryview]],
    ) -> FoundRecord | None:
        """What :func:`~tideline.kafka.record_search.find_record` finds in the batch of
        ``header``."""
        base, not_before = header.base_offset, max(start, header.base_offset)
        if header.timestamp_type == LOG_APPEND_TIME:
            return found_by_append_time(
                header.max_timestamp, timestamp, base_offset=base, not_before=not_before
            )
        key = segment.object_key_stem + SegmentFile.LOG
        asked = BatchSearch(key, True, header.position, base, not_before, timestamp)
        return await self._search.find(searcher, asked, body)

    async def _entry(self, segment: SegmentCoordinates, offset: int) -> OffsetPosition:
        index = await self._index(segment, SegmentFile.OFFSET_INDEX, segment.offset_index_bytes)
        try:
            return lookup_offset(index, _extent(segment), offset)
        except CorruptIndex as error:
            raise _unreadable(segment, str(error)) from error

    async def _entry_for_timestamp(
        self, segment: SegmentCoordinates, timestamp: int, start_offset: int
    ) -> OffsetPosition:
        """The index entry from which on the first record at or after ``timestamp`` is looked for.

        A time entry names the largest timestamp so far and its offset. It is written with the
        first offset entry after that maximum has grown, so all records before the offset entry
        that precedes it are older than it says. The search begins at that offset entry.

        Kafka begins at the last time entry up to ``timestamp``, and so does this where none
        reaches it. Elsewhere that entry can be far away: after one early record from the future
        the maximum does not grow for long, and no entry is written.
        """
        times = await self._index(segment, SegmentFile.TIME_INDEX, segment.time_index_bytes)
        try:
            before = lookup_timestamp(times, _extent(segment), timestamp)
        except CorruptIndex as error:
            raise _unreadable(segment, str(error)) from error
        count = len(times) // TIME_ENTRY.size
        reached = bisect_left(range(count), timestamp, key=lambda n: _time_entry(times, n)[0])
        offset = before.offset
        if reached < count:
            _, relative_offset = _time_entry(times, reached)
            offset = segment.base_offset + relative_offset - 1
        return await self._entry(segment, max(offset, start_offset))

    async def _index(self, segment: SegmentCoordinates, file: SegmentFile, size: int) -> memoryview:
        return await self._objects.whole(
            ByteRange(segment.object_key_stem + file, 0, size, tiered=True)
        )


class _Cursor:
    """Walks over a ``.log``, batch by batch, from the start of one on."""

    def __init__(
        self,
        objects: ObjectReader,
        segment: SegmentCoordinates,
        entry: OffsetPosition,
        *,
        first_get: int,
        growth: int = 1,
    ) -> None:
        self._objects = objects
        self._segment = segment
        self._get_bytes, self._growth = first_get, growth
        self._at = entry.position
        self._indexed_end = entry.offset if entry.position else None
        self._next = -1 if entry.position else segment.base_offset
        """Base offset of the next batch; -1: any in the segment."""
        self._piece, self._piece_start = memoryview(b""), 0

    async def next(self) -> BatchHeader | None:
        """The next batch, its position counted from the start of the ``.log``."""
        if self._next > self._segment.last_offset:
            if self._at != self._segment.size_bytes:
                raise _unreadable(
                    self._segment, f"bytes follow its last batch, which ends at {self._at}"
                )
            return None
        try:
            header = parse_header(await self._bytes(self._at, HEADER_BYTES), 0)
        except InvalidBatch as error:
            raise _unreadable(self._segment, f"byte {self._at}: {error}") from error
        header = header._replace(position=self._at)
        self._check(header)
        self._indexed_end = None
        self._at, self._next = header.end, header.last_offset + 1
        return header

    def _check(self, header: BatchHeader) -> None:
        segment = self._segment
        base = segment.base_offset if self._next < 0 else self._next
        follows = header.base_offset == base if self._next >= 0 else header.base_offset >= base
        if not follows or not header.base_offset <= header.last_offset <= segment.last_offset:
            raise _unreadable(
                segment,
                f"the batch at byte {header.position} says offsets {header.base_offset} to "
                f"{header.last_offset} where {base} begins",
            )
        if self._indexed_end not in (None, header.last_offset):
            raise _unreadable(
                segment,
                f"the batch at byte {header.position} ends at offset {header.last_offset}, at "
                f"{self._indexed_end} by the index",
            )

    def at_hand(self, size: int) -> bool:
        """Whether ``size`` more bytes can be read without a GET."""
        return self._at + size <= self._piece_start + len(self._piece)

    def holds(self, header: BatchHeader) -> bool:
        """Whether the whole batch is in memory."""
        return header.end <= self._piece_start + len(self._piece)

    async def load(self, header: BatchHeader) -> None:
        """Have the whole batch in memory that :meth:`next` has answered last."""
        await self._bytes(header.position, header.size)

    async def body(self, header: BatchHeader) -> memoryview:
        """The whole batch that :meth:`next` has answered last, its CRC checked."""
        body = (await self._bytes(header.position, header.size))[: header.size]
        if not verify_crc(body, header._replace(position=0)):
            raise _unreadable(
                self._segment, f"the batch at byte {header.position} is not its CRC's"
            )
        return body

    async def _bytes(self, start: int, size: int) -> memoryview:
        """At least ``size`` bytes from ``start`` on."""
        left = self._segment.size_bytes - start
        if size > left:
            raise _unreadable(
                self._segment, f"a batch at byte {start} needs {size} bytes, {left} are left"
            )
        if not self._piece_start <= start or start + size > self._piece_start + len(self._piece):
            wanted = min(left, max(size, self._get_bytes))
            part = _range(self._segment, SegmentFile.LOG, start, start + wanted)
            self._piece, self._piece_start = await self._objects.at_least(part, size), start
            self._get_bytes = min(self._get_bytes * self._growth, MAX_GET)
        return self._piece[start - self._piece_start :]


def _time_entry(index: memoryview, number: int) -> tuple[int, int]:
    """Timestamp (ms) and offset, relative to the segment's first, of one entry."""
    timestamp, relative_offset = TIME_ENTRY.unpack_from(index, number * TIME_ENTRY.size)
    return timestamp, relative_offset


def _range(segment: SegmentCoordinates, file: SegmentFile, start: int, end: int) -> ByteRange:
    return ByteRange(segment.object_key_stem + file, start, end, tiered=True)


def _coordinates(segment: SegmentCoordinates, header: BatchHeader) -> SegmentBatch:
    return SegmentBatch(
        object_key=segment.object_key_stem + SegmentFile.LOG,
        byte_offset=header.position,
        byte_size=header.size,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        timestamp_type=header.timestamp_type,
        append_time=header.max_timestamp,
        max_timestamp=header.max_timestamp,
    )


def _extent(segment: SegmentCoordinates) -> SegmentExtent:
    return SegmentExtent(segment.base_offset, segment.last_offset, segment.size_bytes)


def _unreadable(segment: SegmentCoordinates, why: str) -> SegmentUnreadable:
    return SegmentUnreadable(
        f"segment {segment.object_key_stem} with offsets {segment.base_offset} to "
        f"{segment.last_offset}: {why}; its objects are damaged, restore them"
    )
