"""Producer snapshots: the producer state at a segment's end, as Kafka writes it beside a segment.

``ProducerStateManager.writeSnapshot``, version 1: ``version i16 | crc32c u32 | count i32 |
entries``, the CRC over everything behind it. One entry per producer: the last batch in its epoch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

import crc32c

from tideline.kafka.batches import BatchHeader, Buffer

VERSION = 1
NO_TRANSACTION = -1
_HEAD = struct.Struct(">hIi")
_CRC_ENDS_AT = 6
_ENTRY = struct.Struct(">qhiqiqiq")


class MalformedSnapshot(ValueError):
    """Bytes that are not a producer snapshot of version 1, or whose CRC does not match."""


@dataclass(frozen=True, slots=True)
class ProducerSnapshotEntry:
    """One producer's state. Offsets inclusive, ``timestamp`` in ms."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    """of the last data batch"""
    offset_delta: int
    """last offset minus base offset of that batch"""
    timestamp: int
    """max timestamp of that batch"""
    coordinator_epoch: int = -1
    current_txn_first_offset: int = NO_TRANSACTION


def after_batch(header: BatchHeader) -> ProducerSnapshotEntry:
    """A producer's state once this batch was appended; whatever it was before, the batch was
    judged when it was committed."""
    return ProducerSnapshotEntry(
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        last_sequence=header.last_sequence,
        last_offset=header.last_offset,
        offset_delta=header.last_offset_delta,
        timestamp=header.max_timestamp,
    )


def encode_snapshot(entries: Iterable[ProducerSnapshotEntry]) -> bytes:
    """The bytes of a ``.snapshot``, entries in the given order (Kafka's own order is that of a
    hash table and means nothing)."""
    packed = [
        _ENTRY.pack(
            entry.producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.offset_delta,
            entry.timestamp,
            entry.coordinator_epoch,
            entry.current_txn_first_offset,
        )
        for entry in entries
    ]
    data = bytearray(_HEAD.pack(VERSION, 0, len(packed)) + b"".join(packed))
    struct.pack_into(">I", data, 2, crc32c.crc32c(bytes(data[_CRC_ENDS_AT:])))
    return bytes(data)


def decode_snapshot(data: Buffer) -> tuple[ProducerSnapshotEntry, ...]:
    """The entries of a ``.snapshot``, in file order. Raises :class:`MalformedSnapshot`."""
    if len(data) < _HEAD.size:
        raise MalformedSnapshot(
            f"{len(data)} bytes are shorter than a snapshot's head of {_HEAD.size}"
        )
    version, crc, count = _HEAD.unpack_from(data, 0)
    if version != VERSION:
        raise MalformedSnapshot(f"snapshot version {version}; only {VERSION} is known")
    if len(data) != _HEAD.size + count * _ENTRY.size:
        raise MalformedSnapshot(
            f"{len(data)} bytes do not hold {count} entries of {_ENTRY.size} bytes"
        )
    if (computed := crc32c.crc32c(bytes(data[_CRC_ENDS_AT:]))) != crc:
        raise MalformedSnapshot(f"the snapshot's CRC is {computed}, its head says {crc}")
    return tuple(
        ProducerSnapshotEntry(*values) for values in _ENTRY.iter_unpack(bytes(data[_HEAD.size :]))
    )
