"""A plane in memory behind its catalog, and a bucket that fails when a test wants it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

from tests.contract.scenes import MemoryScene
from tideline.control_plane import ControlPlane
from tideline.control_plane.catalog_writer import CatalogWriter
from tideline.control_plane.cataloged import CatalogedControlPlane
from tideline.domain.catalog import ANNOUNCED, Entry, Record, decode
from tideline.domain.catalog_fold import Catalog, LogFacts, fold
from tideline.domain.ids import TopicIdPartition
from tideline.object_store.client import ObjectEntry, ObjectExists, ObjectStoreUnavailable


class Bucket:
    """Of an object store what the catalog needs. ``fails``: which of the next puts fail."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.fails: Iterator[bool] = iter(())
        self.puts = 0

    def put(self, bucket: str, key: str, body: bytes, *, new: bool = False) -> None:
        self.puts += 1
        if next(self.fails, False):
            raise ObjectStoreUnavailable("the bucket is away")
        if new and key in self.objects:
            raise ObjectExists(key)
        assert new or self.objects[key] != body, "a whole object is never changed"
        self.objects[key] = body

    def get(self, bucket: str, key: str) -> bytes:
        return self.objects[key]

    def list_objects(
        self, bucket: str, prefix: str, start_after: str | None = None
    ) -> Iterator[ObjectEntry]:
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield ObjectEntry(key, 1, datetime.now(UTC))

    def entries(self) -> list[Entry]:
        found = [(key, decode(body)) for key, body in self.objects.items()]
        assert all(entry.counted is not key.endswith(ANNOUNCED) for key, entry in found)
        return [entry for _, entry in found]


class CatalogedScene(MemoryScene):
    """What tests call as ``plane`` keeps the catalog; ``memory`` is what it asks."""

    def __init__(self) -> None:
        super().__init__()
        self.bucket = Bucket()
        self.cataloged = self.cataloged_as(self.bucket)
        self.plane = cast(ControlPlane, self.cataloged)

    def cataloged_as(self, bucket: Any) -> CatalogedControlPlane:
        return CatalogedControlPlane(
            self.memory, CatalogWriter(bucket, "wal-bucket", "here/"), self.clock
        )

    async def catalog(self) -> Catalog:
        return fold(self.bucket.entries(), (await self.memory.identity()).history_id)

    async def facts(self, log: TopicIdPartition) -> LogFacts:
        found = await self.catalog()
        assert found.contradictions == []
        return found.logs[log]

    def told(self, kind: type[Record], *, counted: bool = True) -> list[Any]:
        return [
            entry.record
            for entry in self.bucket.entries()
            if isinstance(entry.record, kind) and entry.counted is counted
        ]
