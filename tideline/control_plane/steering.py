"""Requests, phases with their evidence, readiness, and the topic configs that Tideline holds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from tideline.control_plane.model import (
    ConfigOverride,
    MigrationRequest,
    PartitionMigrationStatus,
    PhaseRecord,
)
from tideline.control_plane.pool import Pool
from tideline.domain.ids import TopicIdPartition
from tideline.domain.migration import MigrationState, Phase, PhaseStatus


def _phase(view: Mapping[str, Any]) -> PhaseRecord:
    return PhaseRecord(
        phase=Phase(view["phase"]),
        status=PhaseStatus(view["status"]),
        generation=view["generation"],
        started_at=datetime.fromisoformat(view["started_at"]),
        ended_at=datetime.fromisoformat(view["ended_at"]) if view["ended_at"] else None,
        waiting_reason=view["waiting_reason"],
        evidence=view["evidence"],
    )


class Steering:
    """Part of :class:`tideline.control_plane.ControlPlane`."""

    _pool: Pool

    async def request_migration(
        self, topic: str, topic_id: UUID, requested_by: str, options: Mapping[str, Any]
    ) -> None:
        """Leave a trigger for the worker. A second one joins the first."""
        await self._pool.fetch(
            "SELECT tideline.request_migration(%s, %s, %s, %s)",
            topic, topic_id, requested_by, Jsonb(dict(options)),
        )  # fmt: skip

    async def pending_requests(self) -> list[MigrationRequest]:
        """Triggers that nobody has taken, oldest first."""
        return [
            MigrationRequest(
                topic=row["topic"],
                topic_id=row["topic_id"],
                requested_by=row["requested_by"],
                options=row["options"],
                requested_at=row["requested_at"],
            )
            for row in await self._pool.fetch("SELECT * FROM tideline.pending_requests()")
        ]

    async def request_taken(self, topic_id: UUID) -> None:
        """A workflow was started or joined for the trigger."""
        await self._pool.fetch("SELECT tideline.request_taken(%s)", topic_id)

    async def record_phase(
        self,
        log: TopicIdPartition,
        generation: int,
        phase: Phase,
        status: PhaseStatus,
        evidence: Mapping[str, Any],
        waiting_reason: str | None = None,
    ) -> None:
        """Keep what a phase observed, in place of what an earlier attempt did.

        ``generation`` 0 is "before any quiesce", for ``VALIDATE`` and ``DRAIN_TRANSACTIONS`` only.
        Raises ``StaleGeneration``, ``UnknownLog``.
        """
        await self._pool.fetch(
            "SELECT tideline.record_phase(%s, %s, %s, %s, %s, %s, %s)",
            log.topic_id, log.partition, generation, phase.value, status.value,
            Jsonb(dict(evidence)), waiting_reason,
        )  # fmt: skip

    async def migration_status(self, topic: str | None = None) -> list[PartitionMigrationStatus]:
        """Every partition ever tracked whose topic is not deleted, aborted ones included."""
        return [
            PartitionMigrationStatus(
                topic=row["topic"],
                log=TopicIdPartition(row["topic_id"], row["partition"]),
                state=MigrationState(row["state"]),
                generation=row["generation"],
                quiesced=row["quiesced"],
                boundary=row["boundary"],
                boundary_epoch=row["boundary_epoch"],
                high_watermark=row["high_watermark"],
                tiering_complete=row["tiering_complete"],
                phases=tuple(_phase(view) for view in row["phases"]),
            )
            for row in await self._pool.fetch("SELECT * FROM tideline.migration_status(%s)", topic)
        ]

    async def set_tiering_complete(
        self, log: TopicIdPartition, generation: int, complete: bool, reason: str
    ) -> None:
        """Set or clear ``tieringComplete`` (seed 000, I3). Raises ``StaleGeneration``,
        ``BoundaryUnset``.
        """
        await self._pool.fetch(
            "SELECT tideline.set_tiering_complete(%s, %s, %s, %s, %s)",
            log.topic_id, log.partition, generation, complete, reason,
        )  # fmt: skip

    async def override_config(
        self, topic_id: UUID, key: str, override_value: str | None, user_value: str | None
    ) -> None:
        """Hold ``key`` at ``override_value``. ``user_value`` is kept from the first call."""
        await self._pool.fetch(
            "SELECT tideline.override_config(%s, %s, %s, %s)",
            topic_id, key, override_value, user_value,
        )  # fmt: skip

    async def update_user_config(self, topic_id: UUID, key: str, user_value: str | None) -> None:
        """The user changed a config that is held; a key that is not held is left alone."""
        await self._pool.fetch(
            "SELECT tideline.update_user_config(%s, %s, %s)", topic_id, key, user_value
        )

    async def release_config(self, topic_id: UUID, key: str) -> None:
        """Hold ``key`` no more."""
        await self._pool.fetch("SELECT tideline.release_config(%s, %s)", topic_id, key)

    async def overrides(self, topic_id: UUID) -> dict[str, ConfigOverride]:
        """What is held of the topic, by key."""
        rows = await self._pool.fetch("SELECT * FROM tideline.config_overrides_of(%s)", topic_id)
        return {row["key"]: ConfigOverride(**row) for row in rows}
