"""Looks into the batches of a produce before it takes its turn in the suffix.

What always holds: the event loop is not held up by it. Small batches are read at once, as many of
one request as a few milliseconds allow, counted by what they are when they are unpacked; others by
the threads of :class:`~tideline.gateway.unpacking.Unpacking`, when it is their connection's turn,
while the request waits for its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from tideline.domain.topic_configs import TopicLimits
from tideline.gateway.metrics import EXAMINATION_SECONDS
from tideline.gateway.unpacking import Unpacking
from tideline.kafka.batches import BatchHeader
from tideline.kafka.named_topics import MOST_WALKED_BYTES
from tideline.kafka.produced import Effort, RefusedBatch, ValidBatch, validated
from tideline.kafka.records import NO_BOUND, UnpackedTooLarge

AT_ONCE_BYTES = MOST_WALKED_BYTES
"""Of one request, as they came."""
AT_ONCE_UNPACKED_BYTES = 4 * AT_ONCE_BYTES
"""Of one request: a millisecond of gzip. Hundreds of batches of 64 KiB each fit into 64 KiB."""
AT_ONCE_RECORDS = 2_000
"""Of one request; without the native library reading one takes one to two microseconds."""
AT_ONCE_HEADERS = 4_000
"""Of the records of one request; each takes half a microsecond, and a record has place for tens of
thousands."""
Examined: TypeAlias = ValidBatch | RefusedBatch
OnAccount: TypeAlias = Callable[[Callable[[], Examined]], Callable[[], Examined]]


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Allowance:
    """What may still be read of one request at once."""

    def __init__(self) -> None:
        self.bytes, self.records = AT_ONCE_BYTES, AT_ONCE_RECORDS
        self.effort = Effort(AT_ONCE_UNPACKED_BYTES, AT_ONCE_HEADERS)
        """What reading those that it covers may still take."""

    def covers(self, records: bytes, header: BatchHeader | None) -> bool:
        """Taken off if so. A batch without a readable header is refused without a look at it, but
        a request may have thousands of them: it counts as one record."""
        size = 0 if header is None else len(records)
        count = 1 if header is None else max(header.record_count, 1)
        spent = header is not None and self.effort.unpacked <= 0
        if spent or size > self.bytes or count > self.records:
            return False
        self.bytes -= size
        self.records -= count
        return True


class Examiner:
    """Validates batches; see :mod:`tideline.kafka.produced`."""

    def __init__(self, unpacking: Unpacking, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self.now_ms = now_ms
        self._unpacking = unpacking

    async def examine(
        self,
        connection: object,
        records: bytes,
        header: BatchHeader | None,
        limits: TopicLimits,
        produce_version: int,
        allowance: Allowance,
        on_account: OnAccount,
    ) -> Examined:
        """Does not give up its turn in the loop if ``allowance`` covers the batch, which came from
        ``connection``. ``on_account`` has what threads do counted."""
        judge = partial(self._judged, records, limits, produce_version)
        if allowance.covers(records, header):
            try:
                return judge(allowance.effort)
            except UnpackedTooLarge:
                pass

        def read(most: int | None) -> Examined:
            effort = None if most is None else Effort(most, NO_BOUND)
            return on_account(partial(judge, effort))()

        return await self._unpacking.read(connection, read)

    def within(
        self,
        records: bytes,
        header: BatchHeader,
        limits: TopicLimits,
        produce_version: int,
        allowance: Allowance,
    ) -> Examined | None:
        """Of a batch that ``allowance`` covers; ``None``: it unpacks to more than is read at once.
        ``header``: the one at the beginning of ``records``."""
        try:
            return self._judged(records, limits, produce_version, allowance.effort, header)
        except UnpackedTooLarge:
            return None

    def at_once(self, records: bytes, limits: TopicLimits, produce_version: int) -> Examined:
        """However long it takes: for a batch that came to the suffix by a way nobody foresaw."""
        return self._judged(records, limits, produce_version, None)

    def _judged(
        self,
        records: bytes,
        limits: TopicLimits,
        produce_version: int,
        effort: Effort | None,
        header: BatchHeader | None = None,
    ) -> Examined:
        began, now_ms = time.perf_counter(), self.now_ms()
        try:
            return validated(
                records,
                limits,
                produce_version=produce_version,
                now_ms=now_ms,
                effort=effort,
                header=header,
            )
        except RefusedBatch as refused:
            return refused
        finally:
            EXAMINATION_SECONDS.observe(time.perf_counter() - began)
