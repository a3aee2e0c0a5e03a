"""Counts over the partitions of a topic, kept up with each report, never counted anew. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tideline.domain.messages import GONE, TO_DO, PartitionReport, WaitsFor

MOST_REASONS = 10
"""Waiting reasons that are shown at once."""


@dataclass(slots=True)
class Tally:
    """What the newest reports of all partitions come to."""

    phases: Counter[str] = field(default_factory=Counter)
    crossed: int = 0
    ended: int = 0
    resting: int = 0
    """Not ended, and without a workflow of their own any more."""
    busy: int = 0
    """Started, and B0 is not persisted yet."""
    to_do: dict[int, None] = field(default_factory=dict)
    """In the order of their numbers: a partition that was begun never comes back."""
    want_permit: dict[int, PartitionReport] = field(default_factory=dict)
    want_ready: dict[int, None] = field(default_factory=dict)
    _waiting: list[int] = field(default_factory=list)
    """Those that wait for something outside of the migration, ascending."""
    _gone: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, reports: Iterable[PartitionReport]) -> Tally:
        tally = cls()
        for report in reports:
            tally.add(report)
        return tally

    @property
    def waiting(self) -> list[int]:
        """The first partitions that wait for something outside of the migration."""
        return self._waiting[:MOST_REASONS]

    @property
    def gone(self) -> str:
        """Why the topic is no more, or empty."""
        return self._gone[min(self._gone)] if self._gone else ""

    @property
    def running(self) -> int:
        """Partitions whose workflow was started and has not ended."""
        return self.phases.total() - len(self.to_do) - self.ended - self.resting

    def add(self, report: PartitionReport) -> None:
        """Count a partition that was not counted, or whose former report was removed."""
        number = report.partition
        self._count(report, 1)
        if report.phase == TO_DO:
            self.to_do[number] = None
        if report.waits_for is WaitsFor.PERMIT:
            self.want_permit[number] = report
        if report.waits_for is WaitsFor.READY:
            self.want_ready[number] = None
        if _waits(report):
            insort(self._waiting, number)
        if report.phase == GONE:
            self._gone[number] = report.waiting_reason or "the topic was deleted"

    def remove(self, report: PartitionReport) -> None:
        """Count a partition no more; ``report`` is what was counted."""
        number = report.partition
        self._count(report, -1)
        for kept in (self.to_do, self.want_permit, self.want_ready, self._gone):
            kept.pop(number, None)
        if _waits(report):
            del self._waiting[bisect_left(self._waiting, number)]

    def _count(self, report: PartitionReport, by: int) -> None:
        self.phases[report.phase] += by
        if not self.phases[report.phase]:
            del self.phases[report.phase]
        self.crossed += by * report.crossed
        self.ended += by * report.ended
        self.resting += by * (report.rests and not report.ended)
        self.busy += by * (report.phase != TO_DO and not report.crossed and not report.ended)


def _waits(report: PartitionReport) -> bool:
    return bool(report.waiting_reason) and not report.waits_for
