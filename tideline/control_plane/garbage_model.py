"""What the collection exchanges with the control plane. Times are ms, sizes bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from tideline.control_plane.tiering_model import SEGMENT_SUFFIXES, Bucket


class DeadReason(StrEnum):
    """Why an object may go."""

    EMPTY = "empty"
    """A WAL object: its last batch was merged, has expired, or was of a deleted topic."""
    EXPIRED = "expired"
    """Below the start of its log, or of a deleted topic."""
    UNFINISHED = "unfinished"
    """Nobody finished it: its claim was lost or lapsed."""
    UNKNOWN = "unknown"
    """An orphan: neither Postgres nor Kafka refers to it."""


@dataclass(frozen=True, slots=True)
class DeadObject:
    """An object of a merged segment that may be deleted now."""

    object_key: str
    bucket: Bucket
    reason: DeadReason


@dataclass(frozen=True, slots=True)
class UnseenSegment:
    """A merged segment that nobody has seen whole since it was finished, with what its objects are
    to be. ``None``: not known, it was added by a rebuild."""

    segment_id: UUID
    object_key_stem: str
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int
    snapshot_bytes: int | None
    epoch_checkpoint_bytes: int | None

    def wanted(self) -> dict[str, int | None]:
        """Bytes by the suffix of each object."""
        sizes = (
            self.size_bytes,
            self.offset_index_bytes,
            self.time_index_bytes,
            0,  # a segment of the suffix has no transactions
            self.snapshot_bytes,
            self.epoch_checkpoint_bytes,
        )
        return dict(zip(SEGMENT_SUFFIXES, sizes, strict=True))


@dataclass(frozen=True, slots=True)
class OrphanRow:
    """An orphan that an earlier run reported and that may be deleted now."""

    object_key: str
    bucket: Bucket
    size: int
    reported_ms: int
    """When a run first found nothing that refers to it."""


@dataclass(frozen=True, slots=True)
class GarbageRow:
    """An object that a run deletes now (``due``) or marks. A segment is its ``.log`` object."""

    object_key: str
    bucket: Bucket
    kind: str
    """``wal``, ``segment`` or ``orphan``."""
    reason: DeadReason
    due: bool


@dataclass(frozen=True, slots=True)
class GarbageAmount:
    """What of one kind may go now, for one reason."""

    kind: str
    reason: DeadReason
    objects: int
    bytes: int


@dataclass(frozen=True, slots=True)
class GcRunBegun:
    """A new run, and the held run that it may do; ``None``: none is allowed. That one counted
    ``held_objects`` and ``held_bytes`` that were due, ``held_age_ms`` ago."""

    run_number: int
    held_run: UUID | None
    held_age_ms: int
    held_objects: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class GcRunRow:
    """One run of the collection. ``state``: running (or killed), held, done."""

    run_number: int
    run_id: UUID
    state: str
    started_ms: int
    ended_ms: int | None
    listed_objects: int | None
    listed_bytes: int | None
    due_objects: int
    due_bytes: int
    due_orphans: int
    due_orphan_bytes: int
    deleted_objects: int
    held_because: str | None
    allowed_by: str | None
    allowed_because: str | None
    used_by: int | None
    orphans: int
    """Reported orphans now, those of a younger report too: the same in each row."""


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object as a listing showed it."""

    object_key: str
    size: int
    etag: str
    modified_ms: int
    """By S3's clock."""
