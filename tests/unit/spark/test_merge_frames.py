"""Split and merge as frames, on executors of their own with a real Postgres; and what is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark.common.failures import failure_of
from spark.tiering import merge_frames as merge
from spark.tiering import split_frames as split
from spark.tiering.merge import order_of
from spark.tiering.services import Services
from spark.tiering.split_file import Ended
from tests.contract.conftest import Database, database, postgres_server
from tests.unit.kafka.segment_batches import sized
from tests.unit.spark.tiering_world import DISKLESS, TIERED, World, order
from tideline.control_plane.jobs import connect_jobs
from tideline.control_plane.tiering_model import MergeCandidate
from tideline.domain.tiering import TieringConfig
from tideline.errors import ExitCode
from tideline.object_store.client import ObjectMissing, ObjectStoreUnavailable
from tideline.settings import JobsSettings

__all__ = ["database", "postgres_server"]


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

    def put(self, bucket: str, key: str, body: bytes) -> None:
        path = self.path(bucket, key)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(body)

    def upload_file(self, bucket: str, key: str, path: Path) -> None:
        self.put(bucket, key, path.read_bytes())

    def delete(self, bucket: str, keys: object) -> None:
        for key in keys:  # type: ignore[attr-defined]
            self.path(bucket, key).unlink(missing_ok=True)


@dataclass(frozen=True)
class Opening:
    """Opens the services on an executor."""

    settings: JobsSettings
    store: DirectoryStore

    @contextmanager
    def __call__(self) -> Iterator[Services]:
        with connect_jobs(self.settings, application_name="frames-test") as plane:
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
        frame = split.claimed_frame(spark, claimed, tasks=2)
        outcomes += list(split.outcomes(split.split(frame, worker, opening)))
    assert {o.object_key for o in outcomes} == set(keys), "two workers, no file twice"
    assert {o.ended for o in outcomes} == {Ended.DONE}
    assert sum(o.batches for o in outcomes) == 18

    orders = [order(candidate) for candidate in world.plane.merge_candidates()]
    frame = merge.orders_frame(spark, orders, tasks=4)
    made = list(merge.outcomes(merge.merge(frame, workers[0], opening, claim_ms=60_000)))
    assert [(m.ended, m.batches, m.records) for m in made] == [(Ended.DONE, 6, 12)] * 3
    rows = world.plane.merged_segments(*world.plane.log_id_range())
    for row in rows:
        assert store.get(TIERED, f"{row.object_key_stem}.log") == world.expected(row.log)
    assert world.rows_left() == 0


def test_a_store_that_is_away_fails_the_job_with_its_name_and_counts_nothing(
    world: World, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log,) = world.born_diskless()
    world.append((log, sized(2, 30)))
    worker = uuid4()
    claimed = world.plane.claim_wal_files(
        worker, max_files=3, max_batches=99, claim_ms=60_000, cutoffs=world.cutoffs()
    )
    frame = split.claimed_frame(spark, claimed, tasks=1)
    away = Impatient(world.settings, DirectoryStore(tmp_path, away=True))
    with pytest.raises(PySparkException) as caught:
        list(split.outcomes(split.split(frame, worker, away)))
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
        from spark.common import retry as insisting

        insisting.insist.__kwdefaults__["deadline_s"] = 0.1
        with super().__call__() as services:
            yield services


CONFIG = TieringConfig(
    local_retention_ms=1, segment_bytes=1_000, segment_ms=60_000, index_interval_bytes=4_096
)
NOW = 1_000_000


def candidate(size: int, *, split_at: int = NOW, requested: bool = False) -> MergeCandidate:
    return MergeCandidate(
        "t", UUID(int=1), 0, 7, 0, 9, size, 10, 2, split_at, 0, requested, ()
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "merged"),
    [
        (candidate(499), False),
        (candidate(500), True),
        (candidate(1, requested=True), True),
        (candidate(1, split_at=NOW - 60_001), True),
        (candidate(0, requested=True), False),
    ],
)
def test_a_partition_waits_until_it_has_enough(found: MergeCandidate, merged: bool) -> None:
    settings = JobsSettings.model_validate(
        {"postgres_dsn": "x", "kafka_bootstrap": "a:1", "tiering_min_segment_bytes": 500}
    )
    made = order_of(found, CONFIG, settings, NOW)
    assert (made is not None) == merged
    if made is not None:
        assert (made.limit_bytes, made.enough_bytes) == (1_000, 500)


def test_a_topic_with_small_segments_does_not_wait_for_more_than_one() -> None:
    settings = JobsSettings.model_validate({"postgres_dsn": "x", "kafka_bootstrap": "a:1"})
    small = replace(CONFIG, segment_bytes=200)
    made = order_of(candidate(200), small, settings, NOW)
    assert made is not None
    assert made.limit_bytes == made.enough_bytes == 200
