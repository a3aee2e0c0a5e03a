"""The values of ``__remote_log_metadata``, decoded and encoded, and a log file of such records.

A value is ``uvarint 1 | uvarint api key | uvarint version | message``; every message is flexible
(compact strings and arrays, tagged fields). Kafka: ``RemoteLogMetadataSerde`` and the messages
``RemoteLogSegmentMetadataRecord``, ``…UpdateRecord``, ``RemotePartitionDeleteMetadataRecord``.

A broker tells of a segment twice: its metadata in ``COPY_SEGMENT_STARTED``, then an update to each
later state (KIP-405, ``RemoteLogMetadataManager``). The log file is one segment of such a topic:
keys null, record batches of magic 2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO
from uuid import UUID

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import (
    EpochStart,
    PartitionDelete,
    PartitionDeleteState,
    RemoteLogEvent,
    RemoteSegment,
    SegmentState,
    SegmentUpdate,
)
from tideline.kafka.batches import patch
from tideline.kafka.varints import uvarint

TOPIC = "__remote_log_metadata"
SEGMENT, UPDATE, PARTITION_DELETE = 0, 1, 2
_FRAME, _VERSION = 1, 0
_TXN_INDEX_EMPTY_TAG = 0
_NO_TAGS = b"\0"
_NO_BYTES = b"\0"


class NotUnderstood(ValueError):
    """A value of which this Tideline does not know what it says: it might be that a segment is
    gone, so that nothing that it may concern is judged."""

    def __init__(self, what: str, topic_id: UUID | None = None) -> None:
        """``topic_id``: whom it concerns; ``None``, where nobody can tell: everybody."""
        super().__init__(what)
        self.topic_id = topic_id


class MalformedMetadata(NotUnderstood):
    """No broker of the known versions writes it."""


class UnknownKind(NotUnderstood):
    """Of an api key of a newer Kafka."""


class _Reader:
    """A bounds-checked cursor; each read raises :class:`MalformedMetadata` past the end."""

    __slots__ = ("_data", "_position", "topic_id")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self.topic_id: UUID | None = None
        """Of the log that was read."""

    def take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise MalformedMetadata(
                f"{size} bytes wanted at {self._position} of {len(self._data)} bytes"
            )
        piece = self._data[self._position : end]
        self._position = end
        return piece

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise MalformedMetadata("an unsigned varint has more than five bytes")

    def int8(self) -> int:
        return int(struct.unpack(">b", self.take(1))[0])

    def int32(self) -> int:
        return int(struct.unpack(">i", self.take(4))[0])

    def int64(self) -> int:
        return int(struct.unpack(">q", self.take(8))[0])

    def uuid(self) -> UUID:
        return UUID(bytes=self.take(16))

    def string(self) -> str:
        return self.take(self.uvarint() - 1).decode()

    def optional_bytes(self) -> bytes | None:
        length = self.uvarint()
        return None if length == 0 else self.take(length - 1)

    def tags(self) -> dict[int, bytes]:
        return {self.uvarint(): self.take(self.uvarint()) for _ in range(self.uvarint())}


def decode(value: bytes) -> RemoteLogEvent:
    """One record's value as an event.

    Raises :class:`UnknownKind` for an api key of a newer Kafka, :class:`MalformedMetadata` for
    another version, and for anything cut short or out of range.
    """
    reader = _Reader(value)
    if (frame := reader.uvarint()) != 1:
        raise MalformedMetadata(f"frame version {frame}; only 1 is known")
    api_key, version = reader.uvarint(), reader.uvarint()
    if api_key > PARTITION_DELETE:
        raise UnknownKind(
            f"api key {api_key}, version {version}; {PARTITION_DELETE} is the last known"
        )
    if version != _VERSION:
        raise MalformedMetadata(f"api key {api_key}: version {version}; only {_VERSION} is known")
    try:
        match api_key:
            case 0:
                return _segment(reader)
            case 1:
                return _update(reader)
            case _:
                return _partition_delete(reader)
    except ValueError as error:
        what = f"api key {api_key}, version {version}: {error}"
        raise MalformedMetadata(what, reader.topic_id) from error


def _log(reader: _Reader) -> tuple[str, TopicIdPartition]:
    name, topic_id, partition = reader.string(), reader.uuid(), reader.int32()
    reader.topic_id = topic_id
    reader.tags()
    return name, TopicIdPartition(topic_id, partition)


def _segment_id(reader: _Reader) -> tuple[str, TopicIdPartition, UUID]:
    name, log = _log(reader)
    segment_id = reader.uuid()
    reader.tags()
    return name, log, segment_id


def _segment(reader: _Reader) -> RemoteSegment:
    name, log, segment_id = _segment_id(reader)
    start, end, broker = reader.int64(), reader.int64(), reader.int32()
    max_timestamp, event_timestamp = reader.int64(), reader.int64()
    epochs = []
    for _ in range(reader.uvarint() - 1):
        epochs.append(EpochStart(reader.int32(), reader.int64()))
        reader.tags()
    size = reader.int32()
    reader.optional_bytes()
    state = SegmentState(reader.int8())
    tags = reader.tags()
    return RemoteSegment(
        log=log,
        topic=name,
        segment_id=segment_id,
        start_offset=start,
        end_offset=end,
        size_bytes=size,
        leader_epochs=tuple(sorted(epochs, key=lambda e: e.epoch)),
        state=state,
        broker_id=broker,
        max_timestamp=max_timestamp,
        event_timestamp=event_timestamp,
        txn_index_empty=tags.get(_TXN_INDEX_EMPTY_TAG, b"\0") != b"\0",
    )


def _update(reader: _Reader) -> SegmentUpdate:
    _, log, segment_id = _segment_id(reader)
    broker, event_timestamp = reader.int32(), reader.int64()
    reader.optional_bytes()
    return SegmentUpdate(log, segment_id, SegmentState(reader.int8()), broker, event_timestamp)


def _partition_delete(reader: _Reader) -> PartitionDelete:
    _, log = _log(reader)
    reader.int32()
    event_timestamp = reader.int64()
    return PartitionDelete(log, PartitionDeleteState(reader.int8()), event_timestamp)


def encode_segment(segment: RemoteSegment) -> bytes:
    """A segment's metadata as a broker writes it, without custom metadata.

    Kafka takes a new segment only in ``COPY_SEGMENT_STARTED``, followed by an update. Raises
    ``ValueError`` for a segment without leader epochs or with a number that does not fit.
    """
    if not segment.leader_epochs:
        raise ValueError(f"segment {segment.segment_id} has no leader epoch; Kafka asks for one")
    epochs = b"".join(
        struct.pack(">iq", entry.epoch, entry.start_offset) + _NO_TAGS
        for entry in segment.leader_epochs
    )
    try:
        return b"".join(
            (
                _head(SEGMENT),
                _encoded_segment_id(segment.topic, segment.log, segment.segment_id),
                struct.pack(
                    ">qqiqq",
                    segment.start_offset,
                    segment.end_offset,
                    segment.broker_id,
                    segment.max_timestamp,
                    segment.event_timestamp,
                ),
                uvarint(len(segment.leader_epochs) + 1),
                epochs,
                struct.pack(">i", segment.size_bytes),
                _NO_BYTES,
                struct.pack(">b", segment.state),
                _txn_index_tag(segment.txn_index_empty),
            )
        )
    except struct.error as error:
        raise ValueError(f"segment {segment.segment_id}: {error}") from error


def encode_update(topic: str, update: SegmentUpdate) -> bytes:
    """A segment's change of state as a broker writes it, without custom metadata."""
    return b"".join(
        (
            _head(UPDATE),
            _encoded_segment_id(topic, update.log, update.segment_id),
            struct.pack(">iq", update.broker_id, update.event_timestamp),
            _NO_BYTES,
            struct.pack(">b", update.state),
            _NO_TAGS,
        )
    )


def _head(api_key: int) -> bytes:
    return uvarint(_FRAME) + uvarint(api_key) + uvarint(_VERSION)


def _encoded_log(topic: str, log: TopicIdPartition) -> bytes:
    name = topic.encode()
    return b"".join(
        (
            uvarint(len(name) + 1),
            name,
            log.topic_id.bytes,
            struct.pack(">i", log.partition),
            _NO_TAGS,
        )
    )


def _encoded_segment_id(topic: str, log: TopicIdPartition, segment_id: UUID) -> bytes:
    return _encoded_log(topic, log) + segment_id.bytes + _NO_TAGS


def _txn_index_tag(empty: bool) -> bytes:
    return bytes((1, _TXN_INDEX_EMPTY_TAG, 1, 1)) if empty else _NO_TAGS


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
