"""Who migrates and who waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from tideline.control_plane.model import MigrationLimits
from tideline.domain.places import MigrationPlace, PlaceHolder, newly_admitted, share_of


@dataclass(slots=True)
class _Asked:
    holder: PlaceHolder
    seen_ms: int
    taken: bool = False


@dataclass(slots=True)
class Places:
    """In the order in which they were first asked for."""

    now_ms: Callable[[], int]
    rows: dict[UUID, _Asked] = field(default_factory=dict)
    limits: MigrationLimits | None = None

    def take(self, asking: PlaceHolder, places: int, doubt_ms: int) -> MigrationPlace:
        now = self.now_ms()
        own = self.rows.setdefault(asking.topic_id, _Asked(asking, now))
        own.holder, own.seen_ms = asking, now
        if self.limits is not None and self.limits.topics is not None:
            places = self.limits.topics
        for topic_id in newly_admitted(self._waiting(), self._taken(), places):
            self.rows[topic_id].taken = True
        before = 0 if own.taken else self._waiting().index(asking.topic_id)
        doubtful = [
            row
            for row in self.rows.values()
            if row.taken and row is not own and row.seen_ms <= now - doubt_ms
        ]
        for row in doubtful:
            row.seen_ms = now
        return MigrationPlace(own.taken, before, tuple(row.holder for row in doubtful), places)

    def share(self, topic_id: UUID, crosses: Callable[[UUID], bool]) -> int | None:
        """``crosses``: whether a topic has partitions that migrate and have no B0 yet."""
        sharing = [t for t, row in self.rows.items() if row.taken and (t == topic_id or crosses(t))]
        if self.limits is None or self.limits.partitions is None or topic_id not in sharing:
            return None
        return share_of(self.limits.partitions, sharing.index(topic_id), len(sharing))

    def leave(self, topic_id: UUID, run: str) -> bool:
        row = self.rows.get(topic_id)
        if row is None or row.holder.run != run:
            return False
        del self.rows[topic_id]
        return True

    def _waiting(self) -> list[UUID]:
        return [topic_id for topic_id, row in self.rows.items() if not row.taken]

    def _taken(self) -> int:
        return sum(row.taken for row in self.rows.values())
