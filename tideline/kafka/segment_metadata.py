"""Segments as records of Kafka's remote log metadata, and a log file of such records.

A broker tells of a segment twice: its metadata in ``COPY_SEGMENT_STARTED``, then an update to each
later state (KIP-405, ``RemoteLogMetadataManager``). The log file is one segment of a topic like
``__remote_log_metadata``: keys null, record batches of magic 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from tideline.domain.remote_log import RemoteSegment, SegmentState, SegmentUpdate
from tideline.kafka.batches import patch
from tideline.kafka.remote_log_metadata import encode_segment, encode_update

RECORDS_PER_BATCH = 1_000
_BATCH_BYTES = 4 * 1024 * 1024
"""Far more than so many records need: a topic's name has at most 249 bytes."""


@dataclass(frozen=True, slots=True)
class MetadataRecord:
    """One record's value and what it says. ``event_timestamp`` in ms."""

    segment: RemoteSegment
    state: SegmentState
    event_timestamp: int
    value: bytes


def metadata_records(segment: RemoteSegment, *, started_at: int) -> Iterator[MetadataRecord]:
    """The records that a broker would have written to bring a segment to its present state.

    ``started_at``: ms, when its copy began; ``segment.event_timestamp``: when it came to its
    present state. Raises ``ValueError`` as :func:`encode_segment` does.
    """
    first = replace(segment, state=SegmentState.COPY_SEGMENT_STARTED, event_timestamp=started_at)
    yield MetadataRecord(segment, first.state, started_at, encode_segment(first))
    if segment.state is not SegmentState.COPY_SEGMENT_STARTED:
        update = SegmentUpdate(
            segment.log,
            segment.segment_id,
            segment.state,
            segment.broker_id,
            segment.event_timestamp,
        )
        value = encode_update(segment.topic, update)
        yield MetadataRecord(segment, segment.state, segment.event_timestamp, value)


def write_log(file: BinaryIO, records: Iterable[MetadataRecord]) -> int:
    """Write ``records`` as a log from offset 0 on; how many there were.

    Kafka's tools read it under a name of digits: ``00000000000000000000.log``.
    """
    offset = 0
    pending: list[MetadataRecord] = []
    for record in records:
        pending.append(record)
        if len(pending) == RECORDS_PER_BATCH:
            offset += _write_batch(file, offset, pending)
            pending.clear()
    if pending:
        offset += _write_batch(file, offset, pending)
    return offset


def _write_batch(file: BinaryIO, offset: int, records: list[MetadataRecord]) -> int:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=_BATCH_BYTES,
    )
    for position, record in enumerate(records):
        builder.append(
            position, timestamp=record.event_timestamp, key=None, value=record.value, headers=[]
        )
    batch = bytearray(builder.build())
    patch(batch, offset, 0)
    file.write(batch)
    return len(records)
