"""Record batches (magic 2): headers read and patched in place.

Base offset (bytes 0–7) and partition leader epoch (12–15) lie outside the CRC and can be
rewritten; attributes and timestamps are inside (Kafka: ``DefaultRecordBatch``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple, TypeAlias

import crc32c

from tideline.domain.topic_configs import CREATE_TIME, LOG_APPEND_TIME

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
_WALK = struct.Struct(">qi4xb6xi")
"""Base offset, length, magic and last offset delta: what a walk over a large answer reads."""
_CHECKED = struct.Struct(">8xi4xbI2xi")
"""Length, magic, CRC and last offset delta."""
_START = struct.Struct(">qii")
START_BYTES = _START.size
"""Base offset, length and leader epoch: what changes when a batch is read, and what lies between
the two."""
_LEGACY = struct.Struct(">qiIbB")
_LEGACY_BYTES = {0: 14, 1: 22}
"""By magic: what the length of a message says at least (CRC, magic, attributes, the timestamp of
magic 1, and the lengths of key and value)."""
_LEGACY_ATTRIBUTES = 0x0F
"""Codec and type of timestamp, where magic 2 has them; the other bits mean nothing."""
ZSTD_SINCE_PRODUCE = 7
"""KIP-110: zstd is for clients that speak at least Produce v7 (and Fetch v10)."""
ZSTD_SINCE_FETCH = 10
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


class InvalidBatch(ValueError):
    """Not a record batch of magic 2, or one that contradicts itself."""


class UnsupportedMagic(InvalidBatch):
    """A message of an old format (magic 0 or 1)."""


class BatchHeader(NamedTuple):
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
    def is_empty(self) -> bool:
        """It takes offsets and has no record, as compaction may leave a batch: readers pass on."""
        return self.record_count == 0 and self.size == HEADER_BYTES

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & 0x10)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 0x20)

    @property
    def timestamp_type(self) -> str:
        return LOG_APPEND_TIME if self.attributes & _LOG_APPEND_TIME_BIT else CREATE_TIME

    @property
    def compression(self) -> str:
        """Name of the codec. Raises :class:`InvalidBatch` for a code that Kafka does not have."""
        code = self.attributes & 0x07
        if code >= len(COMPRESSIONS):
            raise InvalidBatch(f"compression code {code} at byte {self.position} is not known")
        return COMPRESSIONS[code]

    @property
    def last_sequence(self) -> int:
        """See :func:`last_sequence`."""
        return last_sequence(self.base_sequence, self.last_offset_delta)


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """Sequence of a batch's last record, wrapping at 2^31 as Kafka does; -1 without a producer."""
    return -1 if base_sequence < 0 else (base_sequence + last_offset_delta) & 0x7FFFFFFF


def parse_header(buffer: Buffer, position: int) -> BatchHeader:
    """Read the header at ``position``; of what follows it nothing needs to be in the buffer.

    Raises :class:`UnsupportedMagic` or :class:`InvalidBatch`.
    """
    left = len(buffer) - position
    if left > _MAGIC_AT and (magic := buffer[position + _MAGIC_AT]) != MAGIC:
        kind = UnsupportedMagic if magic in _LEGACY_BYTES else InvalidBatch
        raise kind(f"magic {magic} at byte {position}")
    if left < HEADER_BYTES:
        raise InvalidBatch(f"{left} bytes at byte {position} are shorter than a batch header")
    header = BatchHeader._make((position, *_HEADER.unpack_from(buffer, position)))
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


def is_cut_off(buffer: Buffer) -> bool:
    """Whether the first batch of a produce request is longer than what is there: a broker sees none
    then (``ByteBufferLogInputStream.nextBatch``)."""
    if len(buffer) < LOG_OVERHEAD:
        return True
    (length,) = _EPOCH.unpack_from(buffer, LOG_OVERHEAD - _EPOCH.size)
    has_magic = len(buffer) <= _MAGIC_AT or buffer[_MAGIC_AT] <= MAGIC
    return (
        has_magic and length >= min(_LEGACY_BYTES.values()) and length + LOG_OVERHEAD > len(buffer)
    )


def iter_fetched(buffer: Buffer, position: int = 0) -> Iterator[BatchHeader]:
    """Every batch of a Fetch response from ``position`` on, in order. The last may be cut off, as
    brokers do when it exceeds the asked size: it is left out.

    What a log below B0 holds in the formats of before Kafka 0.11 comes as :func:`_parse_legacy`
    has it. Raises :class:`InvalidBatch`.
    """
    while len(buffer) - position > _MAGIC_AT:
        (length,) = _EPOCH.unpack_from(buffer, position + 8)
        if length + LOG_OVERHEAD > len(buffer) - position:
            return
        legacy = buffer[position + _MAGIC_AT] in _LEGACY_BYTES
        header = _parse_legacy(buffer, position) if legacy else parse_at(buffer, position)
        yield header
        position = header.end


def _parse_legacy(buffer: Buffer, position: int) -> BatchHeader:
    """A message of magic 0 or 1 as a batch of one record without producer and leader epoch.

    The offset of a compressed one is that of the last message inside: ``last_offset`` is right,
    and ``base_offset`` the same, since only the messages inside know theirs (Kafka:
    ``AbstractLegacyRecordBatch``). Magic 0 has no timestamp (-1).
    """
    magic = buffer[position + _MAGIC_AT]
    (length,) = _EPOCH.unpack_from(buffer, position + 8)
    if length < _LEGACY_BYTES[magic]:
        raise InvalidBatch(f"a message of magic {magic} at byte {position} says {length} bytes")
    offset, length, crc, _, attributes = _LEGACY.unpack_from(buffer, position)
    timestamp = -1
    if magic == 1:
        (timestamp,) = _OFFSET.unpack_from(buffer, position + _LEGACY.size)
    return BatchHeader(
        position=position,
        base_offset=offset,
        length=length,
        partition_leader_epoch=-1,
        magic=magic,
        crc=crc,
        attributes=attributes & _LEGACY_ATTRIBUTES,
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=1,
    )


def computed_crc(buffer: Buffer, header: BatchHeader) -> int:
    """CRC-32C of everything from the attributes on."""
    return crc32c.crc32c(memoryview(buffer)[header.position + _ATTRIBUTES_AT : header.end])


def verify_crc(buffer: Buffer, header: BatchHeader) -> bool:
    """Whether the batch is as its producer wrote it."""
    return computed_crc(buffer, header) == header.crc


def is_batch(buffer: Buffer, size: int, last_offset_delta: int) -> bool:
    """Whether ``buffer`` is one whole batch of ``size`` bytes as its producer wrote it, no more and
    no less, with so many offsets behind its first: what :func:`parse_at` and :func:`verify_crc`
    find, without an object for it."""
    if len(buffer) != size or size < HEADER_BYTES:
        return False
    length, magic, crc, delta = _CHECKED.unpack_from(buffer)
    if length + LOG_OVERHEAD != size or magic != MAGIC or delta != last_offset_delta:
        return False
    return bool(crc == crc32c.crc32c(memoryview(buffer)[_ATTRIBUTES_AT:]))


def patched_start(base_offset: int, size: int, leader_epoch: int) -> bytes:
    """The first :data:`START_BYTES` of a batch of ``size`` bytes, as :func:`patch` makes them where
    the time of the append does not matter."""
    return _START.pack(base_offset, size - LOG_OVERHEAD, leader_epoch)


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


def with_max_timestamp(batch: bytes, max_timestamp: int) -> bytes:
    """One batch with another largest timestamp (ms) in its header, and its CRC."""
    copy = bytearray(batch)
    _OFFSET.pack_into(copy, _MAX_TIMESTAMP_AT, max_timestamp)
    struct.pack_into(">I", copy, _CRC_AT, computed_crc(copy, parse_at(copy, 0)))
    return bytes(copy)


def empty_batch(offsets: int) -> bytes:
    """A batch without records, producer and timestamp that takes so many offsets (at most 2^31-1),
    to be patched with its offset and leader epoch."""
    batch = bytearray(HEADER_BYTES)
    length = HEADER_BYTES - LOG_OVERHEAD
    _HEADER.pack_into(batch, 0, 0, length, -1, MAGIC, 0, 0, offsets - 1, -1, -1, -1, -1, -1, 0)
    struct.pack_into(">I", batch, _CRC_AT, computed_crc(batch, parse_at(batch, 0)))
    return bytes(batch)


def truncate_at(buffer: Buffer, boundary: int) -> Buffer:
    """The leading batches that lie wholly below ``boundary`` (exclusive); what follows, and a
    batch that is cut off at the end, is left out. Raises as :func:`iter_fetched` does."""
    end = _end_of_current(buffer, 0, boundary)
    while (header := next(iter_fetched(buffer, end), None)) and header.last_offset < boundary:
        end = _end_of_current(buffer, header.end, boundary)
    return buffer if end == len(buffer) else buffer[:end]


def size_of_first(buffer: Buffer) -> int:
    """Bytes of the first batch of a Fetch response, of whatever format; 0: there is none."""
    return next((end for _, end in _leader_epochs(buffer)), 0)


def first_bytes(buffer: Buffer, size: int) -> Buffer:
    """The leading batches that are no longer than ``size`` bytes together, of whatever format. None
    is cut off."""
    ends = takewhile(size.__ge__, (end for _, end in _leader_epochs(buffer)))
    return buffer[: max(ends, default=0)]


def _end_of_current(buffer: Buffer, position: int, boundary: int) -> int:
    """Where the run of whole batches of magic 2 below ``boundary`` that begins at ``position``
    ends. What is anything else is for :func:`iter_fetched` to judge: a large answer has hundreds of
    thousands of batches, and an object for each would take eight times as long."""
    read, size, last = _WALK.unpack_from, len(buffer), len(buffer) - HEADER_BYTES
    least = HEADER_BYTES - LOG_OVERHEAD
    while position <= last:
        base_offset, length, magic, last_offset_delta = read(buffer, position)
        end = position + LOG_OVERHEAD + length
        if magic != MAGIC or length < least or end > size:
            break
        if base_offset + last_offset_delta >= boundary:
            break
        position = end
    return position


def _leader_epochs(buffer: Buffer) -> Iterator[tuple[int, int]]:
    """The leader epoch of each whole batch, and where it ends. Formats before magic 2 have none:
    -1. Nothing else is looked at, so that what is not understood stays readable."""
    position = 0
    while len(buffer) - position > _MAGIC_AT:
        (length,) = _EPOCH.unpack_from(buffer, position + 8)
        end = position + LOG_OVERHEAD + length
        if not position + _MAGIC_AT < end <= len(buffer):
            return
        (epoch,) = _EPOCH.unpack_from(buffer, position + _EPOCH_AT)
        yield epoch if buffer[position + _MAGIC_AT] >= MAGIC else -1, end
        position = end


def newest_epoch(buffer: Buffer) -> int:
    """The highest leader epoch of the batches in ``buffer``, -1 if it has none."""
    return max((epoch for epoch, _ in _leader_epochs(buffer)), default=-1)


def until_epoch(buffer: Buffer, leader_epoch: int) -> Buffer:
    """The leading batches that are no newer than ``leader_epoch``; all of them if it is -1."""
    if leader_epoch < 0:
        return buffer
    last = 0
    for epoch, end in _leader_epochs(buffer):
        if epoch > leader_epoch:
            break
        last = end
    return buffer if last == len(buffer) else buffer[:last]


def uses_zstd(batches: bytes) -> bool:
    """Whether any of these stored batches needs a client that knows zstd."""
    return any(header.compression == "zstd" for header in iter_batches(batches))
