"""The services of split and merge for executors that are processes of their own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from spark.tiering.services import Services
from tests.contract.tiering_world import DISKLESS, TIERED
from tideline.control_plane.catalog_writer import CatalogWriter
from tideline.control_plane.cataloged_jobs import CatalogedJobs
from tideline.object_store.client import ObjectEntry, ObjectExists, ObjectMissing
from tideline.object_store.signature import Body, pieces
from tideline.settings import JobsSettings


@dataclass(frozen=True)
class DirectoryStore:
    """An object store that several processes share."""

    root: Path

    def path(self, bucket: str, key: str) -> Path:
        return self.root / bucket / key.replace("/", "!")

    def get(
        self, bucket: str, key: str, start: int | None = None, size: int | None = None
    ) -> bytes:
        path = self.path(bucket, key)
        if not path.exists():
            raise ObjectMissing(key)
        body, first = path.read_bytes(), start or 0
        return body[first : len(body) if size is None else first + size]

    def put(self, bucket: str, key: str, body: bytes, *, new: bool = False) -> None:
        path = self.path(bucket, key)
        if new and path.exists():
            raise ObjectExists(key)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(body)

    def begin_parts(self, bucket: str, key: str) -> str:
        upload = self.path(bucket, f"{key}.upload-{uuid4()}")
        upload.mkdir(parents=True)
        return upload.name

    def put_part(self, bucket: str, key: str, upload: str, number: int, body: Body) -> str:
        (self.root / bucket / upload / f"{number:05d}").write_bytes(b"".join(pieces(body)))
        return str(number)

    def complete_parts(self, bucket: str, key: str, upload: str, tags: Sequence[str]) -> None:
        parts = self.root / bucket / upload
        self.put(bucket, key, b"".join((parts / f"{int(n):05d}").read_bytes() for n in tags))
        self.abort_parts(bucket, key, upload)

    def abort_parts(self, bucket: str, key: str, upload: str) -> None:
        shutil.rmtree(self.root / bucket / upload)

    def size(self, bucket: str, key: str) -> int:
        return len(self.get(bucket, key))

    def list_objects(
        self, bucket: str, prefix: str, start_after: str | None = None
    ) -> Iterator[ObjectEntry]:
        for path in sorted(p for p in (self.root / bucket).iterdir() if p.is_file()):
            if (key := path.name.replace("!", "/")).startswith(prefix):
                modified = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                yield ObjectEntry(key, path.stat().st_size, modified)

    def delete(self, bucket: str, keys: object) -> None:
        for key in keys:  # type: ignore[attr-defined]
            self.path(bucket, key).unlink(missing_ok=True)


def cataloged(settings: JobsSettings, store: DirectoryStore) -> CatalogedJobs:
    return CatalogedJobs(settings, "frames-test", CatalogWriter(store, DISKLESS, ""))


@dataclass(frozen=True)
class Opening:
    """Opens the services on an executor."""

    settings: JobsSettings
    store: DirectoryStore

    @contextmanager
    def __call__(self) -> Iterator[Services]:
        with closing(cataloged(self.settings, self.store)) as plane:
            yield Services(plane, self.store, DISKLESS, TIERED, park_after=3)
