"""What each run deleted, as objects under a prefix of their own.

``gc-reports/<date>/<run number>-<run id>-<part>.jsonl.gz``: the first parts say what the run found
and decided, each later one lists a round, before its objects go. So a run that was killed has
listed more than it deleted, never less.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from tideline.object_store.client import ObjectEntry

PREFIX = "gc-reports/"


class ReportStore(Protocol):
    """The part of :class:`tideline.object_store.client.ObjectStoreClient` that is needed."""

    def put(self, bucket: str, key: str, body: bytes) -> None: ...
    def list_prefixes(self, bucket: str, prefix: str) -> Iterable[str]: ...
    def list_objects(self, bucket: str, prefix: str) -> Iterable[ObjectEntry]: ...
    def delete(self, bucket: str, keys: Iterable[str]) -> None: ...


@dataclass
class Report:
    """One run's. ``root``: what lies before every key of this installation in ``bucket``."""

    store: ReportStore
    bucket: str
    run_number: int
    run_id: UUID
    started_at: datetime
    root: str = ""
    parts: int = 0

    @property
    def prefix(self) -> str:
        """Of all parts."""
        date = self.started_at.astimezone(UTC).date().isoformat()
        return f"{self.root}{PREFIX}{date}/{self.run_number:010d}-{self.run_id}-"

    def write(self, lines: Iterable[Any]) -> None:
        """One more part; ``lines`` are mappings or dataclasses."""
        text = "".join(
            json.dumps(line if isinstance(line, Mapping) else asdict(line), default=str) + "\n"
            for line in lines
        )
        key = f"{self.prefix}{self.parts:05d}.jsonl.gz"
        self.store.put(self.bucket, key, gzip.compress(text.encode()))
        self.parts += 1

    def forget_old(self, kept_days: int) -> int:
        """Delete reports of more than ``kept_days`` ago; how many objects."""
        oldest = (self.started_at.astimezone(UTC) - timedelta(days=kept_days)).date().isoformat()
        gone = 0
        for day in self.store.list_prefixes(self.bucket, f"{self.root}{PREFIX}"):
            if day.rstrip("/").rpartition("/")[2] < oldest:
                keys = [entry.key for entry in self.store.list_objects(self.bucket, day)]
                self.store.delete(self.bucket, keys)
                gone += len(keys)
        return gone
