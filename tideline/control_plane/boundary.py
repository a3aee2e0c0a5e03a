"""Generations, quiesce, B0 and its abort. The rules: ``tideline.domain.boundary``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from uuid import UUID

from psycopg.types.json import Jsonb

from tideline.control_plane.gateways import registration
from tideline.control_plane.model import BarrierEntry, BoundaryToPersist
from tideline.control_plane.pool import Pool
from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_state import ProducerSeed


def _seeds(seeds: Iterable[ProducerSeed]) -> Jsonb:
    """In one order, so that equal seeds have one spelling."""
    ordered = sorted(seeds, key=lambda s: (s.producer_id, s.producer_epoch, s.base_offset))
    return Jsonb([asdict(seed) for seed in ordered])


class Boundary:
    """Part of :class:`tideline.control_plane.ControlPlane`.

    Every method raises ``UnknownLog`` for a partition without a row and ``TopicDeleted`` for one
    of a deleted topic.
    """

    _pool: Pool

    async def next_generation(self, log: TopicIdPartition) -> int:
        """Take the next generation; everything older is stale, an older quiesce is void.

        Raises ``NotMigrating`` after an abort.
        """
        rows = await self._pool.fetch(
            "SELECT tideline.next_generation(%s, %s) AS generation", log.topic_id, log.partition
        )
        return int(rows[0]["generation"])

    async def close_generation(self, log: TopicIdPartition, generation: int, hold_ms: int) -> None:
        """Quiesce: gateways park produces, for ``hold_ms`` (1 to 600000) at most.

        A generation closes once: after a void or reopened quiesce take the next one. Raises
        ``StaleGeneration``, ``TrackingIncomplete``, ``BoundaryAlreadySet``, ``QuiesceNotClosed``,
        ``NotMigrating``, ``InvalidInput``.
        """
        await self._pool.fetch(
            "SELECT tideline.close_generation(%s, %s, %s, %s)",
            log.topic_id, log.partition, generation, hold_ms,
        )  # fmt: skip

    async def acknowledge_quiesce(
        self,
        gateway_id: int,
        incarnation: UUID,
        log: TopicIdPartition,
        generation: int,
        highest_acknowledged_offset: int,
        read_ceiling: int,
    ) -> None:
        """Nothing is in flight any more. ``highest_acknowledged_offset`` (inclusive, -1: none) is
        what this gateway relayed as acknowledged; ``read_ceiling`` (exclusive) is the high
        watermark that it clips reads to.

        Raises ``GatewayFenced``, ``StaleGeneration``, ``QuiesceNotClosed``.
        """
        await self._pool.fetch(
            "SELECT tideline.acknowledge_quiesce(%s, %s, %s, %s, %s, %s, %s)",
            gateway_id, incarnation, log.topic_id, log.partition, generation,
            highest_acknowledged_offset, read_ceiling,
        )  # fmt: skip

    async def quiesce_barrier(self, log: TopicIdPartition, generation: int) -> list[BarrierEntry]:
        """Every gateway that is neither fenced nor retired."""
        rows = await self._pool.fetch(
            "SELECT * FROM tideline.quiesce_barrier(%s, %s, %s)",
            log.topic_id, log.partition, generation,
        )  # fmt: skip
        return [
            BarrierEntry(registration(row), row["acknowledged"], row["highest_acknowledged_offset"])
            for row in rows
        ]

    async def reopen_generation(self, log: TopicIdPartition, generation: int) -> bool:
        """End the quiesce before its deadline. True when the partition takes classic appends
        again; false when B0 is set or another generation took over.
        """
        rows = await self._pool.fetch(
            "SELECT tideline.reopen_generation(%s, %s, %s) AS opened",
            log.topic_id, log.partition, generation,
        )  # fmt: skip
        return bool(rows[0]["opened"])

    async def void_expired_quiesce(self, log: TopicIdPartition) -> bool:
        """Whether a gateway may un-park to the classic log: no generation is closed and B0 is
        unset. Ends a quiesce whose deadline has passed on the database's clock.
        """
        rows = await self._pool.fetch(
            "SELECT tideline.void_expired_quiesce(%s, %s) AS opened", log.topic_id, log.partition
        )
        return bool(rows[0]["opened"])

    async def initialize_diskless_migration(self, boundary: BoundaryToPersist) -> None:
        """Seed producer state and set B0 in one transaction: the point of no return (seed 000).

        The same boundary with the same seeds succeeds again, at its epoch or a higher one, and
        changes nothing. Raises ``StaleGeneration``, ``StaleLeaderEpoch``, ``QuiesceNotClosed``,
        ``BoundaryBelowAcknowledged``, ``BoundaryAlreadySet``, ``SeedNotBelowBoundary``,
        ``SeedMismatch``, ``NotMigrating``, ``InvalidInput``.
        """
        await self._pool.fetch(
            "SELECT tideline.initialize_diskless_migration(%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            boundary.log.topic_id, boundary.log.partition, boundary.boundary,
            boundary.leader_epoch, boundary.generation, _seeds(boundary.seeds),
            boundary.prefix_log_start, boundary.prefix_max_timestamp,
            boundary.prefix_max_timestamp_offset,
        )  # fmt: skip

    async def set_diskless_log_start_offset(
        self, log: TopicIdPartition, boundary: int, leader_epoch: int
    ) -> None:
        """Seed 000: -1 resets B0 (an empty suffix only); a value is set while unset, under a
        closed and acknowledged generation and with the seeds of :meth:`seed_producer_state`.

        Raises as :meth:`initialize_diskless_migration`, and ``ResetRefused``.
        """
        await self._pool.fetch(
            "SELECT tideline.set_diskless_log_start_offset(%s, %s, %s, %s)",
            log.topic_id, log.partition, boundary, leader_epoch,
        )  # fmt: skip

    async def get_diskless_log_start_offset(self, log: TopicIdPartition) -> int:
        """B0, or -1."""
        rows = await self._pool.fetch(
            "SELECT tideline.get_diskless_log_start_offset(%s, %s) AS boundary",
            log.topic_id, log.partition,
        )  # fmt: skip
        return int(rows[0]["boundary"])

    async def seed_producer_state(
        self, log: TopicIdPartition, seeds: Iterable[ProducerSeed]
    ) -> None:
        """Seed without B0; overwritable while B0 is unset, then ``SeedMismatch``."""
        await self._pool.fetch(
            "SELECT tideline.seed_producer_state(%s, %s, %s)",
            log.topic_id, log.partition, _seeds(seeds),
        )  # fmt: skip

    async def reset_boundary(self, log: TopicIdPartition, generation: int) -> None:
        """Unset B0 and migrate anew; a boundary that is unset is no error.

        Raises ``StaleGeneration``; ``ResetRefused`` once the suffix holds data (schedule 7).
        """
        await self._pool.fetch(
            "SELECT tideline.reset_boundary(%s, %s, %s)", log.topic_id, log.partition, generation
        )

    async def abort_migration(self, topic_id: UUID) -> None:
        """Back to tiered only, if no partition of the topic has B0 (schedule 20); repeats
        succeed. Raises ``AbortRefused`` naming those that have, ``UnknownTopic``.
        """
        await self._pool.fetch("SELECT tideline.abort_migration(%s)", topic_id)
