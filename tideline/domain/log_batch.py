"""A batch where it lies in its log."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tideline.domain.wal_footer import FooterBatch


@dataclass(frozen=True, slots=True)
class LogBatch:
    """A row of table ``batches``. Offsets inclusive, times in ms."""

    base_offset: int
    object_key: str
    append_time: int
    """Of the commit; of an inferred batch the gateway's clock, between its neighbours'."""
    footer: FooterBatch
    stream: UUID
    sequence: int = 0
    """Of the object in its stream; a filling is the only one in its own."""
    inferred: bool = False
    running_max_timestamp: int = -1
    """Of the batches that are in the bucket."""

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.footer.record_count - 1

    @property
    def max_timestamp(self) -> int:
        return self.append_time if self.footer.log_append_time else self.footer.max_timestamp
