"""Garbage, coverage verdicts and retention, as the jobs write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from tideline.control_plane.housekeeping import STEP_ROWS
from tideline.control_plane.jobs_connection import JobsConnection
from tideline.control_plane.jobs_model import Bucket, CoverageStatusRow, DeadKind, DeadObject
from tideline.domain.ids import TopicIdPartition


class JobsUpkeep:
    """Part of :class:`tideline.control_plane.jobs.JobsControlPlane`."""

    _connection: JobsConnection

    def claim_dead_files(self, grace_ms: int, limit: int = STEP_ROWS) -> list[str]:
        """WAL keys to delete: registered and never committed for ``grace_ms``, or seen without a
        live batch that long ago. No commit accepts them from now on (schedule 17). Keys that a
        killed run claimed come again.
        """
        rows = self._connection.fetch(
            "SELECT tideline.claim_dead_files(%s, %s) AS object_key", grace_ms, limit
        )
        return [row["object_key"] for row in rows]

    def forget_dead_files(self, keys: Sequence[str]) -> int:
        """The objects of claimed WAL keys are gone. Returns how many were forgotten."""
        (row,) = self._connection.fetch(
            "SELECT tideline.forget_dead_files(%s::text[]) AS forgotten", list(keys)
        )
        return int(row["forgotten"])

    def claim_dead_objects(self, grace_ms: int, limit: int = STEP_ROWS) -> list[DeadObject]:
        """Objects to delete, oldest first: split files and merged segments that were marked
        deleting at least ``grace_ms`` ago. Marks what is dead now: split files that were merged,
        have expired or were never finished; segments that were abandoned, whose claim lapsed
        ``grace_ms`` ago, that lie wholly below the suffix's start, or of deleted topics. Nothing
        marked is read or finished any more. Keys come again until they are forgotten.
        """
        rows = self._connection.fetch(
            "SELECT * FROM tideline.claim_dead_objects(%s, %s)", grace_ms, limit
        )
        return [
            DeadObject(row["object_key"], Bucket(row["bucket"]), DeadKind(row["kind"]))
            for row in rows
        ]

    def forget_dead_objects(self, keys: Sequence[str]) -> int:
        """The objects are gone, those of ``mark_orphans_for_deletion`` too. A segment's row goes
        with its last key. Keys that are not marked are left alone. Returns how many were
        forgotten.
        """
        (row,) = self._connection.fetch(
            "SELECT tideline.forget_dead_objects(%s::text[]) AS forgotten", list(keys)
        )
        return int(row["forgotten"])

    def mark_orphans_for_deletion(
        self, keys: Sequence[str], *, grace_ms: int, bucket: Bucket = Bucket.DISKLESS
    ) -> list[str]:
        """Of listed objects, those to delete: unknown to the control plane now and already at a
        call at least ``grace_ms`` ago. The first sight only marks. Keys of WAL files, split files,
        merged segments and marked objects are known; the brokers' own segments are not: leave
        them out. Forget the keys when the objects are gone.
        """
        rows = self._connection.fetch(
            "SELECT tideline.mark_orphans_for_deletion(%s, %s::text[], %s) AS object_key",
            bucket.value, list(keys), grace_ms,
        )  # fmt: skip
        return [row["object_key"] for row in rows]

    def prune_batches(self, limit: int = STEP_ROWS) -> int:
        """Remove rows that nobody can read; how many. Repeat while it is ``limit``."""
        (row,) = self._connection.fetch("SELECT tideline.prune_batches(%s) AS pruned", limit)
        return int(row["pruned"])

    def expire_producers(self, idle_ms: int, limit: int = STEP_ROWS) -> int:
        """Forget producers idle for ``producer.id.expiration.ms``; how many. Repeat while it is
        ``limit``."""
        (row,) = self._connection.fetch(
            "SELECT tideline.expire_producers(%s, %s) AS expired", idle_ms, limit
        )
        return int(row["expired"])

    def record_coverage(
        self,
        log: TopicIdPartition,
        generation: int,
        boundary: int,
        complete: bool,
        reason: str,
        detail: Mapping[str, Any],
        run_id: str,
        observed_at: int,
    ) -> bool:
        """Write a run's verdict and set or clear ``tieringComplete`` with it.

        ``observed_at`` (ms): when the run began to look. False: a newer run has written already,
        nothing changed. Once the prefix is gone ``tieringComplete`` stays true whatever the
        verdict. Raises ``StaleGeneration`` when the generation or B0 is another one now,
        ``BoundaryUnset``, ``UnknownLog``, ``TopicDeleted``.
        """
        (row,) = self._connection.fetch(
            "SELECT tideline.record_coverage(%s, %s, %s, %s, %s, %s, %s, %s, %s) AS recorded",
            log.topic_id, log.partition, generation, boundary, complete, reason,
            Jsonb(dict(detail)), run_id, datetime.fromtimestamp(observed_at / 1000, UTC),
        )  # fmt: skip
        return bool(row["recorded"])

    def coverage_status(self, topic: str | None = None) -> list[CoverageStatusRow]:
        """The last verdict of each migrated partition with B0, or of those of ``topic``."""
        rows = self._connection.fetch("SELECT * FROM tideline.coverage_status(%s)", topic)
        return [CoverageStatusRow(**row) for row in rows]

    def delete_records(self, topic_id: UUID, partition: int, before_offset: int) -> int:
        """Advance the suffix's start to ``before_offset`` (exclusive; -1: the high watermark) and
        return it; never back. B0 never moves. Merged segments that are passed go to gc.

        Raises ``OffsetOutOfRange``, ``BoundaryUnset``, ``UnknownLog``, ``TopicDeleted``.
        """
        (row,) = self._connection.fetch(
            "SELECT tideline.delete_records(%s, %s, %s) AS suffix_start",
            topic_id, partition, before_offset,
        )  # fmt: skip
        return int(row["suffix_start"])

    def advance_prefix_start(self, topic_id: UUID, partition: int, log_start: int) -> None:
        """Kafka's log start of the prefix moved to ``log_start``; never back. At B0 the prefix is
        gone, and without a merged segment the partition is ``DISKLESS_ONLY``.
        """
        self._connection.fetch(
            "SELECT tideline.advance_prefix_start(%s, %s, %s)", topic_id, partition, log_start
        )
