"""The batches of a piece, one after the other, each checked.

What always holds: a batch that is handed on is whole and has its CRC, reaches into the piece, and
follows the one before it. What is stored otherwise is :class:`TableUnreadable`, which names the
offset; nothing is passed over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, Self
from uuid import UUID

from spark.common.read_ahead import read_ahead
from spark.common.stores import shared_store
from spark.table.ahead import GET_BYTES, Ahead
from spark.table.pieces import Piece, Place, SegmentPart
from spark.table.prefix import APPLICATION
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.model import BatchCoordinates, FoundBatches, SegmentCoordinates
from tideline.domain.table import TableRefused, TableUnreadable
from tideline.domain.topic_configs import LOG_APPEND_TIME
from tideline.kafka.batches import (
    HEADER_BYTES,
    BatchHeader,
    InvalidBatch,
    UnsupportedMagic,
    is_batch,
    parse_header,
    verify_crc,
)
from tideline.kafka.segment_files import SegmentFile
from tideline.kafka.segment_lookup import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    CorruptIndex,
    SegmentExtent,
    lookup_offset,
)
from tideline.object_store.byte_ranges import ByteRange, ReadRanges, coalesce
from tideline.object_store.client import ObjectMissing, ObjectTooShort, ObjectTruncated
from tideline.settings import JobsSettings

MANIFEST = ".rsm-manifest"
"""Beside the log object of a segment by Aiven's plugin, which packs the indexes."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One whole batch. ``base_offset``: where it stands in the log; that of ``header`` may be the
    producer's own, and so may its leader epoch."""

    data: memoryview
    header: BatchHeader
    """Its ``position`` is 0."""
    base_offset: int
    leader_epoch: int
    append_time: int | None
    """ms; of every record under LogAppendTime."""

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.header.last_offset_delta

    @property
    def max_timestamp(self) -> int:
        return self.header.max_timestamp if self.append_time is None else self.append_time


class Objects(Protocol):
    """The part of :class:`tideline.object_store.client.ObjectStoreClient` that is needed."""

    def get(
        self, bucket: str, key: str, start: int | None = None, size: int | None = None
    ) -> bytes: ...


class Scanner:
    """Reads pieces, one at a time; a context, since it may hold a connection to Postgres."""

    def __init__(
        self, settings: JobsSettings, *, not_before: int = -1, store: Objects | None = None
    ) -> None:
        """``not_before``: ms; batches whose records are all older are passed over. ``store``: by
        default the one of ``settings``."""
        self._settings, self._not_before = settings, not_before
        self._store: Objects = store or shared_store(settings)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @cached_property
    def _plane(self) -> JobsControlPlane:
        return self._open.enter_context(connect_jobs(self._settings, application_name=APPLICATION))

    def hold(self, pin: UUID, ttl_ms: int) -> None:
        """Keep what is read from the collection for so long from now on."""
        self._plane.pin_reads(pin, APPLICATION, ttl_ms)

    def batches(self, piece: Piece) -> Iterator[StoredBatch]:
        """Raises :class:`TableUnreadable`, :class:`TableRefused` for offsets that retention has
        removed meanwhile, and as the object store and the control plane do."""
        if piece.segment is not None:
            yield from self._of_segment(piece, piece.segment)
        else:
            yield from self._of_wal(piece)

    # Segments

    def _of_segment(self, piece: Piece, segment: SegmentPart) -> Iterator[StoredBatch]:
        try:
            yield from self._walk(piece, segment, *self._part(piece, segment))
        except CorruptIndex as error:
            raise TableUnreadable(
                f"{piece}: an index of {segment.object_key_stem}: {error}; restore the object"
            ) from error
        except ObjectMissing as error:
            raise TableRefused(
                f"{piece} from offset {piece.start} on: {error}. Retention has removed it, or the "
                "read outlived its pin (option pinMs): read again; if it is gone still, "
                f"`tideline coverage {piece.topic}` tells what is missing"
            ) from error

    def _part(self, piece: Piece, segment: SegmentPart) -> tuple[int, int]:
        """The bytes ``[first, end)`` of the log that begin and end with a batch."""
        whole = segment.parts == 1
        if whole and piece.start <= segment.base_offset and self._not_before < 0:
            return 0, segment.size_bytes
        try:
            index = self._get(segment, SegmentFile.OFFSET_INDEX)
        except ObjectMissing:
            self._store.get(self._bucket, segment.object_key_stem + MANIFEST)
            # Its indexes are packed: the first part is all of it, whoever else asks.
            return (0, segment.size_bytes) if segment.part == 0 else (0, 0)
        extent = SegmentExtent(segment.base_offset, segment.last_offset, segment.size_bytes)
        wanted = max(piece.start, self._by_time(segment))
        begin = lookup_offset(index, extent, min(wanted, segment.last_offset))
        return (
            max(_begin(index, segment, segment.part), begin.position),
            _begin(index, segment, segment.part + 1),
        )

    def _by_time(self, segment: SegmentPart) -> int:
        """An offset whose index entry has only older records before it.

        A time entry names the largest timestamp so far. It is written with the first offset entry
        after that has grown, so that all records before the offset entry that precedes it are
        older than it says.
        """
        if self._not_before < 0:
            return segment.base_offset
        try:
            times = self._get(segment, SegmentFile.TIME_INDEX)
        except ObjectMissing:
            return segment.base_offset
        count, rest = divmod(len(times), TIME_ENTRY.size)
        if rest:
            raise CorruptIndex(f"the time index has {len(times)} bytes")

        def entry(number: int) -> tuple[int, int]:
            timestamp, relative = TIME_ENTRY.unpack_from(times, number * TIME_ENTRY.size)
            return timestamp, relative

        reached = bisect_left(range(count), self._not_before, key=lambda n: entry(n)[0])
        if not count:
            return segment.base_offset
        relative = entry(min(reached, count - 1))[1]
        return max(segment.base_offset, segment.base_offset + relative - 1)

    def _walk(
        self, piece: Piece, segment: SegmentPart, first: int, end: int
    ) -> Iterator[StoredBatch]:
        if first >= end:
            return
        key, position = segment.object_key_stem + SegmentFile.LOG, first
        follows = segment.base_offset if first == 0 else -1
        with closing(Ahead(self._getter(key), first, end)) as log:
            while position < end:
                try:
                    header = parse_header(log.peek(HEADER_BYTES), 0)
                    if header.size > end - position:
                        raise InvalidBatch(
                            f"a batch says {header.size} bytes, {end - position} are left"
                        )
                    data = log.peek(header.size)[: header.size]
                except UnsupportedMagic as error:
                    raise _old_format(piece, log.peek(8), error) from error
                except (InvalidBatch, ObjectTooShort, ObjectTruncated) as error:
                    raise _damaged(
                        piece, key, position, max(follows, piece.start), error
                    ) from error
                stored = self._checked(piece, segment, key, position, follows, header, data)
                position += header.size
                follows = stored.last_offset + 1
                if stored.base_offset >= piece.end:
                    return
                if follows > piece.start and stored.max_timestamp >= self._not_before:
                    yield stored
                log.skip(header.size)

    def _checked(
        self,
        piece: Piece,
        segment: SegmentPart,
        key: str,
        position: int,
        follows: int,
        header: BatchHeader,
        data: memoryview,
    ) -> StoredBatch:
        why = None
        at = header.base_offset
        gap = piece.place.is_dense and 0 <= follows < at
        first = max(follows, segment.base_offset)
        if gap or not first <= at <= header.last_offset <= segment.last_offset:
            why = f"the batch there says offsets {at} to {header.last_offset}"
            at = max(follows, piece.start)
        elif not verify_crc(data, header):
            why = f"the CRC of the batch with offsets {at} to {header.last_offset} does not match"
        if why is not None:
            raise _damaged(piece, key, position, at, why)
        own = header.partition_leader_epoch
        return StoredBatch(
            data, header, header.base_offset,
            own if piece.leader_epoch is None else piece.leader_epoch,
            header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else None,
        )  # fmt: skip

    @property
    def _bucket(self) -> str:
        return self._settings.s3_tiered_bucket

    def _get(self, segment: SegmentPart, file: SegmentFile) -> bytes:
        return self._store.get(self._bucket, segment.object_key_stem + file)

    def _getter(self, key: str) -> Callable[[int, int], bytes]:
        return lambda start, end: self._store.get(self._bucket, key, start, end - start)

    # WAL

    def _of_wal(self, piece: Piece) -> Iterator[StoredBatch]:
        """Where its batches lie is asked page by page: what was merged since is read from there."""
        offset = piece.start
        while offset < piece.end:
            found = _found(self._plane, piece, offset)
            if found.segment is not None:
                part = _part_of(found.segment)
                yield from self._of_segment(_moved(piece, part, offset), part)
                offset = part.last_offset + 1
            else:
                page = [b for b in found.batches if b.base_offset < piece.end]
                yield from self._of_page(piece, page)
                offset = page[-1].last_offset + 1

    def _of_page(self, piece: Piece, page: list[BatchCoordinates]) -> Iterator[StoredBatch]:
        wanted = [b for b in page if b.max_timestamp >= self._not_before]
        parts = [
            ByteRange(b.object_key, b.byte_offset, b.byte_offset + b.byte_size) for b in wanted
        ]
        bucket = self._settings.s3_bucket
        try:
            wanted_ranges = list(coalesce(parts))
            bodies = read_ahead(
                wanted_ranges, lambda p: self._store.get(bucket, p.key, p.start, p.size)
            )
            read = ReadRanges(dict(zip(wanted_ranges, bodies, strict=True)))
        except (ObjectMissing, ObjectTooShort, ObjectTruncated) as error:
            raise TableUnreadable(
                f"{piece}: a batch between offsets {wanted[0].base_offset} and "
                f"{wanted[-1].last_offset}: {error}; restore the object"
            ) from error
        for batch, part in zip(wanted, parts, strict=True):
            data = read.slice(part)
            if not is_batch(data, batch.byte_size, batch.last_offset - batch.base_offset):
                raise _damaged(
                    piece, batch.object_key, batch.byte_offset, batch.base_offset,
                    f"what lies there is not the batch with offsets {batch.base_offset} to "
                    f"{batch.last_offset}, or fails its CRC",
                )  # fmt: skip
            yield StoredBatch(
                data, parse_header(data, 0), batch.base_offset, piece.leader_epoch or 0,
                batch.append_time if batch.timestamp_type == LOG_APPEND_TIME else None,
            )  # fmt: skip


def _begin(index: bytes, segment: SegmentPart, part: int) -> int:
    """The byte of the log at which a part begins: the first batch at or behind its share that the
    index names. Neighbours agree on it, since they ask the same."""
    if part in (0, segment.parts):
        return 0 if part == 0 else segment.size_bytes
    wanted, count = segment.bytes_from(part), len(index) // OFFSET_ENTRY.size

    def position(number: int) -> int:
        return int(OFFSET_ENTRY.unpack_from(index, number * OFFSET_ENTRY.size)[1])

    first = bisect_left(range(count), wanted, key=position)
    return position(first) if first < count else segment.size_bytes


def _found(plane: JobsControlPlane, piece: Piece, offset: int) -> FoundBatches:
    found = plane.find_batches(piece.log, offset, GET_BYTES)
    if found.error == "NONE" and (found.batches or found.segment is not None):
        return found
    where = f"{piece.topic}-{piece.partition} at offset {offset}"
    if found.error in ("OFFSET_OUT_OF_RANGE", "TOPIC_DELETED", "UNKNOWN_LOG"):
        raise TableRefused(
            f"{where}: {found.error}, the log begins at {found.log_start} now: retention or a "
            "deletion has removed what was planned; read again"
        )
    raise TableUnreadable(
        f"{where}: Postgres knows no batch there ({found.error}); "
        f"`tideline status {piece.topic}` and docs/failures.md"
    )


def _part_of(segment: SegmentCoordinates) -> SegmentPart:
    return SegmentPart(
        segment.object_key_stem, segment.base_offset, segment.last_offset, segment.size_bytes
    )


def _moved(piece: Piece, part: SegmentPart, offset: int) -> Piece:
    """The rest of ``piece`` from ``offset`` on, as far as the segment goes that it is in now."""
    return replace(
        piece, place=Place.MERGED, start=offset, end=min(piece.end, part.last_offset + 1),
        segment=part,
    )  # fmt: skip


def _old_format(piece: Piece, start: memoryview, error: Exception) -> TableUnreadable:
    offset = int.from_bytes(start[:8], "big")
    return TableUnreadable(
        f"{piece}: offset {offset} is in the format of before Kafka 0.11 ({error}), which the "
        "table does not read; consumers do. Begin behind it: startingOffsets"
    )


def _damaged(piece: Piece, key: str, position: int, offset: int, why: object) -> TableUnreadable:
    return TableUnreadable(
        f"{piece.topic}-{piece.partition}: offset {offset}, byte {position} of {key}: {why}; "
        "restore the object (if its log is compressed or encrypted by a plugin, the table cannot "
        "read it)"
    )
