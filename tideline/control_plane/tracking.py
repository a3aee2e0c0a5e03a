"""Tracked topics, and the barrier before any of them starts to migrate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tideline.control_plane.gateways import registration
from tideline.control_plane.model import (
    BarrierEntry,
    ConfigOverride,
    TopicStatus,
    TrackedPartition,
    TrackedTopic,
    TrackingKind,
)
from tideline.control_plane.pool import Pool
from tideline.domain.migration import MigrationState


def _partition(view: Mapping[str, Any]) -> TrackedPartition:
    return TrackedPartition(
        **{
            **view,
            "topic_id": UUID(view["topic_id"]),
            "state": MigrationState(view["state"]),
        }
    )


def _topic(row: Mapping[str, Any]) -> TrackedTopic:
    return TrackedTopic(
        name=row["name"],
        topic_id=row["topic_id"],
        kind=TrackingKind(row["kind"]),
        status=TopicStatus(row["status"]),
        timestamp_type=row["timestamp_type"],
        max_message_bytes=row["max_message_bytes"],
        partitions={view["partition"]: _partition(view) for view in row["partitions"]},
        overrides={view["key"]: ConfigOverride(**view) for view in row["overrides"]},
    )


class Tracking:
    """Part of :class:`tideline.control_plane.ControlPlane`."""

    _pool: Pool

    async def tracked_topics(self) -> list[TrackedTopic]:
        """Every tracked topic, whole, in one snapshot. A deleted topic, or one that gateways let
        go of after an abort, is not among them.
        """
        rows = await self._pool.fetch("SELECT * FROM tideline.tracked_topics(NULL)")
        return [_topic(row) for row in rows]

    async def tracked_topic(self, name: str) -> TrackedTopic | None:
        """The live tracked topic of that name."""
        rows = await self._pool.fetch("SELECT * FROM tideline.tracked_topics(%s)", name)
        return _topic(rows[0]) if rows else None

    async def tracked_partition(self, topic_id: UUID, partition: int) -> TrackedPartition | None:
        """One partition of a live tracked topic."""
        rows = await self._pool.fetch(
            "SELECT tideline.tracked_partition(%s, %s) AS view", topic_id, partition
        )
        return _partition(rows[0]["view"]) if rows and rows[0]["view"] else None

    async def begin_tracking(
        self,
        name: str,
        topic_id: UUID | None,
        kind: TrackingKind,
        partitions: int,
        timestamp_type: str,
        max_message_bytes: int,
    ) -> None:
        """Track ``name``; repeats succeed. Topics that are to migrate get ``MIGRATING``
        partitions; topics born diskless with a known id get B0 = 0 at epoch 0.

        After an abort this begins a new round with fresh generations and no acknowledgements.
        Raises ``TopicIdentityConflict`` while another id or kind is live under the name,
        ``TopicDeleted`` for a deleted id.
        """
        await self._pool.fetch(
            "SELECT tideline.begin_tracking(%s, %s, %s, %s, %s, %s)",
            name, topic_id, kind.value, partitions, timestamp_type, max_message_bytes,
        )  # fmt: skip

    async def complete_creation(self, name: str, topic_id: UUID, partitions: int) -> None:
        """Kafka has given a topic born diskless its id. Raises ``TopicIdentityConflict``."""
        await self._pool.fetch(
            "SELECT tideline.complete_creation(%s, %s, %s)", name, topic_id, partitions
        )

    async def acknowledge_tracking(self, gateway_id: int, incarnation: UUID, name: str) -> None:
        """This incarnation tracks ``name`` durably. Raises ``GatewayFenced``, ``UnknownTopic``."""
        await self._pool.fetch(
            "SELECT tideline.acknowledge_tracking(%s, %s, %s)", gateway_id, incarnation, name
        )

    async def tracking_barrier(self, name: str) -> list[BarrierEntry]:
        """Every gateway that is not retired. A fenced one counts: when it wakes it would pass a
        topic that it does not know through untracked, until it learns of the fence.
        """
        rows = await self._pool.fetch("SELECT * FROM tideline.tracking_barrier(%s)", name)
        return [BarrierEntry(registration(row), row["acknowledged"]) for row in rows]

    async def activate_topic(self, name: str) -> None:
        """TRACKING → ACTIVE. Raises ``TrackingIncomplete`` naming the gateways that are missing,
        ``NotMigrating`` after an abort.
        """
        await self._pool.fetch("SELECT tideline.activate_topic(%s)", name)

    async def add_partitions(self, name: str, new_total: int) -> None:
        """Partitions up to ``new_total`` (exclusive) are born diskless at B0 = 0. Raises
        ``PartitionsMigrating`` while one of the topic has no B0 (schedule 22).
        """
        await self._pool.fetch("SELECT tideline.add_partitions(%s, %s)", name, new_total)

    async def stop_tracking(self, name: str) -> None:
        """Gateways let go of the topic after an abort, or of a creation that failed.

        Raises ``AbortRefused`` while a partition migrates or has B0. Generations are kept.
        """
        await self._pool.fetch("SELECT tideline.stop_tracking(%s)", name)

    async def delete_topic(self, topic_id: UUID) -> None:
        """Kafka deleted the topic: its id is refused for ever. An untracked id is no error."""
        await self._pool.fetch("SELECT tideline.delete_topic(%s)", topic_id)
