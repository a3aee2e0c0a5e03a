"""Whether the answer to a Produce or a Fetch ends with tagged fields, found by walking over it.

Those are where Kafka names nodes with their addresses (KIP-951); nearly no answer has any. An
answer is walked by the layout that Kafka gives it, records are skipped by their length, and what is
not as expected is left to the walk by schema (:func:`tideline.kafka.protocol.response_has_tags`).

Layouts: Kafka's ``ProduceResponse.json`` and ``FetchResponse.json``.
"""

from __future__ import annotations

from tideline.kafka.protocol import response_has_tags

_HEAD = 4 + 1
"""Correlation id and the header's tagged fields."""
_BY_ID_PRODUCE = 13
_FETCH_ROW = 4 + 2 + 8 + 8 + 8
"""Partition, error, high watermark, last stable offset, log start."""
_PRODUCE_ROW = 4 + 2 + 8 + 8 + 8
"""Partition, error, base offset, append time, log start."""


def produce_answer_has_tags(frame: bytes, version: int) -> bool:
    """Of versions 10 to 13. Raises as :func:`response_has_tags` does."""
    end = len(frame)
    try:
        topics, at = _counted(frame, _HEAD)
        for _ in range(topics):
            if version >= _BY_ID_PRODUCE:
                at += 16
            else:
                size, at = _counted(frame, at)
                at += size
            partitions, at = _counted(frame, at)
            for _ in range(partitions):
                at += _PRODUCE_ROW
                # No record errors, no message, no tagged fields.
                if frame[at : at + 3] != b"\1\0\0":
                    return response_has_tags(frame, 0, version)
                at += 3
            if frame[at]:
                return response_has_tags(frame, 0, version)
            at += 1
        at += 4  # throttle time
        if at + 1 == end and frame[at] == 0:
            return False
    except IndexError:
        pass
    return response_has_tags(frame, 0, version)


def fetch_answer_has_tags(frame: bytes, version: int) -> bool:
    """Of versions 16 to 18. Raises as :func:`response_has_tags` does."""
    end = len(frame)
    try:
        topics, at = _counted(frame, _HEAD + 4 + 2 + 4)  # throttle time, error, session
        for _ in range(topics):
            partitions, at = _counted(frame, at + 16)
            for _ in range(partitions):
                at += _FETCH_ROW
                if frame[at] > 1:  # aborted transactions
                    return response_has_tags(frame, 1, version)
                at += 1 + 4  # preferred replica
                size = frame[at]
                if size < 0x80:
                    at += size or 1
                else:
                    size, at = _varint(frame, at)
                    at += size - 1
                if frame[at]:
                    return response_has_tags(frame, 1, version)
                at += 1
            if frame[at]:
                return response_has_tags(frame, 1, version)
            at += 1
        if at + 1 == end and frame[at] == 0:
            return False
    except IndexError:
        pass
    return response_has_tags(frame, 1, version)


def _counted(frame: bytes, at: int) -> tuple[int, int]:
    """A varint that says one more than there is. Raises ``IndexError`` for 0, which says that there
    is nothing where Kafka always has something."""
    found, at = _varint(frame, at)
    if not found:
        raise IndexError
    return found - 1, at


def _varint(frame: bytes, at: int) -> tuple[int, int]:
    """Unsigned, of at most 32 bits: (value, next position)."""
    value = shift = 0
    while True:
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise IndexError
