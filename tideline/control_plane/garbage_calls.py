"""What the collection asks of the control plane: part of
:class:`tideline.control_plane.jobs.JobsControlPlane`, with its errors."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tideline.control_plane.calls import (
    COUNTS,
    READS,
    UPKEEP,
    Function,
    Row,
    attributes,
    call,
    columns,
    noted,
    rows,
)
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


AMOUNT = attributes("objects", "size")


def _reported(found: Sequence[Row]) -> dict[str, int | None]:
    return {row["object_key"]: row["reported_ms"] for row in found}


class GarbageCalls:
    _connection: JobsConnection

    @call(UPKEEP)
    def forget_uncommitted_keys(self, grace_ms: int, limit: int = STEP_ROWS) -> int:
        """Forget WAL keys that were registered ``grace_ms`` ago and never committed: no commit
        accepts them from now on (schedule 17), and an object under one is an orphan. How many;
        repeat while it is ``limit``."""

    @call(UPKEEP)
    def claim_dead_files(self, grace_ms: int, limit: int = STEP_ROWS) -> list[str]:
        """WAL keys to delete: seen without a live batch ``grace_ms`` ago. Keys that a killed run
        claimed come again."""

    @call(UPKEEP)
    def forget_dead_files(self, keys: Sequence[str]) -> int:
        """The objects of claimed WAL keys are gone. Returns how many were forgotten."""

    @call(UPKEEP)
    def mark_dead_objects(self, grace_ms: int, limit: int = STEP_ROWS) -> None:
        """Mark what is dead now: segments that were abandoned, whose claim lapsed ``grace_ms`` ago,
        that lie wholly below the suffix's start, or of deleted topics; nothing marked is read or
        finished any more. Forget recorded runs that have expired, or are of deleted topics."""

    @call(READS)
    def unseen_segments(self, grace_ms: int, limit: int) -> list[UnseenSegment]:
        """Merged segments that were finished ``grace_ms`` ago and that nobody has seen whole since,
        the oldest first. What died since the first of all that nobody has seen is not due."""

    @call("looked at anew")
    def note_segments_seen(self, segment_ids: Sequence[UUID]) -> None:
        """All objects of these are as they were sent."""

    @noted(UPKEEP)
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

    @call(UPKEEP)
    def forget_dead_objects(self, keys: Sequence[str]) -> int:
        """The objects are gone. A segment's row goes with its last key. Keys that are not marked
        are left alone. Returns how many were forgotten.
        """

    @noted(READS)
    def preview_garbage(
        self, grace_ms: int, limit: int, *, orphan_grace_ms: int | None = None
    ) -> list[GarbageRow]:
        """What the control plane knows to be dead, reported orphans too: at most ``limit`` of each
        kind."""
        function = Function("preview_garbage", rows(GarbageRow))
        return self._connection.call(
            function, grace_ms, grace_ms if orphan_grace_ms is None else orphan_grace_ms, limit
        )

    @call(READS, read=_reported)
    def unknown_objects(self, bucket: Bucket, keys: Sequence[str]) -> dict[str, int | None]:
        """Of listed objects, those that nothing refers to: when that was first reported (ms), or
        ``None``. The brokers' own segments are unknown here, too: leave them out."""

    @call(
        "the reports in the bucket say it",
        listed=columns("object_key", "size", "etag", "modified_ms"),
    )
    def report_orphans(
        self, run_number: int, bucket: Bucket, listed: Sequence[ListedObject]
    ) -> list[str]:
        """Report those of the ``listed`` objects that nothing refers to; their keys. One that was
        written anew is reported anew, one that is known by now loses its report."""

    @call(READS)
    def claim_orphans(
        self, run_number: int, grace_ms: int, limit: int = STEP_ROWS
    ) -> list[OrphanRow]:
        """Orphans to delete: listed by this run, reported by an earlier one ``grace_ms`` ago, and
        still unknown. They come again until they are forgotten."""

    @call(UPKEEP)
    def forget_orphans(self, bucket: Bucket, keys: Sequence[str]) -> int:
        """The objects are gone. Returns how many reports were forgotten."""

    @call(COUNTS)
    def begin_gc_run(self, run_id: UUID) -> GcRunBegun:
        """Note that a run begins, and learn which held one it may do."""

    @call(READS)
    def measure_garbage(
        self, run_number: int, grace_ms: int, orphan_grace_ms: int
    ) -> list[GarbageAmount]:
        """What may go now, of marked and reported objects."""

    @call(COUNTS, listed=AMOUNT, due=AMOUNT, orphans=AMOUNT)
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

    @call(COUNTS)
    def end_gc_run(self, run_number: int, deleted: int, held_run: UUID | None) -> None:
        """The run is done; ``held_run``: the one whose allowance it has used."""

    @call(COUNTS)
    def allow_gc_run(self, run_id: UUID, decided_by: str, reason: str) -> None:
        """Let the next run delete what this held one found due. Raises ``InvalidInput``."""

    @call(COUNTS)
    def adopt_gc_runs(self, above: int, run_id: UUID, decided_by: str, reason: str) -> None:
        """Number runs from past ``above`` on, which is ``run_id`` now, and report every orphan
        anew: Postgres was restored and knows all that was acknowledged. Raises ``InvalidInput``."""

    @call(READS, "list_gc_runs")
    def gc_runs(self, limit: int) -> list[GcRunRow]:
        """The newest runs of the collection first."""
