"""The answer to a Produce whose partitions have nothing to tell but a code and three numbers, as
nearly every one: written in one pass instead of built as objects for a codec.

Layout: Kafka's ``clients/src/main/resources/common/message/ProduceResponse.json``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tideline.kafka.plain_fields import compact, named
from tideline.kafka.protocol import FLEXIBLE_PRODUCE

RECORD_ERRORS_SINCE = 8
"""KIP-467: what is wrong with single records, and a message."""
LOG_START_SINCE = 5
TOPIC_IDS_SINCE = 13
_I32 = struct.Struct(">i").pack
_ROW = struct.Struct(">ihqqq").pack
_ROW_WITHOUT_START = struct.Struct(">ihqq").pack
_NOTHING_TOLD = bytes(4) + b"\xff\xff"
"""No record errors, no message."""
_NOTHING_TOLD_COMPACT = b"\x01\x00\x00"
"""The same, and no tagged fields."""


@dataclass(frozen=True, slots=True)
class PlainRow:
    """What is told of one partition."""

    partition: int
    code: int
    base_offset: int
    """-1 where there is none, as of the others."""
    append_time: int
    """ms"""
    log_start: int


def plain_answer(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[str | UUID | None, Sequence[PlainRow]]],
    throttle_ms: int,
) -> bytes:
    """The frame, as kio writes it, in a version from 3 on. A topic is named as its version names
    it, by name or by id; ``None``: the id that is no id."""
    flexible = version >= FLEXIBLE_PRODUCE
    by_id = version >= TOPIC_IDS_SINCE
    ending = b"" if version < RECORD_ERRORS_SINCE else _NOTHING_TOLD
    if flexible:
        ending = _NOTHING_TOLD_COMPACT
    length = compact if flexible else _I32
    parts = [_I32(correlation_id), b"\0" if flexible else b"", length(len(topics))]
    for key, rows in topics:
        parts += (named(key, by_id=by_id, flexible=flexible), length(len(rows)))
        for row in rows:
            if version >= LOG_START_SINCE:
                parts.append(
                    _ROW(row.partition, row.code, row.base_offset, row.append_time, row.log_start)
                )
            else:
                parts.append(
                    _ROW_WITHOUT_START(row.partition, row.code, row.base_offset, row.append_time)
                )
            parts.append(ending)
        if flexible:
            parts.append(b"\0")
    parts.append(_I32(throttle_ms))
    if flexible:
        parts.append(b"\0")
    return b"".join(parts)
