"""Batches of the suffix, as consumers get them: out of merged segments, then out of WAL objects.

Coordinates come from the control plane, bytes from the cache or by ranged, coalesced GETs. What
always holds: every batch carries the offset that its commit assigned and the leader epoch at B0,
whoever leads the partition now (schedule 8); nothing below B0 is ever read here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import structlog

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import (
    BatchCoordinates,
    FindBatchesRequest,
    FoundBatches,
    ListOffsetsKind,
    SuffixOffset,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.topic_configs import LOG_APPEND_TIME
from tideline.errors import TidelineError
from tideline.gateway.fetch.batch_reader import BatchReader, ReadBatches, why_unreadable
from tideline.gateway.fetch.lookups import Lookups
from tideline.gateway.fetch.object_reader import (
    PARALLEL_SEGMENT_GETS,
    ObjectCache,
    ObjectReader,
)
from tideline.gateway.fetch.record_search import BatchSearch, RecordSearch, Searcher
from tideline.gateway.fetch.segment_reader import SegmentReader
from tideline.gateway.metrics import SUFFIX_UNREADABLE
from tideline.gateway.unpacking import Unpacking
from tideline.kafka.record_search import FoundRecord, found_by_append_time, largest
from tideline.object_store import ObjectMissing, ObjectStoreUnavailable
from tideline.object_store.async_store import ObjectStore

log = structlog.get_logger()
SEARCH_PATIENCE_S = 10.0
"""A search by timestamp reads a few ranges; only after retention has cut through a segment more."""
UNREADABLE = "SEGMENT_UNREADABLE"
"""``FoundBatches.error`` of a merged segment that cannot be read: a storage error to a consumer."""


class HybridReadDisabled(TidelineError):
    """``inkless.hybrid.read.enabled`` is false and a merged segment would have to be read."""


DISABLED = (
    "neither merged segments nor prefixes that remote storage holds are read: "
    "TIDELINE_HYBRID_READ_ENABLED is false; consumers of tiered offsets hear KAFKA_STORAGE_ERROR "
    "until it is true"
)
SEGMENTS_PER_ANSWER = 16
"""Merged segments that one answer reads at most: each takes a GET of its index beside its batches.
"""
PAGE_BYTES = 2**31 - 1
"""Of coordinates that are looked through: as many batches as one answer may hold."""
Search: TypeAlias = Callable[[SuffixOffset], Awaitable[FoundRecord | None]]


class SuffixReader:
    """Reads what ``find_batches`` found."""

    def __init__(
        self,
        store: ObjectStore,
        control_plane: ControlPlane,
        cache: ObjectCache,
        unpacking: Unpacking,
        *,
        hybrid_read_enabled: bool = True,
    ) -> None:
        self._control_plane = control_plane
        self._lookups = Lookups(control_plane)
        self._objects = ObjectReader(store, cache)
        self._search = RecordSearch(unpacking)
        self._segments = SegmentReader(self._objects, self._search)
        self._batches = BatchReader(self._objects)
        self._hybrid_read_enabled = hybrid_read_enabled
        self._said_disabled = False

    async def find(self, requests: Sequence[FindBatchesRequest]) -> list[FoundBatches]:
        """Coordinates, without reading a byte of data. Raises as the control plane does."""
        return await self._lookups.find(requests)

    async def locate(
        self, requests: Sequence[FindBatchesRequest], found: Sequence[FoundBatches], max_bytes: int
    ) -> list[FoundBatches]:
        """``found`` with the batches of each merged segment, up to ``max_bytes`` and
        :data:`SEGMENTS_PER_ANSWER` in all: segments past that get none. One that cannot be read
        gets the error :data:`UNREADABLE`; nothing is raised. Bytes are read ahead into the cache.
        """
        located = list(found)
        waiting = [n for n, rows in enumerate(found) if rows.segment is not None]
        waiting = waiting[:SEGMENTS_PER_ANSWER]
        while waiting and max_bytes > 0:
            some, waiting = waiting[:PARALLEL_SEGMENT_GETS], waiting[PARALLEL_SEGMENT_GETS:]
            answers = await asyncio.gather(*(self._located(requests[n], found[n]) for n in some))
            for number, answer in zip(some, answers, strict=True):
                located[number] = answer
                max_bytes -= sum(batch.byte_size for batch in answer.batches)
        return located

    async def _located(
        self, request: FindBatchesRequest, rows: FoundBatches, *, again: bool = True
    ) -> FoundBatches:
        if rows.segment is None:
            return rows
        try:
            self._must_read_segments()
            batches = await self._segments.batches(
                rows.segment, request.fetch_offset, request.max_bytes
            )
            return replace(rows, batches=batches)
        except ObjectMissing as error:
            if again:
                return await self._located_anew(request)
            SUFFIX_UNREADABLE.labels("missing").inc()
            log.error("suffix.segment_is_gone", log=str(request.log), error=str(error))
        except HybridReadDisabled:
            pass
        except TidelineError as error:
            SUFFIX_UNREADABLE.labels(why_unreadable(error)).inc()
            log.warning("suffix.segment_not_read", log=str(request.log), error=str(error))
        return FoundBatches(UNREADABLE, rows.log_start, rows.high_watermark)

    async def _located_anew(self, request: FindBatchesRequest) -> FoundBatches:
        """Retention may have taken the segment after it was found: then it is not found again."""
        try:
            (rows,) = await self._control_plane.find_batches([request])
        except TidelineError as error:
            log.warning("suffix.segment_not_found_again", log=str(request.log), error=str(error))
            return FoundBatches(UNREADABLE, -1, -1)
        return await self._located(request, rows, again=False)

    def may_read_tiered(self) -> bool:
        """``inkless.hybrid.read.enabled``; that it is false is logged once."""
        if not self._hybrid_read_enabled and not self._said_disabled:
            self._said_disabled = True
            log.error("suffix.hybrid_read_disabled", why=DISABLED)
        return self._hybrid_read_enabled

    def _must_read_segments(self) -> None:
        if not self.may_read_tiered():
            raise HybridReadDisabled(DISABLED)

    async def read(
        self, wanted: Sequence[tuple[Sequence[BatchCoordinates], int]]
    ) -> list[ReadBatches]:
        """For each (coordinates, leader epoch at B0): the batches, patched and concatenated, up to
        the first that cannot be read. See :class:`BatchReader`."""
        return await self._batches.read(wanted)

    async def first_at_or_after(
        self, at: TopicIdPartition, timestamp: int, searcher: Searcher
    ) -> tuple[SuffixOffset, FoundRecord | None]:
        """The first record of the suffix at or after ``timestamp`` (ms), smallest offset first.

        Raises as the control plane and the object store do, ``SegmentUnreadable``,
        ``UndecodableBatch``, :class:`HybridReadDisabled`.
        """

        async def search(answer: SuffixOffset) -> FoundRecord | None:
            start, within = answer.suffix_start, partial(self._within, searcher, timestamp)
            for segment in answer.segments:
                self._must_read_segments()
                record = await self._segments.first_at_or_after(segment, timestamp, start, searcher)
                if record is not None:
                    return record
            if answer.batch is None:
                return None
            record = await within(answer.batch, start)
            if record is None:
                # Retention cut through the batch and took the record: the next one is looked for.
                async for batch in self._batches_from(at, answer.batch.last_offset + 1):
                    if batch.max_timestamp >= timestamp:
                        return await within(batch, start)
            return record

        return await self._searched(at, search, ListOffsetsKind.TIMESTAMP, timestamp)

    async def record_of_max_timestamp(
        self, at: TopicIdPartition, searcher: Searcher
    ) -> tuple[SuffixOffset, FoundRecord | None]:
        """The first record that has the largest timestamp of the suffix. Raises as
        :meth:`first_at_or_after`."""

        async def search(answer: SuffixOffset) -> FoundRecord | None:
            start = answer.suffix_start
            found = []
            for segment in answer.segments:
                self._must_read_segments()
                found.append(await self._segments.of_max_timestamp(segment, start, searcher))
            if (batch := answer.batch) is not None:
                record = await self._within(searcher, batch.max_timestamp, batch, start)
                if record is None and batch.base_offset < start:
                    # Retention cut through the batch and took the record.
                    record = await self._largest_from(at, start, searcher)
                # Else it has no record, and no batch of the WAL has: a rebuild has filled it.
                found.append(record)
            return largest(*found)

        return await self._searched(at, search, ListOffsetsKind.MAX_TIMESTAMP)

    async def _searched(
        self,
        at: TopicIdPartition,
        search: Search,
        kind: ListOffsetsKind,
        timestamp: int | None = None,
    ) -> tuple[SuffixOffset, FoundRecord | None]:
        """Once more with fresh coordinates if an object was deleted since they were found."""
        try:
            async with asyncio.timeout(SEARCH_PATIENCE_S):
                answer = await self._control_plane.list_offsets(at, kind, timestamp)
                try:
                    return answer, await search(answer)
                except ObjectMissing:
                    answer = await self._control_plane.list_offsets(at, kind, timestamp)
                    return answer, await search(answer)
        except TimeoutError:
            raise ObjectStoreUnavailable(
                f"a search in {at} did not end within {SEARCH_PATIENCE_S:.0f} s"
            ) from None

    async def _batches_from(
        self, at: TopicIdPartition, offset: int
    ) -> AsyncIterator[BatchCoordinates]:
        """Every WAL batch from ``offset`` on. Raises ``ObjectMissing`` if it is none any more."""
        while True:
            (found,) = await self._control_plane.find_batches(
                [FindBatchesRequest(at, offset, PAGE_BYTES)]
            )
            if found.error != "NONE" or found.segment is not None:
                raise ObjectMissing(f"offset {offset} of {at} was merged or deleted in a search")
            for batch in found.batches:
                yield batch
            if not found.batches:
                return
            offset = found.batches[-1].last_offset + 1

    async def _largest_from(
        self, at: TopicIdPartition, start: int, searcher: Searcher
    ) -> FoundRecord | None:
        """The first record with the largest timestamp among the WAL's from ``start`` on."""
        found: FoundRecord | None = None
        best: BatchCoordinates | None = None
        async for batch in self._batches_from(at, start):
            if batch.base_offset < start:
                found = await self._within(searcher, None, batch, start)
            elif best is None or batch.max_timestamp > best.max_timestamp:
                best = batch
        if best is None:
            return found
        return largest(found, await self._within(searcher, best.max_timestamp, best, start))

    async def _within(
        self, searcher: Searcher, timestamp: int | None, batch: BatchCoordinates, start: int
    ) -> FoundRecord | None:
        """What :func:`~tideline.kafka.record_search.find_record` finds in a batch of the WAL."""
        base, not_before = batch.base_offset, max(start, batch.base_offset)
        if batch.timestamp_type == LOG_APPEND_TIME:
            return found_by_append_time(
                batch.append_time, timestamp, base_offset=base, not_before=not_before
            )
        asked = BatchSearch(batch.object_key, False, batch.byte_offset, base, not_before, timestamp)
        return await self._search.find(searcher, asked, partial(self._batches.piece, batch))
