"""The records of batches as columns, as a consumer would be handed them.

Unlike :mod:`tideline.kafka.records`, which judges what a producer sends, this reads what a log
holds: offsets may have gaps, as compaction once left them. No length is trusted. Format: Kafka's
``DefaultRecord``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tideline.kafka.batches import BatchHeader
from tideline.kafka.records import NO_BOUND, InvalidRecords, signed, varint

Headers = list[tuple[str, bytes | None]]


@dataclass(slots=True)
class RecordColumns:
    """Records in the order of their offsets; every list has an item for each."""

    offsets: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    """ms; -1: none."""
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[Headers | None] = field(default_factory=list)
    """``None``: the record has none."""

    def __len__(self) -> int:
        return len(self.offsets)


def append_records(
    into: RecordColumns,
    body: bytes,
    header: BatchHeader,
    *,
    base_offset: int,
    start: int,
    end: int,
    append_time: int | None,
) -> None:
    """Append the records of one unpacked ``body`` with offsets in ``[start, end)``.

    ``base_offset``: where the batch stands in the log, whatever ``header`` says.
    ``append_time``: ms, of every record under LogAppendTime. Raises :class:`InvalidRecords`, whose
    ``index`` is that of the wrong record in the batch; ``into`` then has those before it.
    """
    wanted = range(start - base_offset, end - base_offset)
    whole = wanted.start <= 0 and header.last_offset_delta < wanted.stop
    before = len(into.offsets)
    try:
        position = _append(into, body, header, base_offset, None if whole else wanted, append_time)
    except IndexError:
        raise InvalidRecords(
            "the records end before the last one does", len(into.offsets) - before
        ) from None
    found = into.timestamps[before:]
    if found and not -NO_BOUND <= min(found) <= max(found) < NO_BOUND:
        # The sum of base and delta goes round, as Java's does (``DefaultRecord.readFrom``).
        into.timestamps[before:] = [(at + NO_BOUND) % (2 * NO_BOUND) - NO_BOUND for at in found]
    if position != len(body):
        raise InvalidRecords(
            f"{len(body) - position} bytes follow the last of {header.record_count} records",
            header.record_count - 1,
        )


def _append(
    into: RecordColumns,
    body: bytes,
    header: BatchHeader,
    base_offset: int,
    wanted: range | None,
    append_time: int | None,
) -> int:
    """One pass; the position behind the last record. Numbers of one byte, or two where that is
    common, are read in place: calls would cost more than all else. ``wanted``: by offset delta;
    ``None``: all."""
    add_offset, add_timestamp = into.offsets.append, into.timestamps.append
    add_key, add_value, add_headers = into.keys.append, into.values.append, into.headers.append
    base_timestamp, last_delta = header.base_timestamp, header.last_offset_delta
    position, size, last = 0, len(body), -1
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
        record_end = position + length
        if length < 0 or record_end > size:
            raise InvalidRecords(f"record {number} says {length} bytes", number)
        position += 1  # attributes, of which none are defined
        timestamp = body[position]
        position += 1
        if timestamp & 0x80:
            following = body[position]
            if following & 0x80:
                timestamp, position = varint(body, position - 1, 10, 64)
            else:
                timestamp = timestamp & 0x7F | following << 7
                position += 1
        delta = body[position]
        position += 1
        if delta & 0x80:
            following = body[position]
            if following & 0x80:
                delta, position = varint(body, position - 1)
            else:
                delta = delta & 0x7F | following << 7
                position += 1
        delta = (delta >> 1) ^ -(delta & 1)
        if not last < delta <= last_delta:
            raise InvalidRecords(f"record {number} has the offset delta {delta}", number)
        last = delta
        length = body[position]  # of the key
        position += 1
        if length & 0x80:
            length, position = varint(body, position - 1)
        key: bytes | None = None
        if not length & 1:
            following = position + (length >> 1)
            key = body[position:following]
            position = following
        elif length != 1:
            raise InvalidRecords(f"record {number} has a key of no length", number)
        length = body[position]  # of the value
        position += 1
        if length & 0x80:
            following = body[position]
            if following & 0x80:
                length, position = varint(body, position - 1)
            else:
                length = length & 0x7F | following << 7
                position += 1
        value: bytes | None = None
        if not length & 1:
            following = position + (length >> 1)
            value = body[position:following]
            position = following
        elif length != 1:
            raise InvalidRecords(f"record {number} has a value of no length", number)
        headers: Headers | None = None
        if body[position]:
            headers, position = _headers(body, position, record_end, number)
        else:
            position += 1
        if position != record_end:
            raise InvalidRecords(f"record {number} is not as long as it says", number)
        if wanted is None or delta in wanted:
            add_offset(base_offset + delta)
            if append_time is None:
                add_timestamp(base_timestamp + ((timestamp >> 1) ^ -(timestamp & 1)))
            else:
                add_timestamp(append_time)
            add_key(key)
            add_value(value)
            add_headers(headers)
    return position


def _headers(body: bytes, position: int, end: int, number: int) -> tuple[Headers, int]:
    count, position = signed(body, position)
    if not 0 <= count <= end - position:
        raise InvalidRecords(f"record {number} says {count} headers", number)
    found: Headers = []
    for _ in range(count):
        size, position = signed(body, position)
        if not 0 <= size <= end - position:
            raise InvalidRecords(f"record {number} has a header without a key", number)
        name = body[position : position + size].decode(errors="replace")
        size, position = signed(body, position + size)
        if not -1 <= size <= end - position:
            raise InvalidRecords(f"record {number} has a header of no length", number)
        found.append((name, None if size < 0 else body[position : position + size]))
        position += max(size, 0)
    return found, position
