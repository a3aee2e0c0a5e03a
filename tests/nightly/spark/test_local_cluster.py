"""On executors that are processes and die: the same answers, the right bytes, the right counts."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import SecretStr
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from spark.common.rows import from_frame, map_rows, to_frame
from spark.tiering.frames import Share, merge
from spark.tiering.merge_partition import MergeOrder
from spark.tiering.outcomes import Ended, MergeOutcome
from spark.tiering.services import Services
from spark.tiering.split_files import split
from spark.tiering.whole_objects import local_directory
from tests.contract.conftest import Database
from tests.contract.spark import test_coverage_frames as coverage
from tests.contract.spark import test_retention as retention
from tests.contract.tiering_world import DISKLESS, TIERED, World, order
from tests.nightly.spark.directory_store import DirectoryStore, Opening
from tests.on_local_cluster import attempt, kill_executor_once, on_local_cluster
from tests.support.waiting import for_seconds
from tests.unit.kafka.segment_batches import sized
from tideline.kafka.security import KafkaSecurity
from tideline.settings import JobsSettings

SECRET = "of-nobody-else"
SLOW_S = 1.5
CLAIM_MS = 3_000
"""A dead attempt's claim is waited for."""


@dataclass(frozen=True)
class Row:
    number: int


@dataclass(frozen=True)
class Seen:
    """What a task found on its executor."""

    number: int
    attempt: int
    place: str = ""
    secret: str = ""


@dataclass(frozen=True)
class Dying(Opening):
    """Opens the services; the first segment's executor dies when all but its last write is done."""

    marker: Path

    @contextmanager
    def __call__(self) -> Iterator[Services]:
        with super().__call__() as services:
            finish = services.plane.finish_merge

            def finish_merge(*arguments: Any, **named: Any) -> Any:
                kill_executor_once(self.marker)
                return finish(*arguments, **named)

            services.plane.finish_merge = finish_merge  # type: ignore[method-assign]
            yield services


def fleet(seed: int) -> coverage.World:
    """Partitions with whole and broken prefixes."""
    rng, world = random.Random(seed), coverage.World()
    for number in range(60):
        log = world.log(str(number), 40)
        for first in range(0, 40, 10):
            if rng.random() < 0.93:
                listed = None if rng.random() < 0.05 else 100
                state = rng.choice([coverage.FINISHED] * 9 + [coverage.STARTED])
                world.segment(log, first, first + 9, state=state, listed=listed)
    return world


def answers(spark: SparkSession) -> dict[str, Any]:
    """Of coverage and of retention, as they can be compared."""
    rng = random.Random(3)
    logs = [retention.random_log(rng, number) for number in range(80)]
    return {
        "coverage": fleet(3).verdicts(spark),
        "retention": {n: row.asDict(True) for n, row in retention.decided(spark, logs).items()},
    }


@dataclass(frozen=True)
class Work:
    """All that is done on the executors, in one session."""

    orders: list[MergeOrder]
    opening: Dying
    worker: UUID
    settings: JobsSettings
    started: Path
    """A file for each attempt of the slow task."""

    def __call__(self, spark: SparkSession) -> dict[str, Any]:
        frame = to_frame(spark, Share, [Share((one,)) for one in self.orders], 2)
        merged = merge(frame, self.worker, self.opening, claim_ms=CLAIM_MS)
        return {
            "conf": dict(spark.sparkContext.getConf().getAll()),
            "merged": from_frame(MergeOutcome, merged),
            "slow": self.tasks(spark, self.slow, 4),
            "seen": self.tasks(spark, self.look, 2),
            **answers(spark),
        }

    def tasks(self, spark: SparkSession, work: Any, count: int) -> list[Seen]:
        rows = to_frame(spark, Row, [Row(n) for n in range(count)], count)
        return sorted(from_frame(Seen, map_rows(rows, Row, Seen, work)), key=lambda s: s.number)

    def slow(self, rows: Iterator[Row]) -> Iterator[Seen]:
        for row in rows:
            (self.started / f"{row.number}-{attempt()}-{uuid4()}").touch()
            if row.number == 0 and attempt() == 0:
                for_seconds("a task that is slow", SLOW_S)
            yield Seen(row.number, attempt())

    def look(self, rows: Iterator[Row]) -> Iterator[Seen]:
        security = KafkaSecurity.of(self.settings)
        secret = self.settings.postgres_dsn.get_secret_value() + security.password
        with local_directory() as directory:
            for row in rows:
                yield Seen(row.number, attempt(), str(directory), secret)


@dataclass
class Scene:
    """What was prepared, and what came of it."""

    world: World
    store: DirectoryStore
    directory: Path
    worker: UUID
    found: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def scene(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("local-cluster")
    store, worker = DirectoryStore(directory / "store"), uuid4()
    for bucket in (DISKLESS, TIERED):
        (store.root / bucket).mkdir(parents=True)
    (directory / "started").mkdir()
    with World.factory(database) as begin:
        world = begin()
        logs = world.born_diskless(2)
        for _ in range(3):
            key = world.append(*((log, sized(2, 30)) for log in logs))
            store.put(DISKLESS, key, world.store.objects[DISKLESS, key])
        opening = Opening(world.settings, store)
        with opening() as services:
            files = services.plane.claim_wal_files(
                worker, max_files=9, max_batches=99, claim_ms=60_000, cutoffs=world.cutoffs()
            )
            ended = [one.ended for one in split(services, worker, files, time.monotonic())]
            assert ended == [Ended.DONE] * 3
        secrets = directory / "secrets.env"
        secrets.write_text(
            f"TIDELINE_POSTGRES_DSN=host={SECRET}\nTIDELINE_KAFKA_SASL_PASSWORD={SECRET}\n"
        )
        work = Work(
            [order(candidate) for candidate in world.plane.merge_candidates()],
            Dying(world.settings, store, directory / "died"),
            worker,
            with_secrets_of(secrets),
            directory / "started",
        )
        assert SECRET.encode() not in cloudpickle.dumps(work)
        scene = Scene(world, store, directory, worker)
        scene.found = on_local_cluster(work, directory)
        yield scene


def with_secrets_of(file: Path) -> JobsSettings:
    return JobsSettings.model_validate(
        {
            "postgres_dsn": SecretStr(f"host={SECRET}"),
            "kafka_bootstrap": "127.0.0.1:1",
            "kafka_security_protocol": "SASL_PLAINTEXT",
            "kafka_sasl_mechanism": "PLAIN",
            "kafka_sasl_username": "jobs",
            "kafka_sasl_password": SecretStr(SECRET),
            "jobs_executors_config": str(file),
        }
    )


def test_coverage_and_retention_answer_what_they_answer_in_one_process(
    scene: Scene, spark: SparkSession
) -> None:
    wanted = answers(spark)
    assert len({verdict.complete for verdict in wanted["coverage"].values()}) == 2
    assert {name: scene.found[name] for name in wanted} == wanted


def test_a_merge_whose_executor_dies_before_its_last_write_is_made_once_and_counted_once(
    scene: Scene,
) -> None:
    made: list[MergeOutcome] = scene.found["merged"]
    done = [m for m in made if m.ended is Ended.DONE]
    assert {(m.batches, m.records) for m in done} == {(3, 6)}
    work = scene.world.plane.take_tiering_work(scene.worker)
    assert (work["segments.created"], work["batches.merged"]) == (2, 6), "by the transactions"
    assert len(done) <= 2, "what was made beside it, as its executor died, nobody told"
    rows = list(scene.world.plane.merged_segments(*scene.world.plane.log_id_range()))
    finished = [row for row in rows if row.state == "COPY_SEGMENT_FINISHED"]
    assert len(finished) == 2
    for row in finished:
        body = scene.store.get(TIERED, f"{row.object_key_stem}.log")
        assert body == scene.world.expected(row.log)
    assert scene.world.rows_left() == 0
    begun = {path.name for path in (scene.store.root / TIERED).iterdir()}
    assert (scene.directory / "died").exists()
    assert len(begun) in (3 * 6, 4 * 6), "those beside each other died after they had put files"


def test_a_task_that_is_only_slow_is_not_begun_a_second_time(scene: Scene) -> None:
    conf = scene.found["conf"]
    assert conf["spark.speculation"] == "false", "it was asked for, eagerly"
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert [(one.number, one.attempt) for one in scene.found["slow"]] == [(n, 0) for n in range(4)]
    assert len(list((scene.directory / "started").iterdir())) == 4


def test_large_files_lie_on_sparks_own_disks(scene: Scene) -> None:
    places = {Path(one.place) for one in scene.found["seen"]}
    assert all(place.is_relative_to(scene.directory / "local") for place in places), places
    assert not any(place.name.startswith("blockmgr-") for place in places)


def test_secrets_that_executors_have_themselves_do_not_travel(scene: Scene) -> None:
    assert {one.secret for one in scene.found["seen"]} == {f"host={SECRET}{SECRET}"}
