"""The answer to a Fetch whose partitions have nothing to tell but a code, a few numbers and
records, as nearly every one of the suffix: written in one pass instead of built as objects for a
codec.

Layout: Kafka's ``clients/src/main/resources/common/message/FetchResponse.json``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tideline.domain.request_handling import KafkaErrorCode
from tideline.kafka.batches import Buffer
from tideline.kafka.plain_fields import compact, named
from tideline.kafka.protocol import FLEXIBLE_FETCH

PLAIN_SINCE = 4
"""Older versions have other fields, and records of older formats."""
SESSION_SINCE, LOG_START_SINCE, NEARER_SINCE, TOPIC_IDS_SINCE = 7, 5, 11, 13
"""Versions: a code and a session of the whole answer, a partition's first offset, the replica that
its consumer is sent on to, topics by id."""
_I32 = struct.Struct(">i").pack
_THROTTLE_AND_SESSION = struct.Struct(">ihi").pack
_ROW = struct.Struct(">ihqq").pack
_ROW_WITH_START = struct.Struct(">ihqqq").pack
_NO_TRANSACTIONS, _NO_TRANSACTIONS_COMPACT = b"\xff\xff\xff\xff", b"\0"
_UNREAD_TRANSACTIONS, _UNREAD_TRANSACTIONS_COMPACT = b"\0\0\0\0", b"\1"
UNREAD = frozenset(
    {
        KafkaErrorCode.TOPIC_AUTHORIZATION_FAILED,
        KafkaErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        KafkaErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""What Kafka answers before it looks into any log."""


@dataclass(frozen=True, slots=True)
class PlainPartition:
    """What is told of one partition, under the names that ``FetchResponse`` has for it. No
    transaction was aborted in it, and no epoch diverges."""

    partition_index: int
    error_code: int
    high_watermark: int
    """-1 where there is none, as of the others."""
    last_stable_offset: int
    log_start_offset: int
    preferred_read_replica: int
    records: Buffer

    @property
    def aborted_transactions(self) -> tuple[()] | None:
        """Null: of a log without transactions. Of one that was not looked into Kafka says that it
        is empty (``FetchResponse.partitionResponse``), and who may not read hears no difference."""
        return () if self.error_code in UNREAD else None


def plain_answer(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[str | UUID | None, Sequence[PlainPartition]]],
    *,
    throttle_ms: int,
    code: int,
    session_id: int,
) -> bytes:
    """The frame, as kio writes it, in a version from 4 on; versions before 7 have neither ``code``
    nor session. A topic is named as its version names it, by name or by id; ``None``: the id that
    is no id."""
    flexible = version >= FLEXIBLE_FETCH
    by_id, has_start, has_nearer = (
        version >= TOPIC_IDS_SINCE,
        version >= LOG_START_SINCE,
        version >= NEARER_SINCE,
    )
    length = compact if flexible else _I32
    null = _NO_TRANSACTIONS_COMPACT if flexible else _NO_TRANSACTIONS
    empty = _UNREAD_TRANSACTIONS_COMPACT if flexible else _UNREAD_TRANSACTIONS
    parts: list[Buffer] = [_I32(correlation_id), b"\0" if flexible else b""]
    if version >= SESSION_SINCE:
        parts.append(_THROTTLE_AND_SESSION(throttle_ms, code, session_id))
    else:
        parts.append(_I32(throttle_ms))
    parts.append(length(len(topics)))
    for key, rows in topics:
        parts += (named(key, by_id=by_id, flexible=flexible), length(len(rows)))
        for row in rows:
            told = row.partition_index, row.error_code, row.high_watermark, row.last_stable_offset
            parts += (
                _ROW_WITH_START(*told, row.log_start_offset) if has_start else _ROW(*told),
                null if row.aborted_transactions is None else empty,
            )
            if has_nearer:
                parts.append(_I32(row.preferred_read_replica))
            parts += (length(len(row.records)), row.records)
            if flexible:
                parts.append(b"\0")
        if flexible:
            parts.append(b"\0")
    if flexible:
        parts.append(b"\0")
    return b"".join(parts)
