"""Aborted transactions, as the ``.txnindex`` of a segment names them.

Kafka's ``AbortedTxn``: 34 bytes per transaction, written into the segment that holds its abort
marker: ``version i16 | producer id i64 | first offset i64 | last offset i64 | last stable offset
i64``. The last offset is the marker's.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from tideline.kafka.batches import BatchHeader

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class MalformedTxnIndex(ValueError):
    """Bytes that Kafka would not have written."""


@dataclass(frozen=True, slots=True, order=True)
class AbortedTxn:
    """Offsets inclusive at both ends."""

    producer_id: int
    first_offset: int
    last_offset: int


def decode_txn_index(data: bytes) -> tuple[AbortedTxn, ...]:
    """In file order. Raises :class:`MalformedTxnIndex`."""
    if len(data) % _ENTRY.size:
        raise MalformedTxnIndex(
            f"{len(data)} bytes, which is no multiple of entries of {_ENTRY.size} bytes"
        )
    found = []
    for version, producer_id, first, last, _ in _ENTRY.iter_unpack(data):
        if version != _VERSION or first > last:
            raise MalformedTxnIndex(
                f"version {version}, offsets {first} to {last}; version {_VERSION} is known"
            )
        found.append(AbortedTxn(producer_id, first, last))
    return tuple(found)


class Aborted:
    """Which batches belong to an aborted transaction."""

    def __init__(self, transactions: Iterable[AbortedTxn]) -> None:
        self._of_producer: dict[int, list[AbortedTxn]] = {}
        for one in sorted(set(transactions)):
            self._of_producer.setdefault(one.producer_id, []).append(one)

    def has(self, header: BatchHeader) -> bool:
        """Whether a consumer with ``read_committed`` passes over the batch. Transactions of one
        producer do not overlap, so that the offsets alone say it."""
        if not header.is_transactional:
            return False
        offset, of_producer = header.base_offset, self._of_producer.get(header.producer_id, [])
        at = bisect_right(of_producer, offset, key=lambda one: one.first_offset) - 1
        return at >= 0 and of_producer[at].last_offset >= offset
