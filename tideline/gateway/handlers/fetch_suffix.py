"""The part of a fetch that lies at or past B0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tideline.control_plane.model import BatchCoordinates, FindBatchesRequest, FoundBatches
from tideline.domain.ids import TopicIdPartition
from tideline.domain.request_handling import FAILURE_ERRORS, FIND_ERRORS, Failure, KafkaErrorCode
from tideline.errors import TidelineError, UnreachableError
from tideline.gateway.handlers.fetch_parts import Asked, PartitionAnswer
from tideline.gateway.handlers.versioned import named
from tideline.gateway.tracked import TrackedParts
from tideline.gateway.tracked_metrics import DISKLESS_READS


class SuffixSide:
    """Finds coordinates in the control plane, then reads bytes once for the whole answer."""

    def __init__(self, parts: TrackedParts) -> None:
        self._parts = parts

    async def find(self, asked: Sequence[Asked], max_bytes: int) -> dict[Asked, PartitionAnswer]:
        """What there is now, without reading a byte of it."""
        if not asked:
            return {}
        if self._parts.tracking.stopped is not None:
            code = FAILURE_ERRORS[Failure.HARD]
            return {one: PartitionAnswer.refusal(code) for one in asked}
        requests = [
            FindBatchesRequest(_log(one), one.offset, max(1, min(one.max_bytes, max_bytes)))
            for one in asked
        ]
        try:
            found = await self._parts.reader.find(requests)
        except TidelineError as error:
            code = _failure(error)
            return {one: PartitionAnswer.refusal(code) for one in asked}
        return {one: self._found(one, rows) for one, rows in zip(asked, found, strict=True)}

    def _found(self, asked: Asked, rows: FoundBatches) -> PartitionAnswer:
        log = _log(asked)
        code = named(FIND_ERRORS.get(rows.error, FAILURE_ERRORS[Failure.HARD]), asked.at.key)
        if code is not KafkaErrorCode.NONE:
            return PartitionAnswer.refusal(code)
        self._parts.watermarks.heard(log, rows.high_watermark)
        route = self._parts.tracking.partition(log.topic_id, log.partition)
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
            for answer, _ in chosen:
                answer.code, answer.found = _failure(error), None
                answer.high_watermark = answer.last_stable_offset = answer.log_start = -1
            return
        for (answer, _), body in zip(chosen, bodies, strict=True):
            answer.records = body


def _log(asked: Asked) -> TopicIdPartition:
    assert asked.at.log is not None
    return asked.at.log


def _failure(error: TidelineError) -> KafkaErrorCode:
    transient = isinstance(error, UnreachableError)
    return FAILURE_ERRORS[Failure.TRANSIENT if transient else Failure.HARD]
