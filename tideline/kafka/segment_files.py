"""The files of one tiered segment: their kinds, names and upload order, and the content of two.

Kafka hands a remote storage manager six files per segment (``LogSegmentData``); here each becomes
one object, ``<stem><suffix>``. A ``.snapshot`` is the producer state at the segment's end
(``ProducerStateManager.writeSnapshot``, version 1): ``version i16 | crc32c u32 | count i32 |
entries``, the CRC over everything behind it, an entry per producer: the last batch in its epoch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import crc32c

from tideline.domain.remote_log import EpochStart
from tideline.kafka.batches import BatchHeader, Buffer

MAX_OFFSET_DIGITS = 20
"""``LogFileUtils.filenamePrefixFromOffset`` pads with zeros, so that names sort as offsets do."""
_CHECKPOINT_VERSION, _SNAPSHOT_VERSION = 0, 1
NO_TRANSACTION = -1
_HEAD = struct.Struct(">hIi")
_CRC_ENDS_AT = 6
_ENTRY = struct.Struct(">qhiqiqiq")


class SegmentFile(StrEnum):
    """A file of a segment, with its suffix."""

    LOG = ".log"
    OFFSET_INDEX = ".index"
    TIME_INDEX = ".timeindex"
    TXN_INDEX = ".txnindex"
    SNAPSHOT = ".snapshot"
    LEADER_EPOCHS = ".leader-epoch-checkpoint"


UPLOAD_ORDER = (
    SegmentFile.OFFSET_INDEX,
    SegmentFile.TIME_INDEX,
    SegmentFile.TXN_INDEX,
    SegmentFile.SNAPSHOT,
    SegmentFile.LEADER_EPOCHS,
    SegmentFile.LOG,
)
"""The log last, so that its presence marks a complete set."""


class MalformedCheckpoint(ValueError):
    """A leader-epoch checkpoint that Kafka would not have written."""


def offset_name(offset: int) -> str:
    """20 digits. Raises ``ValueError`` for a negative offset."""
    if offset < 0:
        raise ValueError(f"offset {offset} is negative; a segment begins at 0 or later")
    return f"{offset:0{MAX_OFFSET_DIGITS}d}"


def object_keys(stem: str) -> dict[SegmentFile, str]:
    """The key of each file, in upload order. ``stem`` is the whole key up to the suffix."""
    return {file: stem + file for file in UPLOAD_ORDER}


def encode_leader_epochs(epochs: Sequence[EpochStart]) -> bytes:
    """The text of a leader-epoch checkpoint (``LeaderEpochCheckpointFile``, version 0).

    Raises :class:`MalformedCheckpoint` when the epochs or their starts do not grow.
    """
    _check_growing(epochs)
    lines = [str(_CHECKPOINT_VERSION), str(len(epochs))]
    lines += [f"{entry.epoch} {entry.start_offset}" for entry in epochs]
    return "".join(f"{line}\n" for line in lines).encode()


def decode_leader_epochs(text: bytes) -> tuple[EpochStart, ...]:
    """Inverse of :func:`encode_leader_epochs`. Raises :class:`MalformedCheckpoint`."""
    lines = text.decode("ascii", errors="replace").splitlines()
    try:
        version, count = int(lines[0]), int(lines[1])
        epochs = tuple(
            EpochStart(int(epoch), int(start))
            for epoch, start in (row.split(" ") for row in lines[2:])
        )
    except (IndexError, ValueError) as error:
        raise MalformedCheckpoint(f"not a leader-epoch checkpoint: {text[:80]!r}") from error
    if version != _CHECKPOINT_VERSION or count != len(epochs):
        raise MalformedCheckpoint(
            f"version {version} with {count} entries declared and {len(epochs)} found; "
            f"version {_CHECKPOINT_VERSION} is known"
        )
    _check_growing(epochs)
    return epochs


def _check_growing(epochs: Sequence[EpochStart]) -> None:
    for before, after in pairwise(epochs):
        if after.epoch <= before.epoch or after.start_offset < before.start_offset:
            raise MalformedCheckpoint(
                f"epoch {after.epoch} from offset {after.start_offset} does not follow "
                f"epoch {before.epoch} from offset {before.start_offset}"
            )


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
    data = bytearray(_HEAD.pack(_SNAPSHOT_VERSION, 0, len(packed)) + b"".join(packed))
    struct.pack_into(">I", data, 2, crc32c.crc32c(bytes(data[_CRC_ENDS_AT:])))
    return bytes(data)


def decode_snapshot(data: Buffer) -> tuple[ProducerSnapshotEntry, ...]:
    """The entries of a ``.snapshot``, in file order. Raises :class:`MalformedSnapshot`."""
    if len(data) < _HEAD.size:
        raise MalformedSnapshot(
            f"{len(data)} bytes are shorter than a snapshot's head of {_HEAD.size}"
        )
    version, crc, count = _HEAD.unpack_from(data, 0)
    if version != _SNAPSHOT_VERSION:
        raise MalformedSnapshot(f"snapshot version {version}; only {_SNAPSHOT_VERSION} is known")
    if len(data) != _HEAD.size + count * _ENTRY.size:
        raise MalformedSnapshot(
            f"{len(data)} bytes do not hold {count} entries of {_ENTRY.size} bytes"
        )
    if (computed := crc32c.crc32c(bytes(data[_CRC_ENDS_AT:]))) != crc:
        raise MalformedSnapshot(f"the snapshot's CRC is {computed}, its head says {crc}")
    return tuple(
        ProducerSnapshotEntry(*values) for values in _ENTRY.iter_unpack(bytes(data[_HEAD.size :]))
    )
