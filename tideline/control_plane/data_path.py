"""The suffix's hot path: WAL keys, commits, coordinates, offsets (seed 000)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from tideline.control_plane.model import (
    BatchCoordinates,
    BatchToCommit,
    CommitError,
    CommittedBatch,
    FindBatchesRequest,
    FoundBatches,
    ListOffsetsKind,
    SegmentCoordinates,
    SuffixOffset,
)
from tideline.control_plane.pool import Pool
from tideline.domain.ids import TopicIdPartition
from tideline.domain.topic_configs import CREATE_TIME, LOG_APPEND_TIME


def _coordinates(row: Mapping[str, Any]) -> BatchCoordinates:
    return BatchCoordinates(
        object_key=row["object_key"],
        byte_offset=row["byte_offset"],
        byte_size=row["byte_size"],
        base_offset=row["base_offset"],
        last_offset=row["last_offset"],
        timestamp_type=LOG_APPEND_TIME if row["log_append_time"] else CREATE_TIME,
        append_time=row["append_time"],
        max_timestamp=row["max_timestamp"],
    )


def _segment(view: Mapping[str, Any]) -> SegmentCoordinates:
    return SegmentCoordinates(**{**view, "segment_id": UUID(view["segment_id"])})


class DataPath:
    """Part of :class:`tideline.control_plane.ControlPlane`."""

    _pool: Pool

    async def register_object_keys(
        self, gateway_id: int, incarnation: UUID, keys: Sequence[str]
    ) -> None:
        """Announce random keys before their objects are uploaded; repeats succeed.

        Raises ``GatewayFenced``; ``ObjectKeyRejected`` for a key that was used.
        """
        await self._pool.fetch(
            "SELECT tideline.register_object_keys(%s, %s, %s::text[])",
            gateway_id, incarnation, list(keys),
        )  # fmt: skip

    async def commit_file(
        self,
        gateway_id: int,
        incarnation: UUID,
        object_key: str,
        size: int,
        batches: Sequence[BatchToCommit],
    ) -> list[CommittedBatch]:
        """Assign offsets to the batches of one uploaded object of ``size`` bytes, in their order.

        One outcome per batch; a refused batch does not hold back the others. Idempotent by
        ``object_key``: after :class:`ControlPlaneUnavailable` call again with the same input, also
        while the first call still runs. Raises ``ObjectKeyRejected``, ``GatewayFenced``.
        """
        if not batches:
            return []
        rows = await self._pool.fetch(
            "SELECT * FROM tideline.commit_file(%s, %s, %s, %s, %s::uuid[], %s::int[], "
            "%s::bigint[], %s::int[], %s::int[], %s::bigint[], %s::boolean[], %s::bigint[], "
            "%s::int[], %s::int[], %s::int[])",
            gateway_id, incarnation, object_key, size,
            [b.log.topic_id for b in batches],
            [b.log.partition for b in batches],
            [b.byte_offset for b in batches],
            [b.byte_size for b in batches],
            [b.record_count for b in batches],
            [b.max_timestamp for b in batches],
            [b.timestamp_type == LOG_APPEND_TIME for b in batches],
            [b.producer_id for b in batches],
            [b.producer_epoch for b in batches],
            [b.base_sequence for b in batches],
            [b.last_sequence for b in batches],
        )  # fmt: skip
        return [
            CommittedBatch(
                error=CommitError(row["error"]),
                base_offset=row["base_offset"],
                append_time=row["append_time"],
                log_start=row["log_start"],
                high_watermark=row["high_watermark"],
            )
            for row in rows
        ]

    async def find_batches(self, requests: Sequence[FindBatchesRequest]) -> list[FoundBatches]:
        """Coordinates from each ``fetch_offset`` (inclusive) on, one answer per request.

        At least one batch if any is available, even one larger than ``max_bytes``; at most 500.
        For an offset in a merged segment: the segment, whatever ``max_bytes``.
        ``log_start`` is the earliest readable offset of the whole log, prefix included.
        """
        if not requests:
            return []
        rows = await self._pool.fetch(
            "SELECT * FROM tideline.find_batches(%s::uuid[], %s::int[], %s::bigint[], %s::int[])",
            [r.log.topic_id for r in requests],
            [r.log.partition for r in requests],
            [r.fetch_offset for r in requests],
            [r.max_bytes for r in requests],
        )  # fmt: skip
        answers: list[list[Mapping[str, Any]]] = [[] for _ in requests]
        for row in rows:
            answers[row["request"] - 1].append(row)
        return [
            FoundBatches(
                error=answer[0]["error"],
                log_start=answer[0]["log_start"],
                high_watermark=answer[0]["high_watermark"],
                batches=tuple(_coordinates(row) for row in answer if row["object_key"] is not None),
                segment=None if answer[0]["segment"] is None else _segment(answer[0]["segment"]),
            )
            for answer in answers
        ]

    async def list_offsets(
        self, log: TopicIdPartition, kind: ListOffsetsKind, timestamp: int | None = None
    ) -> SuffixOffset:
        """Suffix only, never below B0. ``timestamp`` (ms) for ``ListOffsetsKind.TIMESTAMP``.

        For a timestamp and for the maximum, one of ``segments`` or ``batch`` holds the record;
        ``offset`` and ``timestamp`` are then the first readable offset and the largest timestamp of
        the first of them. Without any there is no such record. ``error`` as in
        :class:`FoundBatches`.
        """
        rows = await self._pool.fetch(
            "SELECT * FROM tideline.list_offsets(%s, %s, %s, %s)",
            log.topic_id, log.partition, kind.value, timestamp,
        )  # fmt: skip
        row = rows[0]
        return SuffixOffset(
            error=row["error"],
            offset=row["found_offset"],
            timestamp=row["found_timestamp"],
            batch=None if row["object_key"] is None else _coordinates(row),
            segments=tuple(_segment(view) for view in row["segments"]),
            suffix_start=row["suffix_start"],
        )

    async def high_watermarks(
        self, logs: Sequence[TopicIdPartition]
    ) -> dict[TopicIdPartition, int]:
        """Next offset of each suffix; a partition without one is left out."""
        if not logs:
            return {}
        rows = await self._pool.fetch(
            "SELECT * FROM tideline.high_watermarks(%s::uuid[], %s::int[])",
            [log.topic_id for log in logs],
            [log.partition for log in logs],
        )
        return {
            TopicIdPartition(row["topic_id"], row["partition"]): row["high_watermark"]
            for row in rows
        }

    async def delete_records(self, log: TopicIdPartition, before_offset: int) -> int:
        """Advance the suffix's start to ``before_offset`` (exclusive; -1: the high watermark) and
        return it. An offset at or below it changes nothing. B0 never moves.

        Raises ``OffsetOutOfRange``, ``BoundaryUnset``, ``UnknownLog``, ``TopicDeleted``.
        """
        rows = await self._pool.fetch(
            "SELECT tideline.delete_records(%s, %s, %s) AS suffix_start",
            log.topic_id, log.partition, before_offset,
        )  # fmt: skip
        return int(rows[0]["suffix_start"])

    async def advance_prefix_start(self, log: TopicIdPartition, log_start: int) -> None:
        """Kafka's log start of the prefix moved to ``log_start``. At B0 the prefix is gone and
        the partition becomes ``DISKLESS_ONLY``. Never moves back.
        """
        await self._pool.fetch(
            "SELECT tideline.advance_prefix_start(%s, %s, %s)",
            log.topic_id, log.partition, log_start,
        )  # fmt: skip
