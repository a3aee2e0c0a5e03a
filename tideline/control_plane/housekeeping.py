"""Periodic work on the suffix's metadata, in small steps. No step locks a row that commits need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tideline.control_plane.pool import Pool

STEP_ROWS = 1_000
"""Rows per call: a few ms each, far below the statement timeout."""


@dataclass(frozen=True, slots=True)
class CommitDurability:
    """Whether a commit that Postgres acknowledged survives a crash and a failover. Truthy if so."""

    durable: bool
    explanation: str
    settings: dict[str, str]

    def __bool__(self) -> bool:
        return self.durable


class Housekeeping:
    """Part of :class:`tideline.control_plane.ControlPlane`."""

    _pool: Pool

    async def expire_producers(self, idle_ms: int, limit: int = STEP_ROWS) -> int:
        """Forget producers idle for ``producer.id.expiration.ms``: they are then treated as
        without state (schedule 21). Returns how many; repeat while it is ``limit``.
        """
        rows = await self._pool.fetch(
            "SELECT tideline.expire_producers(%s, %s) AS expired", idle_ms, limit
        )
        return int(rows[0]["expired"])

    async def prune_batches(self, limit: int = STEP_ROWS) -> int:
        """Remove coordinates that nobody can read: below a suffix's start or of deleted topics.

        Returns how many; repeat while it is ``limit``.
        """
        rows = await self._pool.fetch("SELECT tideline.prune_batches(%s) AS pruned", limit)
        return int(rows[0]["pruned"])

    async def claim_dead_files(self, grace_ms: int, limit: int = STEP_ROWS) -> list[str]:
        """Keys to delete from the object store: no live batch for ``grace_ms``. From now on no
        commit accepts them (schedule 17). Keys that a killed run claimed come again.
        """
        rows = await self._pool.fetch(
            "SELECT tideline.claim_dead_files(%s, %s) AS object_key", grace_ms, limit
        )
        return [row["object_key"] for row in rows]

    async def forget_dead_files(self, keys: Sequence[str]) -> int:
        """The objects of claimed keys are gone. Returns how many were forgotten."""
        rows = await self._pool.fetch(
            "SELECT tideline.forget_dead_files(%s::text[]) AS forgotten", list(keys)
        )
        return int(rows[0]["forgotten"])

    async def check_synchronous_commit(self) -> CommitDurability:
        """What preflight asks: B0 and acknowledgements must outlive a crash (schedule 16)."""
        rows = await self._pool.fetch(
            "SELECT name, setting FROM pg_settings WHERE name IN "
            "('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names')"
        )
        settings = {row["name"]: row["setting"] for row in rows}
        if settings["fsync"] != "on" or settings["full_page_writes"] != "on":
            explanation = "fsync or full_page_writes is off: a crash of the host loses commits"
        elif settings["synchronous_commit"] in ("off", "local"):
            explanation = (
                f"synchronous_commit is {settings['synchronous_commit']}: a crash or failover "
                "loses commits"
            )
        else:
            standbys = settings["synchronous_standby_names"]
            return CommitDurability(
                True,
                f"commits wait for {standbys}"
                if standbys
                else "commits wait for the disk; "
                "without synchronous_standby_names do not fail over to a standby",
                settings,
            )
        return CommitDurability(False, explanation + ". Turn it on in postgresql.conf.", settings)
