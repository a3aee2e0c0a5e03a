"""The part of a fetch that lies at or past B0."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from tideline.control_plane.model import BatchCoordinates, FindBatchesRequest, FoundBatches
from tideline.domain.ids import TopicIdPartition
from tideline.domain.request_handling import FETCH_FAILURE, FIND_ERRORS, KafkaErrorCode
from tideline.errors import TidelineError
from tideline.gateway.handlers.fetch_parts import Asked, PartitionAnswer
from tideline.gateway.handlers.versioned import named
from tideline.gateway.suffix_batches import ZSTD_SINCE_FETCH, uses_zstd
from tideline.gateway.tracked import TrackedParts
from tideline.gateway.tracked_metrics import DISKLESS_READS

log = structlog.get_logger()
FIND_PATIENCE_S = 2.0
"""While Postgres is away, the prefix partitions of the same fetch wait no longer than this."""


class SuffixSide:
    """Finds coordinates in the control plane, then reads bytes once for the whole answer."""

    def __init__(self, parts: TrackedParts, version: int) -> None:
        self._parts = parts
        self._version = version

    async def find(self, asked: Sequence[Asked], max_bytes: int) -> dict[Asked, PartitionAnswer]:
        """What there is now, without reading a byte of it."""
        if not asked:
            return {}
        if self._parts.tracking.stopped is not None:
            return {one: PartitionAnswer.refusal(FETCH_FAILURE) for one in asked}
        requests = [
            FindBatchesRequest(_log(one), one.offset, max(1, min(one.max_bytes, max_bytes)))
            for one in asked
        ]
        try:
            async with asyncio.timeout(FIND_PATIENCE_S):
                found = await self._parts.reader.find(requests)
        except (TidelineError, TimeoutError) as error:
            log.warning("fetch.suffix_not_found", error=str(error) or "no answer in time")
            return {one: PartitionAnswer.refusal(FETCH_FAILURE) for one in asked}
        return {one: self._found(one, rows) for one, rows in zip(asked, found, strict=True)}

    def _found(self, asked: Asked, rows: FoundBatches) -> PartitionAnswer:
        at = _log(asked)
        code = named(FIND_ERRORS.get(rows.error, FETCH_FAILURE), asked.at.key)
        if code is not KafkaErrorCode.NONE:
            return PartitionAnswer.refusal(code)
        self._parts.watermarks.heard(at, rows.high_watermark)
        route = self._parts.tracking.partition(at.topic_id, at.partition)
        return PartitionAnswer(
            high_watermark=rows.high_watermark,
            last_stable_offset=rows.high_watermark,
            log_start=rows.log_start,
            found=rows,
            epoch=route.boundary_epoch,
            expected_bytes=sum(batch.byte_size for batch in rows.batches),
        )

    async def wait(self, found: Mapping[Asked, PartitionAnswer], timeout_s: float) -> bool:
        """Until there is more than was found, or the time is over."""
        positions = {_log(one): answer.high_watermark for one, answer in found.items()}
        return await self._parts.watermarks.wait(positions, timeout_s)

    async def read(self, answers: Mapping[Asked, PartitionAnswer], max_bytes: int) -> None:
        """Fill in the records of what was found, ``max_bytes`` in all, but at least one batch."""
        chosen: list[tuple[PartitionAnswer, list[BatchCoordinates]]] = []
        left, first = max_bytes, all(not a.size or a.found for a in answers.values())
        for answer in answers.values():
            if answer.found is None:
                continue
            batches = []
            for batch in answer.found.batches:
                if batch.byte_size > left and not first:
                    break
                batches.append(batch)
                left -= batch.byte_size
                first = False
            if batches:
                chosen.append((answer, batches))
        if not chosen:
            return
        DISKLESS_READS.inc(len(chosen))
        try:
            bodies = await self._parts.reader.read(
                [(batches, answer.epoch) for answer, batches in chosen]
            )
        except TidelineError as error:
            log.warning("fetch.suffix_not_read", error=str(error))
            for answer, _ in chosen:
                answer.fail(FETCH_FAILURE)
            return
        for (answer, _), body in zip(chosen, bodies, strict=True):
            if self._version < ZSTD_SINCE_FETCH and uses_zstd(body):
                answer.fail(KafkaErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
            else:
                answer.records = body


def _log(asked: Asked) -> TopicIdPartition:
    assert asked.at.log is not None
    return asked.at.log
