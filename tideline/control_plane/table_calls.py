"""What reading and verifying a hybrid topic as a table asks of the control plane: part of
:class:`tideline.control_plane.jobs.JobsControlPlane`, with its errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from tideline.control_plane.calls import Function, Row, key_range, nothing, rows
from tideline.control_plane.model import FoundBatches
from tideline.control_plane.pool import JobsConnection
from tideline.control_plane.postgres import found_batches
from tideline.control_plane.table_model import ReadPin, SuffixRow, VerifyVerdict
from tideline.domain.ids import TopicIdPartition


class TableCalls:
    _connection: JobsConnection

    def pin_reads(self, pin_id: UUID, reader: str, ttl_ms: int) -> None:
        """Keep the collection from what can be read now for ``ttl_ms``, or hold the pin for so
        long from now on; a day at most from its beginning. Raises ``InvalidInput``."""
        self._connection.call(Function("pin_reads", nothing), pin_id, reader, ttl_ms)

    def unpin_reads(self, pin_id: UUID) -> None:
        """The read is over; one that is no more is no error."""
        self._connection.call(Function("unpin_reads", nothing), pin_id)

    def read_pins(self) -> list[ReadPin]:
        """Those that hold, the oldest first."""
        return self._connection.call(Function("list_read_pins", rows(ReadPin)))

    def topic_log_ids(self, topic: str) -> tuple[int, int]:
        """``[lo, hi)``: the log ids of the live topic lie there, and others; equal without one."""
        return self._connection.call(Function("topic_log_ids", key_range), topic)

    def table_suffix(self, log_id: int, start: int, end: int, chunk_bytes: int) -> list[SuffixRow]:
        """What holds the offsets ``[start, end)`` of a suffix, in one snapshot, by offset: a row
        for its bounds, merged segments, and WAL batches in runs of about ``chunk_bytes``. Reads
        the rows of these batches."""
        function = Function("table_suffix", rows(SuffixRow))
        return self._connection.call(function, log_id, start, end, chunk_bytes)

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

    def gateway_addresses(self) -> list[str]:
        """Where clients reach the gateways that serve now, ``host:port``."""
        return self._connection.call(Function("list_gateways", _addresses))

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
        self._connection.call(
            Function("record_verify_verdict", nothing),
            topic_id,
            run_id,
            sample,
            ranges,
            records,
            byte_count,
            differences,
            Jsonb(list(detail)),
        )

    def verify_verdicts(self, topic: str | None = None) -> list[VerifyVerdict]:
        """The last verdict on each live topic, or on ``topic``."""
        return self._connection.call(Function("verify_verdicts_of", rows(VerifyVerdict)), topic)


def _addresses(found: Sequence[Row]) -> list[str]:
    return [row["address"] for row in found if row["status"] == "active" and row["address"]]
