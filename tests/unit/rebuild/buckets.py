"""A bucket in memory, and what gateways and the catalog's writers put into it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID, uuid4

from tideline.domain import catalog
from tideline.domain.wal_footer import (
    WITHDRAWN,
    BatchOutcome,
    EarlierCommit,
    Footer,
    FooterBatch,
    encode,
)
from tideline.object_store.client import ObjectEntry, ObjectMissing, ObjectStoreUnavailable
from tideline.rebuild.reader import BucketReader
from tideline.rebuild.survey import Choices, Survey, survey

HISTORY = UUID(int=1)
TOPIC, OTHER = UUID(int=21), UUID(int=22)


@dataclass
class Bucket:
    """Objects by key, and what was asked."""

    objects: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, int]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    gone: frozenset[str] = frozenset()
    away: bool = False

    def list_objects(
        self, bucket: str, prefix: str, start_after: str | None = None
    ) -> Iterator[ObjectEntry]:
        for key in sorted(self.objects):
            if key.startswith(prefix) and key > (start_after or ""):
                yield ObjectEntry(key, len(self.objects[key]), datetime.now(UTC))

    def get(
        self, bucket: str, key: str, start: int | None = None, size: int | None = None
    ) -> bytes:
        with self.lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.away:
                raise ObjectStoreUnavailable(key)
            if key in self.gone or key not in self.objects:
                raise ObjectMissing(key)
            start = start or 0
            found = self.objects[key][start : None if size is None else start + size]
            with self.lock:
                self.asked.append((key, len(found)))
            return found
        finally:
            with self.lock:
                self.at_once -= 1

    def put(self, bucket: str, key: str, body: bytes, *, new: bool = False) -> None:
        self.objects[key] = body

    def note(self, *records: catalog.Record, counted: bool = True) -> None:
        """Records of the catalog."""
        for record in records:
            entry = catalog.Entry(HISTORY, counted, record)
            self.objects[catalog.object_key("", entry)] = catalog.encode(entry)


@dataclass
class Stream:
    """One incarnation's objects."""

    bucket: Bucket
    gateway_id: int = 1
    incarnation: UUID = field(default_factory=uuid4)
    history: UUID = HISTORY
    sequence: int = 0
    untold: list[EarlierCommit] = field(default_factory=list)

    def store(self, *batches: FooterBatch, key: str = "") -> str:
        """An object that tells what was :meth:`committed` before it."""
        self.sequence += 1
        key = key or f"wal/{self.gateway_id}-{self.sequence:04}"
        earlier, self.untold = tuple(self.untold), []
        footer = Footer(
            self.history, self.gateway_id, self.incarnation, self.sequence, 5, batches, earlier
        )
        body = b"x" * sum(batch.byte_size for batch in batches)
        self.bucket.objects[key] = body + encode(footer)
        return key

    def committed(self, key: str, sequence: int, *outcomes: BatchOutcome) -> None:
        self.untold.append(EarlierCommit(sequence, key, outcomes))

    def commit(self, base_offset: int, *batches: FooterBatch) -> str:
        """Of one log, each after the other."""
        key = self.store(*batches)
        outcomes = []
        for batch in batches:
            outcomes.append(BatchOutcome("NONE", base_offset, 1_000 + base_offset))
            base_offset += batch.record_count
        self.committed(key, self.sequence, *outcomes)
        return key


def footer_batch(
    topic_id: UUID, partition: int = 0, records: int = 1, *, at: int = 0, size: int = 10
) -> FooterBatch:
    return FooterBatch(topic_id, partition, at, size, records, -1, -1, -1, -1, 1_000, False)


NOT_COMMITTED = BatchOutcome(WITHDRAWN, -1, -1)


def note_orders_and_births(bucket: Bucket) -> None:
    """Topic ``orders`` migrated with B0 = 10, topic ``births`` was born diskless."""
    bucket.note(
        catalog.Topic(TOPIC, "orders", False, 1, 1),
        catalog.Boundary(TOPIC, 0, 3, 5, 10, (), 2, 900, 4),
        catalog.Topic(OTHER, "births", True, 1, 0),
    )


def look(bucket: Bucket, **choices: object) -> Survey:
    return survey(BucketReader(bucket, "wal", ""), None, Choices(**choices))  # type: ignore[arg-type]
