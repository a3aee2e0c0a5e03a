"""Batches of the suffix, as consumers get them.

Coordinates come from the control plane, bytes from the cache or by ranged, coalesced GETs. What
always holds: every batch carries the offset that its commit assigned and the leader epoch at B0,
whoever leads the partition now (schedule 8); nothing below B0 is ever read here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tideline.control_plane.model import (
    BatchCoordinates,
    FindBatchesRequest,
    FoundBatches,
    ListOffsetsKind,
    SuffixOffset,
)
from tideline.domain.ids import TopicIdPartition
from tideline.gateway.cache import ObjectCache
from tideline.gateway.suffix_batches import FoundRecord, first_record_at
from tideline.gateway.tracked_metrics import CACHE_HITS
from tideline.kafka.batches import patch
from tideline.object_store import ObjectStore

COALESCE_GAP = 64 * 1024
"""bytes; closer ranges of one object are read by one GET: a request costs more than these bytes."""
MAX_GET = 8 * 1024 * 1024
PARALLEL_GETS = 8
LOG_APPEND_TIME = "LogAppendTime"


class ReaderControlPlane(Protocol):
    async def find_batches(self, requests: Sequence[FindBatchesRequest]) -> list[FoundBatches]: ...

    async def list_offsets(
        self, log: TopicIdPartition, kind: ListOffsetsKind, timestamp: int | None = None
    ) -> SuffixOffset: ...


@dataclass(frozen=True, slots=True)
class Span:
    """``[start, end)`` of one object."""

    key: str
    start: int
    end: int


def coalesce(batches: Iterable[BatchCoordinates]) -> list[Span]:
    """The fewest GETs that hold all ``batches``, each at most ``MAX_GET`` unless one batch is
    larger, over gaps of at most ``COALESCE_GAP`` bytes."""
    spans: list[Span] = []
    for batch in sorted(batches, key=lambda b: (b.object_key, b.byte_offset)):
        start, end = batch.byte_offset, batch.byte_offset + batch.byte_size
        last = spans[-1] if spans else None
        if (
            last is not None
            and last.key == batch.object_key
            and start - last.end <= COALESCE_GAP
            and max(end, last.end) - last.start <= MAX_GET
        ):
            spans[-1] = Span(last.key, last.start, max(end, last.end))
        else:
            spans.append(Span(batch.object_key, start, end))
    return spans


class SuffixReader:
    """Reads what ``find_batches`` found."""

    def __init__(
        self, store: ObjectStore, control_plane: ReaderControlPlane, cache: ObjectCache
    ) -> None:
        self._store = store
        self._control_plane = control_plane
        self._cache = cache
        self._slots = asyncio.Semaphore(PARALLEL_GETS)
        self._under_way: dict[Span, asyncio.Task[bytes]] = {}

    async def find(self, requests: Sequence[FindBatchesRequest]) -> list[FoundBatches]:
        """Coordinates, without reading a byte of data. Raises as the control plane does."""
        return await self._control_plane.find_batches(requests)

    async def read(self, wanted: Sequence[tuple[Sequence[BatchCoordinates], int]]) -> list[bytes]:
        """For each (coordinates, leader epoch at B0): the batches, patched and concatenated.

        Raises ``ObjectStoreUnavailable`` or ``ObjectStoreRefused`` if any byte is missing.
        """
        everything = [batch for batches, _ in wanted for batch in batches]
        pieces = await self._pieces(everything)
        return [
            b"".join(_as_fetched(pieces[batch], batch, epoch) for batch in batches)
            for batches, epoch in wanted
        ]

    async def first_at_or_after(
        self, log: TopicIdPartition, timestamp: int
    ) -> tuple[SuffixOffset, FoundRecord | None]:
        """The first record of the suffix at or after ``timestamp`` (ms), smallest offset first."""
        answer = await self._control_plane.list_offsets(
            log, kind=ListOffsetsKind.TIMESTAMP, timestamp=timestamp
        )
        return answer, await self._record_in(answer.batch, timestamp)

    async def record_of_max_timestamp(
        self, log: TopicIdPartition
    ) -> tuple[SuffixOffset, FoundRecord | None]:
        """The first record that has the largest timestamp of the suffix."""
        answer = await self._control_plane.list_offsets(log, kind=ListOffsetsKind.MAX_TIMESTAMP)
        highest = answer.batch.max_timestamp if answer.batch else answer.timestamp
        return answer, await self._record_in(answer.batch, highest)

    async def _record_in(
        self, batch: BatchCoordinates | None, timestamp: int
    ) -> FoundRecord | None:
        if batch is None:
            return None
        append_time = batch.append_time if batch.timestamp_type == LOG_APPEND_TIME else None
        if append_time is not None:
            return first_record_at(
                b"", timestamp, base_offset=batch.base_offset, log_append_time=append_time
            )
        piece = (await self._pieces([batch]))[batch]
        return await asyncio.to_thread(
            first_record_at, piece, timestamp, base_offset=batch.base_offset
        )

    async def _pieces(
        self, batches: Sequence[BatchCoordinates]
    ) -> Mapping[BatchCoordinates, memoryview]:
        pieces: dict[BatchCoordinates, memoryview] = {}
        missing: list[BatchCoordinates] = []
        for batch in batches:
            cached = self._cache.get(batch.object_key, batch.byte_offset, batch.byte_size)
            if cached is None:
                missing.append(batch)
            else:
                pieces[batch] = cached
        CACHE_HITS.labels("cache").inc(len(pieces))
        CACHE_HITS.labels("s3").inc(len(missing))
        spans = coalesce(missing)
        bodies = await asyncio.gather(*(self._get(span) for span in spans))
        for batch in missing:
            for span, body in zip(spans, bodies, strict=True):
                end = batch.byte_offset + batch.byte_size
                if (
                    span.key == batch.object_key
                    and span.start <= batch.byte_offset
                    and end <= span.end
                ):
                    pieces[batch] = memoryview(body)[
                        batch.byte_offset - span.start : end - span.start
                    ]
                    break
        return pieces

    async def _get(self, span: Span) -> bytes:
        """One GET per span at a time, however many consumers want it."""
        task = self._under_way.get(span)
        if task is None:
            task = asyncio.create_task(self._fetch(span), name="suffix-get")
            self._under_way[span] = task
            task.add_done_callback(lambda _: self._under_way.pop(span, None))
        return await asyncio.shield(task)

    async def _fetch(self, span: Span) -> bytes:
        async with self._slots:
            body = await self._store.get(span.key, span.start, span.end - span.start)
        self._cache.put(span.key, span.start, body)
        return body


def _as_fetched(piece: memoryview, batch: BatchCoordinates, leader_epoch: int) -> bytearray:
    copy = bytearray(piece)
    append_time = batch.append_time if batch.timestamp_type == LOG_APPEND_TIME else None
    patch(copy, batch.base_offset, leader_epoch, append_time)
    return copy
