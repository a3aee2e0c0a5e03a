"""A look into the batches of a Produce by the native library.

It says of a batch that it is fine, whatever its topic allows, or nothing; then the rules of
:mod:`tideline.kafka.produced` have to look, which alone refuse. So nothing depends on it but what a
batch costs.
"""

from __future__ import annotations

import ctypes
import struct
from typing import NamedTuple

from tideline.domain.topic_configs import TopicLimits
from tideline.kafka.batches import last_sequence
from tideline.kafka.named_topics import MOST_WALKED, NamedKey, uuid_of
from tideline.kafka.produced import timestamp_range
from tideline.kafka.protocol import RequestHeader
from tideline.kafka.wire import library_with_the_lock

LOOKED_BYTES = 1024 * 1024
"""Of the records of one request: a look at them takes 0.1 ms, and 4 ms at the very most."""
_ROW = struct.Struct("=14q")
"""As in ``wire/src/look.rs``."""
_LEAST_BYTES = 64
"""That a row takes in a request: a header, and what names its partition."""
_ROOMS = tuple((room, ctypes.c_int64 * (room * 14)) for room in (8, 64, MOST_WALKED))
"""Rows, and their type, which would be made anew after each collection of what nobody has."""


class FineBatch(NamedTuple):
    """One batch of uncompressed records that may be appended as it came, if :meth:`suits`."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    max_timestamp: int
    """ms; of its records, and in its header"""
    earliest: int
    """ms; of the records that have a timestamp. Of none, later than all."""
    latest: int
    """Of none, earlier than all."""
    headers: int
    """Of all records together."""

    @property
    def last_sequence(self) -> int:
        """See :func:`tideline.kafka.batches.last_sequence`."""
        return last_sequence(self.base_sequence, self.record_count - 1)

    def suits(self, size: int, limits: TopicLimits, now_ms: int) -> bool:
        """Whether a topic takes it that allows so much, of ``size`` bytes."""
        lowest, highest = timestamp_range(limits, now_ms)
        fits = size <= limits.max_message_bytes
        return fits and lowest <= self.earliest and self.latest <= highest


class LookedPart(NamedTuple):
    """The records of one partition of a request."""

    key: NamedKey
    partition: int
    start: int
    end: int
    """Where they are in the frame."""
    batch: FineBatch | None
    """``None``: it is for the rules in Python to say whether they are one."""


def looked_produce(frame: bytes, header: RequestHeader) -> list[LookedPart] | None:
    """The partitions of a Produce request with acks 1 or -1, in their order, of which
    :func:`~tideline.kafka.named_topics.walked_produce` would say the same if its bound were
    :data:`LOOKED_BYTES`, and each with as many bytes as a batch has at least. ``None``: nobody has
    looked."""
    size, version = len(frame), header.api_version
    room, made = next((each for each in _ROOMS if size < each[0] * _LEAST_BYTES), _ROOMS[-1])
    rows = made()
    # A thread that keeps the interpreter's lock for a look, which is short, does not wait for it:
    # to get it back from one that computes takes 5 ms.
    look = library_with_the_lock().wire_look
    count = look(frame, size, header.body_start, version, LOOKED_BYTES, rows, room)
    if count < 0:
        return None
    found: list[LookedPart] = []
    key, key_at = None, -1
    for row in _ROW.iter_unpack(memoryview(rows).cast("B")[: count * _ROW.size]):
        topic_at, topic_size, partition, start, records, fine = row[:6]
        if topic_at != key_at:
            raw, key_at = frame[topic_at : topic_at + topic_size], topic_at
            key = uuid_of(raw) if version >= 13 else str(raw, "utf-8")
        batch = FineBatch._make(row[6:]) if fine else None
        found.append(LookedPart(key, partition, start, start + records, batch))
    return found
