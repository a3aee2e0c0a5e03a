"""The search of a stored batch for a record by its timestamp."""

from __future__ import annotations

from dataclasses import dataclass

from tideline.errors import TidelineError
from tideline.kafka.batches import BatchHeader, Buffer, InvalidBatch, parse_at
from tideline.kafka.records import NO_BOUND, NO_TIMESTAMP, InvalidRecords, summarize, unpacked


@dataclass(frozen=True, slots=True)
class FoundRecord:
    offset: int
    """inclusive"""
    timestamp: int
    """ms"""


class UndecodableBatch(TidelineError):
    """A stored batch whose records cannot be unpacked. Only a search by timestamp unpacks them."""


def found_by_append_time(
    append_time: int, timestamp: int | None, *, base_offset: int, not_before: int
) -> FoundRecord | None:
    """As :func:`find_record`, of a batch whose records all have the time of its append (ms)."""
    if timestamp is not None and append_time < timestamp:
        return None
    return FoundRecord(max(base_offset, not_before), append_time)


def find_record(
    batch: Buffer, timestamp: int | None, *, base_offset: int, not_before: int, most_unpacked: int
) -> FoundRecord | None:
    """The first record of a whole batch at or after ``timestamp`` (ms), or ``None``; if
    ``timestamp`` is ``None``, the first of those with the largest one.

    ``base_offset``: where the batch stands in the log, whatever it says itself.
    ``not_before``: records below this offset do not count; the batch reaches it.
    ``most_unpacked``: bytes that its records may have.
    Raises :class:`UndecodableBatch`, and :class:`~tideline.kafka.records.UnpackedTooLarge`.
    """
    try:
        header = parse_at(batch, 0)
        first = max(0, not_before - base_offset)
        if first >= header.record_count:
            return None
        body = unpacked(batch, header, most_unpacked)
        if timestamp is not None and timestamp <= NO_TIMESTAMP:
            return FoundRecord(base_offset + first, _timestamp_of(body, header, first))
        if timestamp is None:
            whole = summarize(body, header, earliest=-NO_BOUND, latest=NO_BOUND, first=first)
            timestamp = whole.max_timestamp
            if timestamp <= NO_TIMESTAMP:
                return FoundRecord(base_offset + first, NO_TIMESTAMP)
        # Those that a search looks for are out of the range of all before it.
        later = summarize(body, header, earliest=-NO_BOUND, latest=timestamp - 1, first=first)
    except (InvalidBatch, InvalidRecords) as error:
        raise UndecodableBatch(
            f"the records of the batch at offset {base_offset} cannot be unpacked: {error}; a "
            "search by timestamp that meets it fails, delete records up to its end to get past it"
        ) from error
    if not later.out_of_range:
        return None
    number, found = later.out_of_range[0]
    return FoundRecord(base_offset + number, found)


def _timestamp_of(body: Buffer, header: BatchHeader, number: int) -> int:
    """ms, of one record of the batch."""
    timed = summarize(body, header, earliest=-NO_BOUND, latest=NO_TIMESTAMP, first=number)
    place, timestamp = next(iter(timed.out_of_range), (number, NO_TIMESTAMP))
    return timestamp if place == number else NO_TIMESTAMP


def largest(*records: FoundRecord | None) -> FoundRecord | None:
    """The one with the largest timestamp, the smallest offset among equals."""
    found = (record for record in records if record is not None)
    return max(found, key=lambda record: (record.timestamp, -record.offset), default=None)
