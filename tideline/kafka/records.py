"""Records inside a batch of magic 2: unpacked within a bound, read without trusting a length.

Format and limits: Kafka's ``DefaultRecord``, ``DefaultRecordBatch``, ``ByteUtils`` and
``Lz4BlockInputStream`` (which reads independent blocks only).
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

import cramjam

from tideline.kafka.batches import HEADER_BYTES, BatchHeader, Buffer
from tideline.kafka.wire import LibraryMissing, library, library_with_the_lock

GZIP_WBITS = 31
GZIP_START = b"\x1f\x8b\x08"
"""Magic, and the one method that there is."""
GZIP_LEAST_BYTES = 19
"""Of what may be a member behind another one; less is not looked at, as by Java."""
MEMBER_COSTS, SNAPPY_BLOCK_COSTS, LZ4_BLOCK_COSTS = 16 * 1024, 512, 64
"""bytes; what each further stream or block of a batch counts for beside what it unpacks to, because
it takes Python as long: 10, 1.5 and 0.2 microseconds."""
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
MOST = NO_BOUND - 1
KEPT_LOCK_BYTES = 256 * 1024
"""Of records that are read natively without letting the interpreter's lock go: a millisecond of the
worst."""
_NUMBER = ctypes.c_int64
MAX_NAMED = 3
"""Records of a batch that are named in an answer, as Kafka does."""


class InvalidRecords(ValueError):
    """The records of a batch are not what its header says, or cannot be read."""

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index
        """Of the first wrong record, counted from 0."""


class LongNumber(InvalidRecords):
    """A number has more than ``bits``; ``position``: behind what was read of it."""

    def __init__(self, bits: int, position: int) -> None:
        super().__init__(f"a number of more than {bits} bits")
        self.bits, self.position = bits, position


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
            return _from_frames(cramjam.lz4.decompress_into, _lz4_frame(body, limit), limit)
        case "zstd":
            return _from_frames(cramjam.zstd.decompress_into, body, limit)
    if len(body) > limit:
        raise UnpackedTooLarge(f"{len(body)} bytes of records, {limit} are allowed")
    return bytes(body)


def _room(size: int) -> memoryview:
    """Zeros. Much of them is the system's to make, when a codec comes to them: making 64 MiB at
    once keeps the interpreter's lock for 20 to 40 ms."""
    return memoryview(bytearray(size) if size <= KEPT_LOCK_BYTES else mmap.mmap(-1, size))


def _too_large(limit: int) -> UnpackedTooLarge:
    return UnpackedTooLarge(f"unpacked, the records have more than {limit} bytes")


def _too_many(parts: str, limit: int) -> UnpackedTooLarge:
    return UnpackedTooLarge(f"the records are in more {parts} than {limit} bytes of them may be")


def _gunzipped(body: memoryview, limit: int) -> bytearray:
    found = bytearray()
    left, position = limit, 0
    member = zlib.decompressobj(GZIP_WBITS)
    while position < len(body):
        if member.eof:
            if not _is_member(body[position:]):
                break
            left -= MEMBER_COSTS
            if left < 0:
                raise _too_many("streams", limit)
            member = zlib.decompressobj(GZIP_WBITS)
        window = body[position : position + GZIP_WINDOW]
        try:
            piece = member.decompress(window, left + 1)
        except zlib.error as error:
            raise InvalidRecords(f"gzip: {error}") from error
        if len(piece) > left:
            raise _too_large(limit)
        found += piece
        left -= len(piece)
        position += len(window) - len(member.unused_data)
    if position and not member.eof:
        raise InvalidRecords("gzip: the records end before the stream does")
    return found


def _is_member(rest: memoryview) -> bool:
    """Whether what follows a member is another one. Else it is padding, which Java passes over,
    with all behind it (``GZIPInputStream.readTrailer``)."""
    return len(rest) >= GZIP_LEAST_BYTES and bytes(rest[: len(GZIP_START)]) == GZIP_START


def _from_snappy(body: memoryview, limit: int) -> memoryview:
    blocks: list[tuple[bytes, int]] = []
    left = limit + SNAPPY_BLOCK_COSTS  # the first one costs nothing
    try:
        for block in _snappy_blocks(body):
            blocks.append((block, cramjam.snappy.decompress_raw_len(block)))
            left -= blocks[-1][1] + SNAPPY_BLOCK_COSTS
            if left < 0:
                raise _too_large(limit) if len(blocks) == 1 else _too_many("blocks", limit)
        found, position = _room(sum(size for _, size in blocks)), 0
        for block, size in blocks:
            cramjam.snappy.decompress_raw_into(block, found[position : position + size])
            position += size
    except cramjam.DecompressionError as error:
        raise InvalidRecords(f"snappy: {error}") from error
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


def _lz4_frame(body: memoryview, limit: int) -> memoryview:
    """The one frame, of version 1 with independent blocks, that Java reads of ``body``: it does not
    look at what follows it (``Lz4BlockInputStream``)."""
    if len(body) < 7 or bytes(body[:4]) != LZ4_MAGIC:
        raise InvalidRecords("lz4: no frame begins there")
    if body[4] >> 6 != 1 or not body[4] & LZ4_INDEPENDENT_BLOCKS:
        raise InvalidRecords("lz4: only frames of version 1 with independent blocks can be read")
    if body[4] & LZ4_RESERVED:
        raise InvalidRecords("lz4: a frame with a dictionary cannot be read")
    position = 15 if body[4] & LZ4_CONTENT_SIZE else 7
    checksum = 4 if body[4] & LZ4_BLOCK_CHECKSUM else 0
    left = limit + LZ4_BLOCK_COSTS
    while position + 4 <= len(body):
        (block,) = _LZ4_BLOCK.unpack_from(body, position)
        position += 4
        if not block:
            position += 4 if body[4] & LZ4_CONTENT_CHECKSUM else 0
            break
        position += (block & 0x7FFFFFFF) + checksum
        left -= LZ4_BLOCK_COSTS
        if left < 0:
            raise _too_many("blocks", limit)
    else:
        raise InvalidRecords("lz4: the records end inside the frame")
    if position > len(body):
        raise InvalidRecords("lz4: the records end inside the frame")
    return body[:position]


def _from_frames(decompress_into: object, body: memoryview, limit: int) -> memoryview:
    """The size of what is packed is not known: room grows until it suffices."""
    room = min(limit, max(FIRST_GUESS, 4 * len(body)))
    while True:
        found = _room(room)
        try:
            size = decompress_into(body, found)  # type: ignore[operator]
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise InvalidRecords(str(error)) from error
            if room >= limit:
                raise _too_large(limit) from error
            room = min(limit, room * 4)
            continue
        return found[:size]


def summarize(
    body: Buffer,
    header: BatchHeader,
    *,
    earliest: int,
    latest: int,
    most_headers: int = NO_BOUND,
    first: int = 0,
) -> RecordSummary:
    """Read every record of the unpacked ``body``: as many as the header says, each as long as it
    says, offsets without a gap, nothing behind the last. By the native library, without the
    interpreter's lock where that takes long; in Python where there is none.

    ``earliest`` and ``latest`` (ms, inclusive) bound the timestamps of those that have one.
    ``first``: records before this one, counted from 0, do not count for what is said of timestamps.
    Raises :class:`InvalidRecords`, or :class:`UnpackedTooLarge` if the records have more than
    ``most_headers`` headers together, before those that are too many are read.
    """
    base = header.base_timestamp
    lowest, highest = max(earliest - base, -NO_BOUND), min(latest - base, MOST)
    if lowest > MOST or highest < -NO_BOUND:
        lowest, highest = MOST, -NO_BOUND  # no number of 64 bits
    asked = _Asked(header.record_count, first, base, lowest, highest, min(most_headers, MOST))
    native = _native()
    found = None if native is None else _read_natively(native, body, asked)
    if found is None or (isinstance(found, _Wrong) and found.fault is Fault.ATTRIBUTES):
        found = _read(bytes(body), asked)
    if isinstance(found, _Wrong):
        raise found.error(asked)
    return RecordSummary(
        base + max(found.latest, NO_TIMESTAMP - base),
        tuple((number, base + delta) for number, delta in found.out_of_range),
        found.headers,
    )


class _Asked(NamedTuple):
    """As ``Asked`` in ``wire/src/records.rs``: timestamps as far from the base as records say."""

    records: int
    first: int
    base_timestamp: int
    earliest: int
    latest: int
    most_headers: int


class _Found(NamedTuple):
    latest: int
    """Of no record, less than all."""
    headers: int
    out_of_range: tuple[tuple[int, int], ...]


class Fault(IntEnum):
    """What may be wrong with records, by the numbers of ``wire/src/records.rs``."""

    ENDS = 1
    SIZE = 2
    ATTRIBUTES = 3
    """Not wrong: Kafka does not look at them (``DefaultRecord.readFrom``). The library reads no
    record that has some, and Python does."""
    OFFSET_DELTA = 4
    KEY = 5
    VALUE = 6
    HEADERS = 7
    HEADER_KEY = 8
    HEADER_VALUE = 9
    BITS = 10
    SHORT = 11
    BEHIND = 12
    TOO_MANY_HEADERS = 13


_WORDS = {
    Fault.ENDS: "the records end before record {record} does",
    Fault.SIZE: "record {record} says {value} bytes",
    Fault.OFFSET_DELTA: "record {record} has the offset delta {value}",
    Fault.KEY: "record {record} has a key of no length",
    Fault.VALUE: "record {record} has a value of no length",
    Fault.HEADERS: "record {record} says {value} headers",
    Fault.HEADER_KEY: "record {record} has a header without a key",
    Fault.HEADER_VALUE: "record {record} has a header of no length",
    Fault.BITS: "record {record} has a number of more than {value} bits",
    Fault.SHORT: "record {record} is not as long as it says",
    Fault.BEHIND: "{value} bytes follow the last of {record} records",
    Fault.TOO_MANY_HEADERS: "record {record} has {value} headers, all together {most} are read",
}


class _Wrong(NamedTuple):
    """The first fault: of which record, and the number that is wrong."""

    fault: Fault
    record: int
    value: int

    def error(self, asked: _Asked) -> ValueError:
        words = _WORDS[self.fault].format(
            record=self.record, value=self.value, most=asked.most_headers
        )
        if self.fault is Fault.TOO_MANY_HEADERS:
            return UnpackedTooLarge(words)
        return InvalidRecords(words, None if self.fault is Fault.BEHIND else self.record)


class _Calls(NamedTuple):
    alone: Any
    beside: Any


@cache
def _native() -> _Calls | None:
    try:
        return _Calls(library_with_the_lock().wire_records, library().wire_records)
    except LibraryMissing:
        return None


def _read_natively(native: _Calls, body: Buffer, asked: _Asked) -> _Found | _Wrong:
    size, numbers, told = len(body), (_NUMBER * 6)(*asked), (_NUMBER * (4 + 2 * MAX_NAMED))()
    # Getting the lock back from a thread that computes takes 5 ms: who is done before keeps it.
    read = native.alone if size <= KEPT_LOCK_BYTES else native.beside
    if isinstance(body, bytes):
        fault = read(body, size, numbers, told)
    else:
        fault = read((ctypes.c_char * size).from_buffer(body), size, numbers, told)
    if fault:
        assert fault > 0, "a defect of the native library"
        return _Wrong(Fault(fault), told[0], told[1])
    rows = told[4 : 4 + 2 * told[3]]
    return _Found(told[1], told[2], tuple(zip(rows[::2], rows[1::2], strict=True)))


def _read(body: bytes, asked: _Asked) -> _Found | _Wrong:
    """The same in Python, one pass. Numbers of one byte, or two where that is common, are read in
    place: calls would cost more than all else. Whatever is met behind a record's end, that record
    is not as long as it says."""
    no_timestamp = NO_TIMESTAMP - asked.base_timestamp
    first, low, high = asked.first, asked.earliest, asked.latest
    position = record = 0
    end = size = len(body)
    largest = -NO_BOUND
    headers = 0
    out_of_range: list[tuple[int, int]] = []
    fault, value = Fault.SHORT, 0
    try:
        for record in range(asked.records):
            fault, end = Fault.ENDS, size
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
            if length < 0 or position + length > size:
                return _Wrong(Fault.SIZE, record, length)
            end = position + length
            fault = Fault.SHORT
            position += 1  # attributes, of which none are defined
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
            offset = body[position]
            position += 1
            if offset & 0x80:
                following = body[position]
                if following & 0x80:
                    offset, position = varint(body, position - 1)
                else:
                    offset = offset & 0x7F | following << 7
                    position += 1
            if offset != 2 * record:
                fault, value = Fault.OFFSET_DELTA, (offset >> 1) ^ -(offset & 1)
                break
            length = body[position]  # of the key
            position += 1
            if length & 0x80:
                length, position = varint(body, position - 1)
            if not length & 1:
                position += length >> 1
            elif length != 1:
                fault = Fault.KEY
                break
            length = body[position]  # of the value
            position += 1
            if length & 0x80:
                length, position = varint(body, position - 1)
            if not length & 1:
                position += length >> 1
            elif length != 1:
                fault = Fault.VALUE
                break
            count = body[position]
            position += 1
            if count:
                count, position = signed(body, position - 1)
                if position <= end:
                    if not 0 <= count <= end - position:
                        return _Wrong(Fault.HEADERS, record, count)
                    if count > asked.most_headers - headers:
                        return _Wrong(Fault.TOO_MANY_HEADERS, record, count)
                    headers += count
                    for _ in range(count):
                        length, position = varint(body, position)  # of the key
                        if length & 1:
                            fault = Fault.HEADER_KEY
                            break
                        length, position = varint(body, position + (length >> 1))  # of the value
                        if length & 1 and length != 1:
                            fault = Fault.HEADER_VALUE
                            break
                        position += length >> 1
                    if fault is not Fault.SHORT:
                        break
            if position != end:
                break
            if record < first or delta == no_timestamp:
                continue
            if delta > largest:
                largest = delta
            if not low <= delta <= high and len(out_of_range) < MAX_NAMED:
                out_of_range.append((record, delta))
        else:
            if position == size:
                return _Found(largest, headers, tuple(out_of_range))
            return _Wrong(Fault.BEHIND, max(asked.records, 0), size - position)
    except IndexError:
        return _Wrong(fault, record, 0)
    except LongNumber as long:
        if long.position <= end:
            return _Wrong(Fault.BITS, record, long.bits)
        return _Wrong(fault, record, 0)
    return _Wrong(fault, record, value) if position <= end else _Wrong(Fault.SHORT, record, 0)


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
    raise LongNumber(bits, position)
