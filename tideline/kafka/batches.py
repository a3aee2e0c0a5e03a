"""Headers of record batches (magic 2), read and patched in place, without touching the records.

Base offset (bytes 0–7) and partition leader epoch (12–15) lie outside the CRC and can be
rewritten; attributes and timestamps are inside (Kafka: ``DefaultRecordBatch``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import crc32c

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER_BYTES = 61
LOG_OVERHEAD = 12
"""Base offset and length, which the length itself does not count."""
MAGIC = 2
_HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_ATTRIBUTES_AT, _CRC_AT, _EPOCH_AT, _MAX_TIMESTAMP_AT, _MAGIC_AT = 21, 17, 12, 35, 16
_LOG_APPEND_TIME_BIT = 0x08
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


class InvalidBatch(ValueError):
    """Not a record batch of magic 2, or one that contradicts itself."""


class UnsupportedMagic(InvalidBatch):
    """A message of an old format (magic 0 or 1)."""


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """One batch's header and where it lies in its buffer. Offsets inclusive, timestamps in ms."""

    position: int
    base_offset: int
    length: int
    """As written: the bytes after the first 12."""
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LOG_OVERHEAD

    @property
    def end(self) -> int:
        """Position after the batch."""
        return self.position + self.size

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & 0x10)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 0x20)

    @property
    def timestamp_type(self) -> str:
        return "LogAppendTime" if self.attributes & _LOG_APPEND_TIME_BIT else "CreateTime"

    @property
    def compression(self) -> str:
        """Name of the codec. Raises :class:`InvalidBatch` for a code that Kafka does not have."""
        code = self.attributes & 0x07
        if code >= len(COMPRESSIONS):
            raise InvalidBatch(f"compression code {code} at byte {self.position} is not known")
        return COMPRESSIONS[code]

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, wrapping at 2^31 as Kafka does; -1 without a producer."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def parse_header(buffer: Buffer, position: int) -> BatchHeader:
    """Read the header at ``position``; of what follows it nothing needs to be in the buffer.

    Raises :class:`UnsupportedMagic` or :class:`InvalidBatch`.
    """
    left = len(buffer) - position
    if left > _MAGIC_AT and buffer[position + _MAGIC_AT] != MAGIC:
        raise UnsupportedMagic(f"magic {buffer[position + _MAGIC_AT]} at byte {position}")
    if left < HEADER_BYTES:
        raise InvalidBatch(f"{left} bytes at byte {position} are shorter than a batch header")
    header = BatchHeader(position, *_HEADER.unpack_from(buffer, position))
    if header.length < HEADER_BYTES - LOG_OVERHEAD:
        raise InvalidBatch(f"a batch at byte {position} says {header.size} bytes")
    return header


def parse_at(buffer: Buffer, position: int) -> BatchHeader:
    """Read the header at ``position``. The whole batch must lie in the buffer.

    Raises :class:`UnsupportedMagic` or :class:`InvalidBatch`.
    """
    header, left = parse_header(buffer, position), len(buffer) - position
    if header.size > left:
        raise InvalidBatch(f"a batch at byte {position} says {header.size} bytes, {left} are there")
    return header


def iter_batches(buffer: Buffer) -> Iterator[BatchHeader]:
    """Every batch of a produce request, in order. Raises as :func:`parse_at` does."""
    position = 0
    while position < len(buffer):
        header = parse_at(buffer, position)
        yield header
        position = header.end


def iter_fetched(buffer: Buffer) -> Iterator[BatchHeader]:
    """As :func:`iter_batches`, but the last batch may be cut off, as brokers do in a Fetch
    response when it exceeds the asked size: it is left out."""
    position = 0
    while len(buffer) - position >= HEADER_BYTES:
        (length,) = _EPOCH.unpack_from(buffer, position + 8)
        if length + LOG_OVERHEAD > len(buffer) - position:
            return
        header = parse_at(buffer, position)
        yield header
        position = header.end


def computed_crc(buffer: Buffer, header: BatchHeader) -> int:
    """CRC-32C of everything from the attributes on."""
    return crc32c.crc32c(memoryview(buffer)[header.position + _ATTRIBUTES_AT : header.end])


def verify_crc(buffer: Buffer, header: BatchHeader) -> bool:
    """Whether the batch is as its producer wrote it."""
    return computed_crc(buffer, header) == header.crc


def patch(
    batch: bytearray | memoryview,
    base_offset: int,
    leader_epoch: int,
    log_append_time: int | None = None,
) -> None:
    """Give one batch its offset and leader epoch, in place.

    With ``log_append_time`` (ms) its records carry the time of the append, and the CRC is made
    right again.
    """
    _OFFSET.pack_into(batch, 0, base_offset)
    _EPOCH.pack_into(batch, _EPOCH_AT, leader_epoch)
    if log_append_time is not None:
        batch[_ATTRIBUTES_AT + 1] |= _LOG_APPEND_TIME_BIT
        _OFFSET.pack_into(batch, _MAX_TIMESTAMP_AT, log_append_time)
        header = parse_at(batch, 0)
        struct.pack_into(">I", batch, _CRC_AT, computed_crc(batch, header))


def truncate_at(buffer: Buffer, boundary: int) -> Buffer:
    """The leading batches that lie wholly below ``boundary`` (exclusive); what follows, and a
    batch that is cut off at the end, is left out."""
    end = 0
    for header in iter_fetched(buffer):
        if header.last_offset >= boundary:
            break
        end = header.end
    return buffer if end == len(buffer) else buffer[:end]
