"""How work on a claimed thing ended, as tasks tell it to their driver."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Ended(StrEnum):
    """How the work on one claimed thing ended."""

    DONE = "done"
    STALE = "stale"
    """Another worker has it now: nothing was changed, nothing is wrong."""
    FAILED = "failed"
    """Counted; after some failures in a row it is parked and shown."""


@dataclass(frozen=True, slots=True)
class SplitOutcome:
    """What became of one claimed WAL file. Sizes in bytes."""

    file_id: int
    object_key: str
    ended: Ended
    runs: int = 0
    batches: int = 0
    bytes: int = 0
    elapsed_ms: int = 0
    """From its claim on, with those that were claimed with it."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    """What became of one segment. Offsets inclusive, -1 without a plan; sizes in bytes;
    ``object_*`` in requests, one that was repeated counts once."""

    topic: str
    topic_id: str
    partition: int
    ended: Ended
    segment_id: str
    base_offset: int = -1
    last_offset: int = -1
    size_bytes: int = 0
    batches: int = 0
    records: int = 0
    object_reads: int = 0
    bytes_read: int = 0
    object_writes: int = 0
    elapsed_ms: int = 0
    error: str | None = None
