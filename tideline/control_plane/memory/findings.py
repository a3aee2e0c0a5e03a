"""What the worker's watches found, per topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from tideline.control_plane.model import WatchFinding
from tideline.domain.watched import Finding, FindingKind

Key = tuple[UUID, FindingKind, str]


@dataclass(slots=True)
class Findings:
    """Those that have ended stay."""

    now: Callable[[], datetime]
    rows: dict[Key, WatchFinding] = field(default_factory=dict)

    def record(self, topic: str, topic_id: UUID, findings: Iterable[Finding]) -> None:
        """All of one look: what is not among it has ended."""
        now = self.now()
        seen = set()
        for finding in findings:
            key = (topic_id, finding.kind, finding.subject)
            seen.add(key)
            first = self.rows[key].first_seen_at if key in self.rows else now
            self.rows[key] = WatchFinding(
                topic, *key, dict(finding.detail), first_seen_at=first, last_seen_at=now
            )
        for key, row in self.rows.items():
            if key[0] == topic_id and key not in seen and row.ended_at is None:
                self.rows[key] = replace(row, ended_at=now)

    def of(self, live: dict[UUID, str]) -> list[WatchFinding]:
        """Of the topics that live, by their names now."""
        found = [
            replace(row, topic=live[row.topic_id])
            for row in self.rows.values()
            if row.topic_id in live
        ]
        return sorted(found, key=lambda row: (row.topic, row.kind, row.subject))
