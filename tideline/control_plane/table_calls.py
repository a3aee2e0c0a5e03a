"""What reading and verifying a hybrid topic as a table asks of the control plane: part of
:class:`tideline.control_plane.jobs.JobsControlPlane`, with its errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from tideline.control_plane.calls import (
    COUNTS,
    OBSERVED,
    READS,
    Function,
    Row,
    call,
    key_range,
    noted,
)
from tideline.control_plane.model import FoundBatches
from tideline.control_plane.pool import JobsConnection
from tideline.control_plane.row_readers import found_batches
from tideline.control_plane.table_model import ReadPin, SuffixRow, VerifyVerdict
from tideline.domain.ids import TopicIdPartition


def _addresses(found: Sequence[Row]) -> list[str]:
    return [row["address"] for row in found if row["status"] == "active" and row["address"]]


def _json(detail: Sequence[dict[str, Any]]) -> tuple[Jsonb]:
    return (Jsonb(list(detail)),)


class TableCalls:
    _connection: JobsConnection

    @call(COUNTS)
    def pin_reads(self, pin_id: UUID, reader: str, ttl_ms: int) -> None:
        """Keep the collection from what can be read now for ``ttl_ms``, or hold the pin for so
        long from now on; a day at most from its beginning. Raises ``InvalidInput``."""

    @call(COUNTS)
    def unpin_reads(self, pin_id: UUID) -> None:
        """The read is over; one that is no more is no error."""

    @call(READS, "list_read_pins")
    def read_pins(self) -> list[ReadPin]:
        """Those that hold, the oldest first."""

    @call(READS, read=key_range)
    def topic_log_ids(self, topic: str) -> tuple[int, int]:
        """``[lo, hi)``: the log ids of the live topic lie there, and others; equal without one."""

    @call(READS)
    def table_suffix(self, log_id: int, start: int, end: int, chunk_bytes: int) -> list[SuffixRow]:
        """What holds the offsets ``[start, end)`` of a suffix, in one snapshot, by offset: a row
        for its bounds, merged segments, and WAL batches in runs of about ``chunk_bytes``. Reads
        the rows of these batches."""

    @noted(READS)
    def find_batches(self, log: TopicIdPartition, offset: int, max_bytes: int) -> FoundBatches:
        """As :meth:`tideline.control_plane.plane.ControlPlane.find_batches`, of one log."""
        (found,) = self._connection.call(
            Function("find_batches", found_batches),
            [log.topic_id],
            [log.partition],
            [offset],
            [max_bytes],
        )
        return found

    @call(READS, "list_gateways", read=_addresses)
    def gateway_addresses(self) -> list[str]:
        """Where clients reach the gateways that serve now, ``host:port``."""

    @call(OBSERVED, detail=_json)
    def record_verify_verdict(
        self,
        topic_id: UUID,
        run_id: UUID,
        *,
        sample: float,
        ranges: int,
        records: int,
        byte_count: int,
        differences: int,
        detail: Sequence[dict[str, Any]],
    ) -> None:
        """Keep what a verification has found, instead of what an earlier one has."""

    @call(READS, "verify_verdicts_of")
    def verify_verdicts(self, topic: str | None = None) -> list[VerifyVerdict]:
        """The last verdict on each live topic, or on ``topic``."""
