"""Parts of records: rows of runs that lie in the bucket until they are appended to the tables."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from spark.common.record_rows import TABLES
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import JobsSettings

ROOT = "records/"
"""Below the installation's prefix in the diskless bucket: parts that wait, and the tables of the
embedded catalog. The collection looks at no name below it."""
PENDING = f"{ROOT}pending/"
MOST_PARTS, MOST_ROWS = 200, 100_000
"""Of one append: some 30 MB in memory, some 10 KB of names in the table's metadata."""
MOST_WAITING = 10_000
"""Parts that one run looks at; the next goes on."""
_NAME = re.compile(
    r"(?P<table>\w+)/(?P<started>\d{13})-(?P<run>[0-9a-f-]{36})-(?P<part>\d{5})-(?P<rows>\d+)"
    r"\.parquet$"
)


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """Rows of one run for one table, at most :data:`ROWS_PER_PART`, that lie in the bucket."""

    table: str
    started_ms: int
    """Of the run."""
    run_id: str
    number: int
    """Within the run, over all of its tables."""
    rows: int

    @property
    def key(self) -> str:
        """Below :data:`PENDING`; by table, then by age."""
        return (
            f"{self.table}/{self.started_ms:013d}-{self.run_id}-{self.number:05d}-{self.rows}"
            ".parquet"
        )

    @property
    def name(self) -> str:
        """Under which an append says that it has told the part. A retry may have its run's id, and
        begins later."""
        return f"{self.run_id}:{self.started_ms}:{self.number}"

    @classmethod
    def of(cls, key: str) -> Part | None:
        """The part of a key below :data:`PENDING`; ``None``: the key of something else."""
        if (found := _NAME.fullmatch(key)) is None:
            return None
        return cls(
            found["table"], int(found["started"]), found["run"], int(found["part"]),
            int(found["rows"]),
        )  # fmt: skip


def pending_root(settings: JobsSettings) -> str:
    """Before the key of every part in the diskless bucket."""
    return f"{settings.diskless_prefix}{PENDING}"


def pending(settings: JobsSettings, store: ObjectStoreClient) -> dict[str, list[Part]]:
    """What waits for each table, the oldest first; of tables that this version knows."""
    root = pending_root(settings)
    found: dict[str, list[Part]] = {}
    seen = 0
    for entry in store.list_objects(settings.s3_bucket, root):
        part = Part.of(entry.key.removeprefix(root))
        if part is not None and part.table in TABLES:
            found.setdefault(part.table, []).append(part)
        if (seen := seen + 1) == MOST_WAITING:
            break
    return found


def due(parts: Sequence[Part], settings: JobsSettings) -> bool:
    """Whether ``parts`` of one table are appended now: they fill an append, or have waited."""
    if not parts:
        return False
    many = len(parts) >= MOST_PARTS or sum(part.rows for part in parts) >= MOST_ROWS
    return many or time.time() * 1000 - parts[0].started_ms >= settings.records_every_ms


def overdue_since(waiting: Mapping[str, Sequence[Part]], settings: JobsSettings) -> datetime | None:
    """Since when the oldest should have been appended; ``None``: none should."""
    parts = [part for some in waiting.values() for part in some]
    if not parts:
        return None
    since_ms = min(part.started_ms for part in parts) + settings.records_every_ms
    return datetime.fromtimestamp(since_ms / 1000, UTC) if since_ms <= time.time() * 1000 else None
