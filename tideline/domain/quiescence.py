"""When may a barrier pass a gateway that does not answer?

What always holds: a silent gateway is passed only after its incarnation is written as fenced,
and that only when its renewal counter has not moved for its lease D plus a margin, on the
waiter's own suspend-proof clock. No wall clock is compared (schedules.md, 1 and 15).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

MARGIN_MS = 500
"""Added to D: the two clocks' drift over one lease, and the answer's way back."""


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
