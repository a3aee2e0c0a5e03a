"""What the collection asks of the control plane: part of
:class:`tideline.control_plane.jobs.JobsControlPlane`, with its errors."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tideline.control_plane.calls import Function, Row, columns, nothing, rows, value, values
from tideline.control_plane.garbage_model import (
    DeadObject,
    GarbageAmount,
    GarbageRow,
    GcRunBegun,
    GcRunRow,
    ListedObject,
    OrphanRow,
    UnseenSegment,
)
from tideline.control_plane.pool import JobsConnection
from tideline.control_plane.tiering_model import Bucket
from tideline.domain.collection import Amount

STEP_ROWS = 1_000
"""Rows per call: a few ms each. No step locks a row that commits need."""


class GarbageCalls:
    _connection: JobsConnection

    def forget_uncommitted_keys(self, grace_ms: int, limit: int = STEP_ROWS) -> int:
        """Forget WAL keys that were registered ``grace_ms`` ago and never committed: no commit
        accepts them from now on (schedule 17), and an object under one is an orphan. How many;
        repeat while it is ``limit``."""
        return self._connection.call(
            Function("forget_uncommitted_keys", value(int)), grace_ms, limit
        )

    def claim_dead_files(self, grace_ms: int, limit: int = STEP_ROWS) -> list[str]:
        """WAL keys to delete: seen without a live batch ``grace_ms`` ago. Keys that a killed run
        claimed come again."""
        return self._connection.call(Function("claim_dead_files", values(str)), grace_ms, limit)

    def forget_dead_files(self, keys: Sequence[str]) -> int:
        """The objects of claimed WAL keys are gone. Returns how many were forgotten."""
        return self._connection.call(Function("forget_dead_files", value(int)), list(keys))

    def mark_dead_objects(self, grace_ms: int, limit: int = STEP_ROWS) -> None:
        """Mark what is dead now: segments that were abandoned, whose claim lapsed ``grace_ms`` ago,
        that lie wholly below the suffix's start, or of deleted topics; nothing marked is read or
        finished any more. Forget recorded runs that have expired, or are of deleted topics."""
        self._connection.call(Function("mark_dead_objects", nothing), grace_ms, limit)

    def unseen_segments(self, grace_ms: int, limit: int) -> list[UnseenSegment]:
        """Merged segments that were finished ``grace_ms`` ago and that nobody has seen whole since,
        the oldest first. What died since the first of all that nobody has seen is not due."""
        function = Function("unseen_segments", rows(UnseenSegment))
        return self._connection.call(function, grace_ms, limit)

    def note_segments_seen(self, segment_ids: Sequence[UUID]) -> None:
        """All objects of these are as they were sent."""
        self._connection.call(Function("note_segments_seen", nothing), list(segment_ids))

    def claim_dead_objects(
        self, grace_ms: int, limit: int = STEP_ROWS, *, orphan_grace_ms: int | None = None
    ) -> list[DeadObject]:
        """Objects to delete, oldest first: of segments that were marked ``grace_ms`` ago, or
        ``orphan_grace_ms`` ago (``None``: the same) if nobody ever finished them. Marks what is
        dead now. Keys come again until they are forgotten.
        """
        function = Function("claim_dead_objects", rows(DeadObject))
        return self._connection.call(
            function, grace_ms, grace_ms if orphan_grace_ms is None else orphan_grace_ms, limit
        )

    def forget_dead_objects(self, keys: Sequence[str]) -> int:
        """The objects are gone. A segment's row goes with its last key. Keys that are not marked
        are left alone. Returns how many were forgotten.
        """
        return self._connection.call(Function("forget_dead_objects", value(int)), list(keys))

    def preview_garbage(
        self, grace_ms: int, limit: int, *, orphan_grace_ms: int | None = None
    ) -> list[GarbageRow]:
        """What the control plane knows to be dead, reported orphans too: at most ``limit`` of each
        kind."""
        function = Function("preview_garbage", rows(GarbageRow))
        return self._connection.call(
            function, grace_ms, grace_ms if orphan_grace_ms is None else orphan_grace_ms, limit
        )

    def unknown_objects(self, bucket: Bucket, keys: Sequence[str]) -> dict[str, int | None]:
        """Of listed objects, those that nothing refers to: when that was first reported (ms), or
        ``None``. The brokers' own segments are unknown here, too: leave them out."""
        return self._connection.call(Function("unknown_objects", _reported), bucket, list(keys))

    def report_orphans(
        self, run_number: int, bucket: Bucket, listed: Sequence[ListedObject]
    ) -> list[str]:
        """Report those of the ``listed`` objects that nothing refers to; their keys. One that was
        written anew is reported anew, one that is known by now loses its report."""
        return self._connection.call(
            Function("report_orphans", values(str)),
            run_number,
            bucket,
            *columns(listed, "object_key", "size", "etag", "modified_ms"),
        )

    def claim_orphans(
        self, run_number: int, grace_ms: int, limit: int = STEP_ROWS
    ) -> list[OrphanRow]:
        """Orphans to delete: listed by this run, reported by an earlier one ``grace_ms`` ago, and
        still unknown. They come again until they are forgotten."""
        return self._connection.call(
            Function("claim_orphans", rows(OrphanRow)), run_number, grace_ms, limit
        )

    def forget_orphans(self, bucket: Bucket, keys: Sequence[str]) -> int:
        """The objects are gone. Returns how many reports were forgotten."""
        return self._connection.call(Function("forget_orphans", value(int)), bucket, list(keys))

    def begin_gc_run(self, run_id: UUID) -> GcRunBegun:
        """Note that a run begins, and learn which held one it may do."""
        (begun,) = self._connection.call(Function("begin_gc_run", rows(GcRunBegun)), run_id)
        return begun

    def measure_garbage(
        self, run_number: int, grace_ms: int, orphan_grace_ms: int
    ) -> list[GarbageAmount]:
        """What may go now, of marked and reported objects."""
        function = Function("measure_garbage", rows(GarbageAmount))
        return self._connection.call(function, run_number, grace_ms, orphan_grace_ms)

    def judge_gc_run(
        self,
        run_number: int,
        *,
        listed: Amount | None,
        due: Amount,
        orphans: Amount,
        held_because: str | None,
    ) -> None:
        """Note what is due, and whether the run is held for it."""
        self._connection.call(
            Function("judge_gc_run", nothing),
            run_number,
            listed and listed.objects,
            listed and listed.size,
            due.objects,
            due.size,
            orphans.objects,
            orphans.size,
            held_because,
        )

    def end_gc_run(self, run_number: int, deleted: int, held_run: UUID | None) -> None:
        """The run is done; ``held_run``: the one whose allowance it has used."""
        self._connection.call(Function("end_gc_run", nothing), run_number, deleted, held_run)

    def allow_gc_run(self, run_id: UUID, decided_by: str, reason: str) -> None:
        """Let the next run delete what this held one found due. Raises ``InvalidInput``."""
        self._connection.call(Function("allow_gc_run", nothing), run_id, decided_by, reason)

    def adopt_gc_runs(self, above: int, run_id: UUID, decided_by: str, reason: str) -> None:
        """Number runs from past ``above`` on, which is ``run_id`` now, and report every orphan
        anew: Postgres was restored and knows all that was acknowledged. Raises ``InvalidInput``."""
        function = Function("adopt_gc_runs", nothing)
        self._connection.call(function, above, run_id, decided_by, reason)

    def gc_runs(self, limit: int) -> list[GcRunRow]:
        """The newest runs of the collection first."""
        return self._connection.call(Function("list_gc_runs", rows(GcRunRow)), limit)


def _reported(found: Sequence[Row]) -> dict[str, int | None]:
    return {row["object_key"]: row["reported_ms"] for row in found}
