"""Records inside a batch of magic 2: unpacked within a bound, read without trusting a length.

Format and limits: Kafka's ``DefaultRecord``, ``DefaultRecordBatch``, ``ByteUtils`` and
``Lz4BlockInputStream`` (which reads independent blocks only).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import cramjam

from tideline.kafka.batches import HEADER_BYTES, BatchHeader, Buffer

GZIP_WBITS = 31
GZIP_WINDOW = 4 * 1024
"""bytes given to a member at a time: what follows it is copied."""
LZ4_MAGIC = b"\x04\x22\x4d\x18"
LZ4_INDEPENDENT_BLOCKS = 0x20
LZ4_BLOCK_CHECKSUM, LZ4_CONTENT_SIZE, LZ4_CONTENT_CHECKSUM, LZ4_RESERVED = 0x10, 0x08, 0x04, 0x03
"""Flags of a frame."""
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + b"\0\0\0\x01" * 2
"""Magic, version, and the oldest version that can read it."""
_BLOCK_LENGTH = struct.Struct(">i")
_LZ4_BLOCK = struct.Struct("<I")
FIRST_GUESS = 64 * 1024
"""bytes; what a zstd or lz4 frame is unpacked into first."""
NO_TIMESTAMP = -1
NO_BOUND = 2**63
MAX_NAMED = 3
"""Records of a batch that are named in an answer, as Kafka does."""


class InvalidRecords(ValueError):
    """The records of a batch are not what its header says, or cannot be read."""

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index
        """Of the first wrong record, counted from 0."""


class UnpackedTooLarge(ValueError):
    """The records are larger than the bound when they are unpacked."""


@dataclass(frozen=True, slots=True)
class RecordSummary:
    """What validation needs to know of all records of a batch."""

    max_timestamp: int
    """ms; -1 if no record has one."""
    out_of_range: tuple[tuple[int, int], ...]
    """Index and timestamp (ms) of the first few records whose timestamp is not allowed."""
    headers: int
    """Of all records together."""


def unpacked(batch: Buffer, header: BatchHeader, limit: int) -> bytes | bytearray | memoryview:
    """The records of one batch, at most ``limit`` bytes.

    Raises :class:`UnpackedTooLarge` or :class:`InvalidRecords`.
    """
    body = memoryview(batch)[header.position + HEADER_BYTES : header.end]
    match header.compression:
        case "gzip":
            return _gunzipped(body, limit)
        case "snappy":
            return _from_snappy(body, limit)
        case "lz4":
            _must_be_readable_lz4(body)
            return _from_frames(cramjam.lz4.decompress_into, body, limit)
        case "zstd":
            return _from_frames(cramjam.zstd.decompress_into, body, limit)
    if len(body) > limit:
        raise UnpackedTooLarge(f"{len(body)} bytes of records, {limit} are allowed")
    return bytes(body)


def _gunzipped(body: memoryview, limit: int) -> bytes:
    found: list[bytes] = []
    left, position = limit, 0
    member = zlib.decompressobj(GZIP_WBITS)
    while position < len(body):
        if member.eof:
            member = zlib.decompressobj(GZIP_WBITS)
        window = body[position : position + GZIP_WINDOW]
        try:
            piece = member.decompress(window, left + 1)
        except zlib.error as error:
            raise InvalidRecords(f"gzip: {error}") from error
        if len(piece) > left:
            raise UnpackedTooLarge(f"unpacked, the records have more than {limit} bytes")
        found.append(piece)
        left -= len(piece)
        position += len(window) - len(member.unused_data)
    if position and not member.eof:
        raise InvalidRecords("gzip: the records end before the stream does")
    return b"".join(found)


def _from_snappy(body: memoryview, limit: int) -> bytearray:
    found = bytearray()
    for block in _snappy_blocks(body):
        try:
            size = cramjam.snappy.decompress_raw_len(block)
            if len(found) + size > limit:
                raise UnpackedTooLarge(f"unpacked, the records have more than {limit} bytes")
            piece = bytearray(size)
            cramjam.snappy.decompress_raw_into(block, piece)
        except cramjam.DecompressionError as error:
            raise InvalidRecords(f"snappy: {error}") from error
        found += piece
    return found


def _snappy_blocks(body: memoryview) -> Iterator[bytes]:
    """Blocks of the framing that Java's snappy writes, or the one block that others write."""
    if bytes(body[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        yield bytes(body)
        return
    position = len(XERIAL_HEADER)
    if bytes(body[:position]) != XERIAL_HEADER:
        raise InvalidRecords("snappy: a framing of another version than 1")
    while position < len(body):
        if position + _BLOCK_LENGTH.size > len(body):
            raise InvalidRecords("snappy: the records end inside a block's length")
        (length,) = _BLOCK_LENGTH.unpack_from(body, position)
        position += _BLOCK_LENGTH.size
        if not 0 < length <= len(body) - position:
            raise InvalidRecords(f"snappy: a block says {length} bytes")
        yield bytes(body[position : position + length])
        position += length


def _must_be_readable_lz4(body: memoryview) -> None:
    """Java reads one frame of version 1 with independent blocks, and nothing else."""
    if len(body) < 7 or bytes(body[:4]) != LZ4_MAGIC:
        raise InvalidRecords("lz4: no frame begins there")
    if body[4] >> 6 != 1 or not body[4] & LZ4_INDEPENDENT_BLOCKS:
        raise InvalidRecords("lz4: only frames of version 1 with independent blocks can be read")
    if body[4] & LZ4_RESERVED:
        raise InvalidRecords("lz4: a frame with a dictionary cannot be read")
    position = 15 if body[4] & LZ4_CONTENT_SIZE else 7
    checksum = 4 if body[4] & LZ4_BLOCK_CHECKSUM else 0
    while position + 4 <= len(body):
        (block,) = _LZ4_BLOCK.unpack_from(body, position)
        position += 4
        if not block:
            position += 4 if body[4] & LZ4_CONTENT_CHECKSUM else 0
            break
        position += (block & 0x7FFFFFFF) + checksum
    else:
        raise InvalidRecords("lz4: the records end inside the frame")
    if position != len(body):
        raise InvalidRecords("lz4: something follows the frame, which nobody would read")


def _from_frames(decompress_into: object, body: memoryview, limit: int) -> memoryview:
    """The size of what is packed is not known: room grows until it suffices."""
    room = min(limit, max(FIRST_GUESS, 4 * len(body)))
    while True:
        found = bytearray(room)
        try:
            size = decompress_into(body, found)  # type: ignore[operator]
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise InvalidRecords(str(error)) from error
            if room >= limit:
                raise UnpackedTooLarge(
                    f"unpacked, the records have more than {limit} bytes"
                ) from error
            room = min(limit, room * 4)
            continue
        return memoryview(found)[:size]


def summarize(
    body: Buffer,
    header: BatchHeader,
    *,
    earliest: int,
    latest: int,
    most_headers: int = NO_BOUND,
) -> RecordSummary:
    """Read every record of the unpacked ``body``: as many as the header says, each as long as it
    says, offsets without a gap, nothing behind the last.

    ``earliest`` and ``latest`` (ms, inclusive) bound the timestamps of those that have one.
    Raises :class:`InvalidRecords`, or :class:`UnpackedTooLarge` if the records have more than
    ``most_headers`` headers together, before those that are too many are read.
    """
    position = number = 0
    try:
        summary, position, number = _summarized(bytes(body), header, earliest, latest, most_headers)
    except IndexError:
        raise InvalidRecords("the records end before the last one does") from None
    if position != len(body):
        raise InvalidRecords(f"{len(body) - position} bytes follow the last of {number} records")
    return summary


def _summarized(
    body: bytes, header: BatchHeader, earliest: int, latest: int, most_headers: int
) -> tuple[RecordSummary, int, int]:
    """One pass. Numbers of one byte, or two where that is common, are read in place: calls would
    cost more than all else."""
    base = header.base_timestamp
    low, high = earliest - base, latest - base
    no_timestamp = NO_TIMESTAMP - base
    position, size = 0, len(body)
    largest = no_timestamp
    left = most_headers
    out_of_range: list[tuple[int, int]] = []
    for number in range(header.record_count):
        length = body[position]
        position += 1
        if length & 0x80:
            following = body[position]
            if following & 0x80:
                length, position = varint(body, position - 1)
            else:
                length = length & 0x7F | following << 7
                position += 1
        length = (length >> 1) ^ -(length & 1)
        end = position + length
        if length < 0 or end > size:
            raise InvalidRecords(f"record {number} says {length} bytes", number)
        if body[position]:
            raise InvalidRecords(f"record {number} has attributes, none are defined", number)
        position += 1
        delta = body[position]
        position += 1
        if delta & 0x80:
            following = body[position]
            if following & 0x80:
                delta, position = varint(body, position - 1, 10, 64)
            else:
                delta = delta & 0x7F | following << 7
                position += 1
        delta = (delta >> 1) ^ -(delta & 1)
        if delta > largest:
            largest = delta
        if not low <= delta <= high and delta != no_timestamp and len(out_of_range) < MAX_NAMED:
            out_of_range.append((number, base + delta))
        offset = body[position]
        position += 1
        if offset & 0x80:
            following = body[position]
            if following & 0x80:
                offset, position = varint(body, position - 1)
            else:
                offset = offset & 0x7F | following << 7
                position += 1
        if offset != 2 * number:
            offset = (offset >> 1) ^ -(offset & 1)
            raise InvalidRecords(f"record {number} has the offset delta {offset}", number)
        length = body[position]  # of the key
        position += 1
        if length & 0x80:
            length, position = varint(body, position - 1)
        if not length & 1:
            position += length >> 1
        elif length != 1:
            raise InvalidRecords(f"record {number} has a key of no length", number)
        length = body[position]  # of the value
        position += 1
        if length & 0x80:
            length, position = varint(body, position - 1)
        if not length & 1:
            position += length >> 1
        elif length != 1:
            raise InvalidRecords(f"record {number} has a value of no length", number)
        headers = body[position]
        position += 1
        if headers:
            position, left = _behind_headers(body, position - 1, end, number, left)
        if position != end:
            raise InvalidRecords(f"record {number} is not as long as it says", number)
    summary = RecordSummary(base + largest, tuple(out_of_range), most_headers - left)
    return summary, position, header.record_count


def _behind_headers(
    body: bytes, position: int, end: int, number: int, most: int
) -> tuple[int, int]:
    """The position behind them, and how many more than they there may be."""
    count, position = signed(body, position)
    if not 0 <= count <= end - position:
        raise InvalidRecords(f"record {number} says {count} headers", number)
    if count > most:
        raise UnpackedTooLarge(f"record {number} has {count} headers, {most} are read")
    for _ in range(count):
        key, position = signed(body, position)
        if key < 0:
            raise InvalidRecords(f"record {number} has a header without a key", number)
        value, position = signed(body, position + key)
        if value < -1:
            raise InvalidRecords(f"record {number} has a header of no length", number)
        position += max(value, 0)
    return position, most - count


def signed(body: bytes, position: int) -> tuple[int, int]:
    value, position = varint(body, position)
    return (value >> 1) ^ -(value & 1), position


def varint(body: bytes, position: int, most: int = 5, bits: int = 32) -> tuple[int, int]:
    """The number at ``position`` as it is packed (zigzag), and the position behind it."""
    value = shift = 0
    for _ in range(most):
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            if value >> bits:
                break
            return value, position
        shift += 7
    raise InvalidRecords(f"a number of more than {bits} bits")
