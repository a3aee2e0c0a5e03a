"""What garbage collection would do. Marks nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tideline.control_plane.jobs_connection import JobsConnection
from tideline.control_plane.jobs_model import Bucket


@dataclass(frozen=True, slots=True)
class GarbageRow:
    """An object that a run deletes now (``due``) or marks. A segment is its ``.log`` object."""

    object_key: str
    bucket: Bucket
    kind: str
    """``wal``, ``split`` or ``segment``."""
    due: bool


class JobsGarbage:
    """Part of :class:`tideline.control_plane.jobs.JobsControlPlane`."""

    _connection: JobsConnection

    def preview_garbage(self, grace_ms: int, limit: int) -> list[GarbageRow]:
        """What the control plane knows to be dead: at most ``limit`` of each kind."""
        rows = self._connection.fetch(
            "SELECT * FROM tideline.preview_garbage(%s, %s)", grace_ms, limit
        )
        return [GarbageRow(**{**row, "bucket": Bucket(row["bucket"])}) for row in rows]

    def unknown_objects(
        self, keys: Sequence[str], *, grace_ms: int, bucket: Bucket
    ) -> dict[str, bool]:
        """Of listed objects, those that nothing refers to: whether they were seen so for
        ``grace_ms`` already. What ``mark_orphans_for_deletion`` would mark or answer."""
        rows = self._connection.fetch(
            "SELECT * FROM tideline.unknown_objects(%s, %s::text[], %s)",
            bucket.value, list(keys), grace_ms,
        )  # fmt: skip
        return {row["object_key"]: row["due"] for row in rows}
