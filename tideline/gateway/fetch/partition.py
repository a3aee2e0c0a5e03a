"""One partition of a fetch: what is asked, and the result."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from kio.schema.types import BrokerId

from tideline.control_plane.model import FoundBatches
from tideline.domain.fetch_order import FetchBytes
from tideline.domain.request_handling import KafkaErrorCode, PartitionRoute
from tideline.gateway.messages import (
    Messages,
    RequestedPartition,
    TopicKey,
    by_partition,
    error,
    locate,
)
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.batches import first_bytes, size_of_first
from tideline.kafka.fetch_answer import PlainPartition

MAX_BYTES = 55 * 1024 * 1024
"""Of one answer, whatever a client asks for: Kafka's own ``fetch.max.bytes``."""


@dataclass(slots=True, eq=False)
class PartitionFetch:
    """One partition of the request. Compared by identity."""

    at: RequestedPartition
    """Looked up again in every round: a topic may become tracked during a long poll."""
    offset: int
    """first wanted, inclusive"""
    max_bytes: int
    structure: Any
    """As it came, to be passed on."""


def current_route(asked: PartitionFetch, tracking: TrackingView) -> PartitionRoute:
    """The partition's route as it is now, and its place with it."""
    asked.at = locate(tracking, asked.at.key, asked.at.partition)
    return asked.at.route(tracking)


def partition_of(key: TopicKey, row: Any, tracking: TrackingView) -> PartitionFetch:
    """One partition that a request asks by ``row``."""
    return PartitionFetch(
        locate(tracking, key, int(row.partition)),
        int(row.fetch_offset),
        int(row.partition_max_bytes),
        row,
    )


def asked_of(request: Any) -> dict[tuple[TopicKey, int], Any]:
    """The partitions that a fetch names, in its order (``FetchRequest.fetchData``)."""
    return by_partition(request.topics, "partitions", "partition")


def partitions_of(request: Any, tracking: TrackingView) -> list[PartitionFetch]:
    return [partition_of(key, row, tracking) for (key, _), row in asked_of(request).items()]


@dataclass(slots=True)
class PartitionResult:
    """One partition's part of the response."""

    code: KafkaErrorCode = KafkaErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start: int = -1
    records: Any = b""
    relayed: Any = None
    """Kafka's own structure, passed on as it is."""
    found: FoundBatches | None = None
    """Coordinates in the suffix whose bytes are read at the end."""
    epoch: int = -1
    """Leader epoch at B0."""
    settled: bool = field(default=False)
    """Waiting longer cannot make the answer better: an error, or a read that ends at B0."""
    expected_bytes: int = 0
    nearer: int = -1
    """Node id of a replica that the consumer is sent on to; -1: none."""
    is_read: bool = False
    """The bytes of what was found are in ``records``."""

    @property
    def size(self) -> int:
        """bytes of records"""
        return self.expected_bytes if self.found is not None else len(self.records or b"")

    def fail(self, code: KafkaErrorCode) -> None:
        """What was found cannot be given."""
        self.code, self.found, self.records, self.settled = code, None, b"", True
        self.high_watermark = self.last_stable_offset = self.log_start = -1

    def shorten(self, budget: FetchBytes) -> None:
        """Keep as many batches of the records that are here as the answer has bytes for."""
        records = self.records or b""
        most = budget.most(size_of_first(records))
        if len(records) > most:
            self.records = records = first_bytes(records, most)
            if self.relayed is not None:
                self.relayed = replace(self.relayed, records=records)
        budget.serve(len(records))

    @classmethod
    def refusal(cls, code: KafkaErrorCode) -> PartitionResult:
        return cls(code, settled=True)

    def row(self, asked: PartitionFetch) -> Any:
        """Kafka's own structure, or a :class:`~tideline.kafka.fetch_answer.PlainPartition`."""
        if self.relayed is not None:
            return self.relayed
        return PlainPartition(
            asked.at.partition,
            self.code,
            self.high_watermark,
            self.last_stable_offset,
            self.log_start,
            self.nearer,
            self.records or b"",
        )


def as_structure(row: Any, api: Messages) -> Any:
    """The row as the codec writes it."""
    if not isinstance(row, PlainPartition):
        return row
    return api.response_part(
        "PartitionData",
        partition_index=row.partition_index,
        error_code=error(row.error_code),
        high_watermark=row.high_watermark,
        last_stable_offset=row.last_stable_offset,
        log_start_offset=row.log_start_offset,
        aborted_transactions=row.aborted_transactions,
        records=row.records,
        preferred_read_replica=BrokerId(row.preferred_read_replica),
    )
