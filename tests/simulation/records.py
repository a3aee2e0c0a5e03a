"""Record batches of magic 2, made and read by the simulated clients themselves."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import crc32c


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    shift = value = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def batch(
    values: Sequence[str],
    timestamp: int,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
) -> bytes:
    """One uncompressed batch, as a client sends it."""
    body = bytearray()
    for number, value in enumerate(values):
        data = value.encode()
        record = (
            b"\0" + _varint(0) + _varint(number) + _varint(-1) + _varint(len(data)) + data
        ) + _varint(0)
        body += _varint(len(record)) + record
    count = len(values)
    rest = struct.pack(
        ">hiqqqhii", 0, count - 1, timestamp, timestamp, producer_id, epoch, sequence, count
    ) + bytes(body)
    return struct.pack(">qiibI", 0, 9 + len(rest), -1, 2, crc32c.crc32c(rest)) + rest


def read(data: bytes) -> Iterator[tuple[int, str, int]]:
    """(offset, value, leader epoch) of every record in whole batches."""
    at = 0
    while len(data) - at >= 61:
        base, length, epoch, _, crc = struct.unpack_from(">qiibI", data, at)
        if at + 12 + length > len(data):
            return
        assert crc32c.crc32c(data[at + 21 : at + 12 + length]) == crc, "a batch with a wrong CRC"
        (count,) = struct.unpack_from(">i", data, at + 57)
        place = at + 61
        for _ in range(count):
            size, place = _read_varint(data, place)
            end = place + size
            place += 1
            _, place = _read_varint(data, place)
            delta, place = _read_varint(data, place)
            key_size, place = _read_varint(data, place)
            place += max(0, key_size)
            value_size, place = _read_varint(data, place)
            yield base + delta, data[place : place + value_size].decode(), epoch
            place = end
        at += 12 + length
