"""Split and merge as frames, on executors of their own with a real Postgres."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark.common.entry import failure_of
from spark.common.rows import from_frame, to_frame
from spark.tiering.frames import Share, Slot, merge, split
from spark.tiering.outcomes import Ended, MergeOutcome, SplitOutcome
from spark.tiering.services import Services
from spark.tiering.split_files import SplitOrder
from tests.contract.tiering_world import DISKLESS, TIERED, World, order
from tests.unit.kafka.segment_batches import sized
from tideline.control_plane.catalog_writer import CatalogWriter
from tideline.control_plane.cataloged_jobs import CatalogedJobs
from tideline.domain.catalog import MergedSegment, decode
from tideline.errors import ExitCode
from tideline.object_store.client import (
    ObjectEntry,
    ObjectExists,
    ObjectMissing,
    ObjectStoreUnavailable,
)
from tideline.object_store.signature import Body, pieces
from tideline.settings import JobsSettings


@dataclass(frozen=True)
class DirectoryStore:
    """An object store that several processes share. ``away``: it does not answer."""

    root: Path
    away: bool = False

    def path(self, bucket: str, key: str) -> Path:
        if self.away:
            raise ObjectStoreUnavailable(f"bucket {bucket}: get {key}: no route")
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


def test_frames_split_and_merge_what_the_world_holds(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    store = DirectoryStore(tmp_path)
    logs = [*world.born_diskless(2), world.migrated(boundary=10)]
    keys = [world.append(*((log, sized(2, 30)) for log in logs)) for _ in range(6)]
    for key in keys:
        store.put(DISKLESS, key, world.store.objects[DISKLESS, key])
    opening, worker = Opening(world.settings, store), uuid4()
    found = split_frame(world, spark, worker, opening)
    assert sorted(o.object_key for o in found) == sorted(keys), "two tasks, no file twice"
    assert {o.ended for o in found} == {Ended.DONE}
    assert sum(o.batches for o in found) == 18

    orders = [order(candidate) for candidate in world.plane.merge_candidates()]
    frame = to_frame(spark, Share, [Share((one,)) for one in orders], 4)
    made = from_frame(MergeOutcome, merge(frame, worker, opening, claim_ms=60_000))
    assert [(m.ended, m.batches, m.records) for m in made] == [(Ended.DONE, 6, 12)] * 3
    assert [(m.object_reads, m.object_writes) for m in made] == [(6, 6)] * 3
    work = world.plane.take_tiering_work(worker)
    assert (work["files.split"], work["batches.split"]) == (6, 18)
    assert (work["segments.created"], work["batches.merged"]) == (3, 18)
    rows = world.plane.merged_segments(*world.plane.log_id_range())
    for row in rows:
        assert store.get(TIERED, f"{row.object_key_stem}.log") == world.expected(row.log)
    assert world.rows_left() == 0

    found = store.list_objects(DISKLESS, "meta/v1/merged-segment/")
    told = [decode(store.get(DISKLESS, entry.key)) for entry in found]
    rows = list(world.plane.merged_segments(*world.plane.log_id_range()))
    said = {(row.segment_id, row.base_offset, row.last_offset, row.size_bytes) for row in rows}
    for counted in (False, True):
        segments = [t.record for t in told if t.counted is counted]
        assert {
            (one.segment_id, one.base_offset, one.last_offset, one.size_bytes)
            for one in segments
            if isinstance(one, MergedSegment)
        } == said
    with closing(cataloged(world.settings, store)) as plane:
        assert plane.tell_segments() == 0, "what Postgres has of a segment is the same record"


def test_a_store_that_is_away_fails_the_job_with_its_name_and_counts_nothing(
    world: World, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log,) = world.born_diskless()
    world.append((log, sized(2, 30)))
    worker = uuid4()
    split_frame(world, spark, worker, Opening(world.settings, DirectoryStore(tmp_path)))
    orders = [order(candidate) for candidate in world.plane.merge_candidates()]
    frame = to_frame(spark, Share, [Share(tuple(orders))], 1)
    away = Impatient(world.settings, DirectoryStore(tmp_path, away=True))
    with pytest.raises(PySparkException) as caught:
        from_frame(MergeOutcome, merge(frame, worker, away, claim_ms=60_000))
    failure = failure_of(caught.value)
    assert failure is not None
    assert (failure.exit_code, failure.store) == (ExitCode.UNREACHABLE, "S3")
    assert world.scene.sql("SELECT count(*) FROM tiering_failures") == [(0,)]
    assert world.plane.merge_claimed_for(log, worker) == 0, "the claim was given back"


def split_frame(
    world: World, spark: SparkSession, worker: UUID, opening: Opening
) -> list[SplitOutcome]:
    """By two tasks."""
    wanted = SplitOrder(
        worker, max_files=1, max_batches=99, claim_ms=60_000, cutoffs=world.cutoffs()
    )
    slots = to_frame(spark, Slot, [Slot(0), Slot(1)], 2)
    return from_frame(SplitOutcome, split(slots, wanted, opening))


class Impatient(Opening):
    """Does not wait for a store to come back."""

    @contextmanager
    def __call__(self) -> Iterator[Services]:
        from spark.common.retry import retry

        retry.__kwdefaults__["deadline_s"] = 0.1
        with super().__call__() as services:
            yield services
