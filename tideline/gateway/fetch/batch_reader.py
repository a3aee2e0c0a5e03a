"""The bytes of batches whose coordinates are known, each partition by itself.

What always holds: a batch that is answered is the one that was committed (its size, its count of
offsets, its CRC), and what one partition's objects lack is that partition's own trouble: the others
of the same answer are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.model import BatchCoordinates
from tideline.domain.topic_configs import LOG_APPEND_TIME
from tideline.errors import TidelineError
from tideline.gateway.fetch.object_reader import ObjectReader
from tideline.gateway.fetch.segment_reader import SegmentBatch
from tideline.gateway.metrics import CACHE_HITS
from tideline.kafka.batches import (
    START_BYTES,
    Buffer,
    InvalidBatch,
    is_batch,
    parse_at,
    patch,
    patched_start,
    verify_crc,
)
from tideline.object_store import (
    ObjectMissing,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
    ObjectTruncated,
)
from tideline.object_store.byte_ranges import ByteRange, ReadRanges, coalesce


class BatchDamaged(TidelineError):
    """What lies where a batch was put is not that batch."""


def why_unreadable(failure: TidelineError) -> str:
    """The label of a read that failed: ``unavailable`` passes by itself, the others do not."""
    match failure:
        case ObjectMissing():
            return "missing"
        case ObjectTruncated():
            return "damaged"
        case ObjectStoreUnavailable() | ControlPlaneUnavailable():
            return "unavailable"
        case ObjectStoreRefused():
            return "refused"
        case _:
            return "damaged"


@dataclass(frozen=True, slots=True)
class ReadBatches:
    """Batches of one partition, as its consumers get them."""

    records: bytes
    failure: TidelineError | None = None
    """Why ``records`` ends before the last batch that was asked for."""


Piece: TypeAlias = memoryview | TidelineError
_FROM_CACHE, _FROM_S3 = CACHE_HITS.labels("cache"), CACHE_HITS.labels("s3")


def byte_range(batch: BatchCoordinates) -> ByteRange:
    """Where the batch lies, in a WAL object or in a merged segment."""
    end = batch.byte_offset + batch.byte_size
    return ByteRange(batch.object_key, batch.byte_offset, end, isinstance(batch, SegmentBatch))


class BatchReader:
    """Reads batches out of WAL objects and merged segments."""

    def __init__(self, objects: ObjectReader) -> None:
        self._objects = objects

    async def read(
        self, wanted: Sequence[tuple[Sequence[BatchCoordinates], int]]
    ) -> list[ReadBatches]:
        """For each (coordinates, leader epoch at B0): the batches up to the first that cannot be
        read, patched and concatenated. Raises nothing of the object store."""
        pieces = await self._pieces([batch for batches, _ in wanted for batch in batches])
        found, end = [], 0
        for batches, epoch in wanted:
            start, end = end, end + len(batches)
            own = pieces[start:end]
            if own and _may_be_the_neighbours_fault(own[0]):
                own = await self._alone(batches)
            found.append(self._as_fetched(batches, epoch, own))
        return found

    async def piece(self, batch: BatchCoordinates) -> memoryview:
        """The bytes of one batch as they were put. Raises ``ObjectMissing``,
        ``ObjectStoreUnavailable``, ``ObjectStoreRefused`` or :class:`BatchDamaged`."""
        (piece,) = await self._pieces([batch])
        if isinstance(piece, TidelineError):
            raise piece
        self._must_be(piece, batch)
        return piece

    async def _alone(self, batches: Sequence[BatchCoordinates]) -> list[Piece]:
        """What a GET did not get that joined the ranges of several batches: those of one partition
        without the others, then the first alone, so that its consumers come to the damage."""
        pieces = await self._pieces(batches)
        if _may_be_the_neighbours_fault(pieces[0]) and len(batches) > 1:
            pieces[:1] = await self._pieces(batches[:1])
        return pieces

    async def _pieces(self, batches: Sequence[BatchCoordinates]) -> list[Piece]:
        """The bytes of each, or why there are none."""
        cached = self._objects.all_cached(
            (one.object_key, isinstance(one, SegmentBatch), one.byte_offset, one.byte_size)
            for one in batches
        )
        lacking = sum(piece is None for piece in cached)
        _FROM_CACHE.inc(len(cached) - lacking)
        if not lacking:
            return [piece for piece in cached if piece is not None]
        parts = list(map(byte_range, batches))
        missing = [part for part, piece in zip(parts, cached, strict=True) if piece is None]
        _FROM_S3.inc(len(missing))
        gets = coalesce(missing)
        bodies = await asyncio.gather(*map(self._got, gets))
        read = ReadRanges(
            {part: b for part, b in zip(gets, bodies, strict=True) if isinstance(b, bytes)}
        )
        failed = {
            (part.key, part.tiered): b
            for part, b in zip(gets, bodies, strict=True)
            if not isinstance(b, bytes)
        }

        def found(part: ByteRange) -> Piece:
            try:
                return read.slice(part)
            except KeyError:
                return failed[part.key, part.tiered]

        return [
            found(part) if piece is None else piece
            for part, piece in zip(parts, cached, strict=True)
        ]

    async def _got(self, part: ByteRange) -> bytes | TidelineError:
        try:
            body = await self._objects.get(part)
        except TidelineError as error:
            return error
        if len(body) != part.size:
            return ObjectTruncated(f"{part.key}: {len(body)} bytes came, not {part.size}")
        return body

    def _as_fetched(
        self,
        batches: Sequence[BatchCoordinates],
        leader_epoch: int,
        pieces: Sequence[Piece],
    ) -> ReadBatches:
        found: list[Buffer] = []
        for batch, piece in zip(batches, pieces, strict=True):
            if isinstance(piece, TidelineError):
                return ReadBatches(b"".join(found), piece)
            try:
                self._must_be(piece, batch)
            except BatchDamaged as error:
                return ReadBatches(b"".join(found), error)
            if batch.timestamp_type == LOG_APPEND_TIME:
                copy = bytearray(piece)
                patch(copy, batch.base_offset, leader_epoch, batch.append_time)
                found.append(copy)
            else:
                found += (
                    patched_start(batch.base_offset, batch.byte_size, leader_epoch),
                    piece[START_BYTES:],
                )
        return ReadBatches(b"".join(found))

    def _must_be(self, piece: memoryview, batch: BatchCoordinates) -> None:
        """Before anything is patched: patching LogAppendTime would make a wrong CRC right."""
        if is_batch(piece, batch.byte_size, batch.last_offset - batch.base_offset):
            return
        why = _difference(piece, batch)
        if why is not None:
            # It may have been damaged on its way: the next reader asks the store again.
            self._objects.forget(byte_range(batch))
            raise BatchDamaged(
                f"{batch.object_key} [{batch.byte_offset}, "
                f"{batch.byte_offset + batch.byte_size}), offsets {batch.base_offset} to "
                f"{batch.last_offset}: {why}; restore the object, or delete records up to offset "
                f"{batch.last_offset + 1} to get past it"
            )


def _may_be_the_neighbours_fault(piece: Piece) -> bool:
    """Whether the same bytes may be there when they are asked for alone."""
    unlike = isinstance(piece, ObjectMissing)
    return isinstance(piece, ObjectStoreRefused | ObjectTruncated) and not unlike


def _difference(piece: memoryview, batch: BatchCoordinates) -> str | None:
    try:
        header = parse_at(piece, 0)
    except InvalidBatch as error:
        return str(error)
    if header.size != batch.byte_size:
        return f"the batch there has {header.size} bytes"
    if header.last_offset_delta != batch.last_offset - batch.base_offset:
        return f"the batch there ends {header.last_offset_delta} after its first offset"
    return None if verify_crc(piece, header) else "the CRC does not match"
