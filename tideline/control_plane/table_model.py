"""What is exchanged about a hybrid topic as a table. Offsets inclusive at both ends, times ms."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID


class SuffixPlace(StrEnum):
    """What a row of :class:`SuffixRow` stands for."""

    LOG = "log"
    """The suffix itself: where it begins and ends now."""
    MERGED = "merged"
    WAL = "wal"
    """Neighbouring batches in WAL objects. Where each lies is asked when they are read."""


@dataclass(frozen=True, slots=True)
class SuffixRow:
    """A part of a suffix."""

    place: SuffixPlace
    segment_id: UUID | None
    object_key_stem: str | None
    """Of a merged segment, in the tiered bucket."""
    base_offset: int
    last_offset: int
    byte_size: int
    max_timestamp: int
    offset_index_bytes: int
    time_index_bytes: int


@dataclass(frozen=True, slots=True)
class ReadPin:
    """Somebody reads objects that were there at ``pinned_ms``."""

    pin_id: UUID
    reader: str
    pinned_ms: int
    expires_ms: int


@dataclass(frozen=True, slots=True)
class VerifyVerdict:
    """What the last verification of a topic found."""

    topic: str
    topic_id: UUID
    run_id: UUID
    verified_at: datetime
    sample: float
    """The share of the ranges that was looked at."""
    ranges: int
    records: int
    byte_count: int
    differences: int
    detail: list[dict[str, Any]] = field(default_factory=list)
    """The first of the differences: ``partition``, ``offset``, ``what``."""
