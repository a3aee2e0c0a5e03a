"""When does a partition stand still? Its gateways have parked, and its log ends at one offset.

What always holds: B0 is taken only where LSO = HW = the log end of *every* in-sync replica, seen
at one leader epoch (seed 000, "Committed prefix"; seed 004: all of it is replicated). And a
silent gateway is passed only after its incarnation is written as fenced, and that only when its
renewal counter has not moved for its lease D plus a margin, on the waiter's own suspend-proof
clock: no wall clock is compared (schedules.md, 1 and 15).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

MARGIN_MS = 500
"""Added to D: the two clocks' drift over one lease, and the answer's way back."""


def settled_at(
    last_stable_offset: int,
    high_watermark: int,
    in_sync: Collection[int],
    log_ends: Mapping[int, int],
) -> int | None:
    """The offset at which the log has come to rest, or ``None``.

    ``log_ends``: the log end (exclusive) of each replica that answered, by node id. A replica
    that is in sync and did not answer leaves the question open.
    """
    if not in_sync or not set(in_sync) <= log_ends.keys():
        return None
    spots = {last_stable_offset, high_watermark, *(log_ends[node] for node in in_sync)}
    return high_watermark if len(spots) == 1 else None


@dataclass(frozen=True, slots=True)
class LeaseReading:
    """One gateway's renewal counter, as read between two moments of the reader's clock (ms)."""

    gateway_id: int
    incarnation: UUID
    renewals: int
    lease_ms: int


class LeaseWatch:
    """Measures how long each gateway's renewal counter has not moved."""

    def __init__(self, margin_ms: int = MARGIN_MS) -> None:
        self._margin_ms = margin_ms
        self._seen: dict[UUID, tuple[int, float]] = {}

    def observe(
        self, readings: Iterable[LeaseReading], *, sent_ms: float, received_ms: float
    ) -> None:
        """Take in one reading of all gateways.

        ``sent_ms`` and ``received_ms`` bracket the read on the reader's clock. A counter counts
        as unmoved from the moment its value was *received*, and up to the moment the newest read
        was *sent*, so that the measured silence is never longer than the true one.
        """
        present: set[UUID] = set()
        for reading in readings:
            present.add(reading.incarnation)
            known = self._seen.get(reading.incarnation)
            if known is None or known[0] != reading.renewals:
                self._seen[reading.incarnation] = (reading.renewals, received_ms)
        for gone in self._seen.keys() - present:
            del self._seen[gone]

    def silent_ms(self, incarnation: UUID, renewals: int, *, sent_ms: float) -> float:
        """How long ``renewals`` has not moved, given a reading that was sent at ``sent_ms``."""
        known = self._seen.get(incarnation)
        if known is None or known[0] != renewals:
            return 0.0
        return max(0.0, sent_ms - known[1])

    def lapsed(self, reading: LeaseReading, *, sent_ms: float) -> bool:
        """Whether the lease has ended for certain, whatever the gateway believes."""
        silent = self.silent_ms(reading.incarnation, reading.renewals, sent_ms=sent_ms)
        return silent >= reading.lease_ms + self._margin_ms
