"""What verifications found, per topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from tideline.control_plane.table_model import VerifyVerdict


@dataclass(slots=True)
class Verdicts:
    """The last one of each topic."""

    rows: dict[UUID, VerifyVerdict] = field(default_factory=dict)

    def record(self, verdict: VerifyVerdict) -> None:
        self.rows[verdict.topic_id] = verdict

    def of(self, live: Mapping[UUID, str]) -> list[VerifyVerdict]:
        """Of the topics that live, by their names now."""
        found = [replace(self.rows[i], topic=name) for i, name in live.items() if i in self.rows]
        return sorted(found, key=lambda one: one.topic)
