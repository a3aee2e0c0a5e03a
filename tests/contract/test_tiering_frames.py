"""Split and merge as frames, on executors of their own with a real Postgres."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark.common.entry import failure_of
from spark.common.rows import from_frame, to_frame
from spark.tiering.frames import merge, split
from spark.tiering.merge_partition import MergeOrder, MergeOutcome
from spark.tiering.services import Services
from spark.tiering.split_file import Ended, SplitOutcome
from tests.contract.conftest import Database
from tests.contract.tiering_world import DISKLESS, TIERED, World, order
from tests.unit.kafka.segment_batches import sized
from tideline.control_plane.catalog_writer import CatalogWriter
from tideline.control_plane.cataloged_jobs import CatalogedJobs
from tideline.control_plane.tiering_model import ClaimedFile
from tideline.domain.catalog import MergedSegment, decode
from tideline.errors import ExitCode
from tideline.object_store.client import (
    ObjectEntry,
    ObjectExists,
    ObjectMissing,
    ObjectStoreUnavailable,
)
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

    def upload_file(self, bucket: str, key: str, path: Path) -> None:
        self.put(bucket, key, path.read_bytes())

    def list_objects(
        self, bucket: str, prefix: str, start_after: str | None = None
    ) -> Iterator[ObjectEntry]:
        for path in sorted((self.root / bucket).iterdir()):
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


@pytest.fixture(scope="module")
def worlds(database: Database) -> Iterator[Callable[[], World]]:
    with World.factory(database) as begin:
        yield begin


@pytest.fixture
def world(worlds: Callable[[], World]) -> World:
    return worlds()


def test_frames_split_and_merge_what_the_world_holds(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    store = DirectoryStore(tmp_path)
    logs = [*world.born_diskless(2), world.migrated(boundary=10)]
    keys = [world.append(*((log, sized(2, 30)) for log in logs)) for _ in range(6)]
    for key in keys:
        store.put(DISKLESS, key, world.store.objects[DISKLESS, key])
    opening, workers = Opening(world.settings, store), (uuid4(), uuid4())

    outcomes = []
    for worker in workers:
        claimed = world.plane.claim_wal_files(
            worker, max_files=3, max_batches=99, claim_ms=60_000, cutoffs=world.cutoffs()
        )
        frame = to_frame(spark, ClaimedFile, claimed, 2)
        outcomes += from_frame(SplitOutcome, split(frame, worker, opening))
    assert {o.object_key for o in outcomes} == set(keys), "two workers, no file twice"
    assert {o.ended for o in outcomes} == {Ended.DONE}
    assert sum(o.batches for o in outcomes) == 18
    assert [(o.object_reads, o.object_writes) for o in outcomes] == [(1, 3)] * 6

    orders = [order(candidate) for candidate in world.plane.merge_candidates()]
    frame = to_frame(spark, MergeOrder, orders, 4)
    made = from_frame(MergeOutcome, merge(frame, workers[0], opening, claim_ms=60_000))
    assert [(m.ended, m.batches, m.records) for m in made] == [(Ended.DONE, 6, 12)] * 3
    assert [(m.object_reads, m.object_writes) for m in made] == [(6, 6)] * 3
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
    claimed = world.plane.claim_wal_files(
        worker, max_files=3, max_batches=99, claim_ms=60_000, cutoffs=world.cutoffs()
    )
    frame = to_frame(spark, ClaimedFile, claimed, 1)
    away = Impatient(world.settings, DirectoryStore(tmp_path, away=True))
    with pytest.raises(PySparkException) as caught:
        from_frame(SplitOutcome, split(frame, worker, away))
    failure = failure_of(caught.value)
    assert failure is not None
    assert (failure.exit_code, failure.store) == (ExitCode.UNREACHABLE, "S3")
    assert world.scene.sql("SELECT count(*) FROM tiering_failures") == [(0,)]
    assert world.plane.claim_wal_files(
        uuid4(), max_files=3, max_batches=99, claim_ms=60_000, cutoffs=world.cutoffs()
    ), "the claim was given back"


class Impatient(Opening):
    """Does not wait for a store to come back."""

    @contextmanager
    def __call__(self) -> Iterator[Services]:
        from spark.common.retry import retry

        retry.__kwdefaults__["deadline_s"] = 0.1
        with super().__call__() as services:
            yield services
