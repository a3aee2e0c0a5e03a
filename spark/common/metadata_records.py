"""Records of ``__remote_log_metadata`` as rows, decoded one by one: the judge of
:mod:`spark.common.metadata_columns`, and what reads values that are laid out in no known way."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tideline.domain.remote_log import RemoteLogEvent, RemoteSegment, SegmentUpdate
from tideline.kafka import remote_log_metadata as codec

MALFORMED = -1
"""``kind`` of a record that no known broker writes."""
UNKNOWN = -2
"""``kind`` of a record of a newer Kafka. Whatever the two say, nothing is judged without it
(:class:`tideline.kafka.remote_log_metadata.NotUnderstood`)."""


@dataclass(slots=True)
class MetadataRecord:
    """One record. Nullable throughout, as a source's columns are for Spark."""

    metadata_partition: int | None
    record_offset: int | None
    kind: int | None
    """The record's api key (0 segment, 1 update, 2 partition delete), :data:`MALFORMED` or
    :data:`UNKNOWN`."""
    topic_id: UUID | None = None
    partition: int | None = None
    segment_id: UUID | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    """Inclusive."""
    size_bytes: int | None = None
    state: int | None = None
    txn_index_empty: bool | None = None
    epochs: tuple[int, ...] | None = None
    epoch_starts: tuple[int, ...] | None = None
    max_timestamp: int | None = None
    """ms."""
    event_timestamp: int | None = None
    """ms; when the broker wrote the record."""


def decoded(
    metadata_partition: int,
    offset: int,
    value: bytes | None,
    topics: frozenset[bytes] | None = None,
) -> MetadataRecord | None:
    """``None`` for a record without a value, and for one about others than ``topics`` (ids of 16
    bytes; ``None``: all). What is not understood is about none of them only if it says so."""
    if value is None:
        return None
    topic_id: UUID | None
    try:
        event = codec.decode(value)
        record, topic_id = record_of(event, metadata_partition, offset), event.log.topic_id
    except codec.NotUnderstood as error:
        kind = UNKNOWN if isinstance(error, codec.UnknownKind) else MALFORMED
        record, topic_id = MetadataRecord(metadata_partition, offset, kind), error.topic_id
    is_foreign = topics is not None and topic_id is not None and topic_id.bytes not in topics
    return None if is_foreign else record


def record_of(event: RemoteLogEvent, metadata_partition: int, offset: int) -> MetadataRecord:
    record = MetadataRecord(
        metadata_partition,
        offset,
        codec.PARTITION_DELETE,
        event.log.topic_id,
        event.log.partition,
        state=int(event.state),
        event_timestamp=event.event_timestamp,
    )
    match event:
        case RemoteSegment():
            record.kind, record.segment_id = codec.SEGMENT, event.segment_id
            record.start_offset, record.end_offset = event.start_offset, event.end_offset
            record.size_bytes, record.max_timestamp = event.size_bytes, event.max_timestamp
            record.txn_index_empty = event.txn_index_empty
            record.epochs = tuple(e.epoch for e in event.leader_epochs)
            record.epoch_starts = tuple(e.start_offset for e in event.leader_epochs)
        case SegmentUpdate():
            record.kind, record.segment_id = codec.UPDATE, event.segment_id
    return record
