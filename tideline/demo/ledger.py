"""What was acknowledged, what was consumed, and whether the two are the same.

Pure bookkeeping: every record carries an id ``<producer>/<partition>/<sequence>``; the verdict
compares the acknowledgements of the producers with what consumers saw, by offset and by id.
"""

from __future__ import annotations

import itertools
import math
import statistics
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

NOT_TOLD = -1
"""An offset. librdkafka acknowledges a batch without one when its answer was lost, and a later
batch of its producer was acknowledged."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """One acknowledged record. ``at`` is the producer's monotonic clock in seconds."""

    offset: int
    """:data:`NOT_TOLD` where a client library does not know it."""
    record_id: str
    at: float
    latency_ms: float


@dataclass(frozen=True, slots=True)
class PartitionVerdict:
    """What the comparison found in one partition. Every list is empty when all is well."""

    partition: int
    acknowledged: int
    consumed: int
    lost: tuple[str, ...]
    """Acknowledged, never consumed."""
    misplaced: tuple[str, ...]
    """Acknowledged at one offset, consumed at another."""
    duplicated: tuple[str, ...]
    """One record id consumed at two offsets."""
    reordered: tuple[str, ...]
    """A producer's record consumed after a later one of the same producer."""
    sent_back: int
    """How often a consumer saw an offset at or below one it had seen."""
    gaps: tuple[tuple[int, int], ...]
    """Missing offset ranges (inclusive) between the first and the last consumed offset, but for
    those that were left empty."""

    @property
    def ok(self) -> bool:
        return not (
            self.lost
            or self.misplaced
            or self.duplicated
            or self.reordered
            or self.sent_back
            or self.gaps
        )


@dataclass(slots=True)
class _PartitionLog:
    acknowledged: list[Acknowledgement] = field(default_factory=list)
    consumed: list[tuple[int, str]] = field(default_factory=list)
    highest_seen: int = -1
    sent_back: int = 0
    empty: set[tuple[int, int]] = field(default_factory=set)


class Ledger:
    """Thread-safe. Producers and consumers of one topic write into it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[int, _PartitionLog] = defaultdict(_PartitionLog)
        self._failures: list[str] = []

    def acknowledge(self, partition: int, ack: Acknowledgement) -> None:
        with self._lock:
            self._logs[partition].acknowledged.append(ack)

    def consume(self, partition: int, offset: int, record_id: str) -> None:
        with self._lock:
            log = self._logs[partition]
            if offset <= log.highest_seen:
                log.sent_back += 1
            log.highest_seen = max(log.highest_seen, offset)
            log.consumed.append((offset, record_id))

    def leave_empty(self, partition: int, first: int, last: int) -> None:
        """Nobody was told of these offsets, and an empty batch has them: they are no gap."""
        with self._lock:
            self._logs[partition].empty.add((first, last))

    def fail(self, record_id: str, error: str) -> None:
        """A producer gave up on a record: it may or may not be in the log."""
        with self._lock:
            self._failures.append(f"{record_id}: {error}")

    @property
    def failures(self) -> list[str]:
        with self._lock:
            return list(self._failures)

    def counts(self) -> tuple[int, int]:
        """Records acknowledged and records consumed so far."""
        with self._lock:
            logs = self._logs.values()
            return sum(len(x.acknowledged) for x in logs), sum(len(x.consumed) for x in logs)

    def for_another_reader(self) -> Ledger:
        """The same acknowledgements, and nothing consumed yet."""
        other = Ledger()
        other.compare_with(self)
        return other

    def compare_with(self, producers: Ledger) -> None:
        """Take over what another one knows of acknowledgements: of several readers each has a
        ledger of its own."""
        with producers._lock, self._lock:
            for partition, log in producers._logs.items():
                self._logs[partition].acknowledged.extend(log.acknowledged)
                self._logs[partition].empty |= log.empty

    def acknowledgements(self, partition: int) -> list[Acknowledgement]:
        with self._lock:
            return list(self._logs[partition].acknowledged)

    def consumed_through(self, partition: int) -> int:
        """The highest offset (inclusive) consumed, -1 before the first."""
        with self._lock:
            return self._logs[partition].highest_seen

    def acknowledged_through(self, partition: int) -> int:
        """The highest offset (inclusive) acknowledged, -1 before the first."""
        with self._lock:
            return max((a.offset for a in self._logs[partition].acknowledged), default=-1)

    @property
    def partitions(self) -> list[int]:
        with self._lock:
            return sorted(self._logs)

    def verdict(self, partition: int) -> PartitionVerdict:
        """Compare what was acknowledged with what was consumed."""
        with self._lock:
            log = self._logs[partition]
            acknowledged, consumed = list(log.acknowledged), list(log.consumed)
            sent_back, empty = log.sent_back, set(log.empty)
        offsets_of = defaultdict(list)
        for offset, record_id in consumed:
            offsets_of[record_id].append(offset)
        lost, misplaced = [], []
        for ack in acknowledged:
            found = offsets_of.get(ack.record_id)
            if found is None:
                lost.append(f"{ack.record_id}@{ack.offset}")
            elif ack.offset != NOT_TOLD and ack.offset not in found:
                misplaced.append(f"{ack.record_id}@{ack.offset} consumed at {found}")
        duplicated = [
            f"{record_id} at {sorted(set(offsets))}"
            for record_id, offsets in offsets_of.items()
            if len(set(offsets)) > 1
        ]
        return PartitionVerdict(
            partition=partition,
            acknowledged=len(acknowledged),
            consumed=len({offset for offset, _ in consumed}),
            lost=tuple(lost),
            misplaced=tuple(misplaced),
            duplicated=tuple(duplicated),
            reordered=tuple(_reordered(consumed)),
            sent_back=sent_back,
            gaps=tuple(
                gap for gap in _gaps(sorted({offset for offset, _ in consumed})) if gap not in empty
            ),
        )


def _reordered(consumed: Sequence[tuple[int, str]]) -> Iterable[str]:
    last: dict[str, int] = {}
    for _, record_id in sorted(set(consumed)):
        producer, _, sequence = record_id.rpartition("/")
        if int(sequence) < last.get(producer, -1):
            yield record_id
        last[producer] = max(int(sequence), last.get(producer, -1))


def _gaps(offsets: Sequence[int]) -> Iterable[tuple[int, int]]:
    for before, after in itertools.pairwise(offsets):
        if after != before + 1:
            yield before + 1, after - 1


@dataclass(frozen=True, slots=True)
class WritePause:
    """The producer's view of one partition's migration, in ms."""

    partition: int
    raw_gap_ms: float
    """Longest time between two acknowledgements around the migration."""
    steady_latency_ms: float
    """Median produce latency in the suffix, after the migration."""

    @property
    def pause_ms(self) -> float:
        return max(0.0, self.raw_gap_ms - self.steady_latency_ms)


def write_pause(
    partition: int,
    acknowledgements: Sequence[Acknowledgement],
    boundary: int,
    *,
    window_s: float = 30.0,
) -> WritePause | None:
    """The longest gap between acknowledgements within ``window_s`` of the first one at or past B0.

    ``None`` when nothing was acknowledged on both sides of B0, so no pause could be observed.
    """
    ordered = sorted(acknowledgements, key=lambda ack: ack.at)
    crossing = next((ack.at for ack in ordered if ack.offset >= boundary), None)
    if crossing is None or ordered[0].offset >= boundary:
        return None
    near = [ack.at for ack in ordered if abs(ack.at - crossing) <= window_s]
    gap = max((b - a for a, b in itertools.pairwise(near)), default=0.0)
    latencies = [a.latency_ms for a in ordered if a.offset >= boundary and a.latency_ms > 0]
    steady = statistics.median(latencies) if latencies else 0.0
    return WritePause(partition, gap * 1000.0, steady)


def quantile(values: Sequence[float], q: float) -> float:
    """The ``q`` quantile by nearest rank; 0.0 of nothing."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]
