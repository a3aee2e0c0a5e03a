"""One run of the collection: counted, held or done, and in its report before anything goes."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from spark.common.entry import Job
from spark.gc import deletion
from spark.gc import job as gc_job
from spark.gc.history import CatalogUnknown, HistoryUnknown, must_know_catalog
from spark.gc.listing import Listing
from spark.gc.merged import MergedLook
from spark.gc.tasks import SEGMENT_NAME, WAL_NAME, DueObject
from tests.contract.spark.test_gc import settings_with
from tests.unit.kafka.fake_cluster import fake_kafka
from tests.unit.kafka.test_topic_policies import configs
from tests.unit.spark.test_gc_reports import Bucket, Postgres, report
from tideline.control_plane.garbage_model import DeadReason, GarbageAmount, GcRunBegun
from tideline.domain import catalog
from tideline.domain.collection import Amount
from tideline.domain.history import WrongHistory

DAY_MS = 86_400_000


@dataclass
class Plane(Postgres):
    """A control plane in which these WAL keys are dead."""

    dead: list[str] = field(default_factory=list)
    begun: GcRunBegun = field(default_factory=lambda: GcRunBegun(7, None, -1, 0, 0))
    judged: dict[str, Any] = field(default_factory=dict)
    ended: tuple[int, int, UUID | None] | None = None
    asked: list[tuple[int, int]] = field(default_factory=list)

    def begin_gc_run(self, run_id: UUID) -> GcRunBegun:
        self.runs.insert(0, (self.begun.run_number, run_id))
        return self.begun

    def measure_garbage(self, run: int, grace_ms: int, orphan_ms: int) -> list[GarbageAmount]:
        self.asked.append((grace_ms, orphan_ms))
        return [GarbageAmount("wal", DeadReason.EMPTY, len(self.dead), 100 * len(self.dead))]

    def tell_segments(self) -> int:
        return 0

    def judge_gc_run(self, run: int, **judged: Any) -> None:
        self.judged = judged

    def claim_dead_files(self, grace_ms: int, limit: int) -> list[str]:
        self.asked.append((grace_ms, limit))
        return self.dead[:limit]

    def end_gc_run(self, run: int, deleted: int, held_run: UUID | None) -> None:
        self.ended = (run, deleted, held_run)


@dataclass
class Scene:
    job: Job
    bucket: Bucket
    deleted: list[str]
    merged: MergedLook = field(default_factory=lambda: MergedLook(0, ()))
    """What the look at merged segments finds."""

    def collect(self, plane: Plane) -> Any:
        return gc_job.collect(self.job, plane, True)  # type: ignore[arg-type]

    def reported(self) -> list[str]:
        parts = [gzip.decompress(body) for body in self.bucket.objects.values()]
        lines = [json.loads(line) for part in parts for line in part.splitlines()]
        return [line["key"] for line in lines if "key" in line]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Ten objects of a hundred bytes were listed; up to two may always go."""
    settings = settings_with(TIDELINE_GC_FREE_OBJECTS="2", TIDELINE_GC_FREE_BYTES="200")
    made = Scene(Job("gc", settings), Bucket(), [])

    def delete_due(job: Job, due: Sequence[DueObject]) -> int:
        assert {one.key for one in due} <= set(made.reported()), "not in the report yet"
        made.deleted += [one.key for one in due]
        return len(due)

    monkeypatch.setattr(gc_job, "ObjectStoreClient", lambda _: made.bucket)
    monkeypatch.setattr(gc_job, "must_own", lambda _: None)
    monkeypatch.setattr(gc_job, "housekeeping", lambda *_: {"batches_pruned": 0})
    listing = Listing(10, Amount(10, 1_000), 0)
    monkeypatch.setattr(gc_job, "look_for_orphans", lambda *_: listing)
    monkeypatch.setattr(deletion, "delete_due", delete_due)

    def look_at_merged(job: Job, plane: Plane) -> MergedLook:
        assert plane.asked == [], "looked at before anything is counted"
        return made.merged

    monkeypatch.setattr(gc_job, "look_at_merged", look_at_merged)
    return made


def test_a_run_within_its_share_deletes_what_it_counted_and_lists_it(scene: Scene) -> None:
    plane = Plane([], dead=[f"wal/{n}" for n in range(7)])
    outcome = scene.collect(plane)
    assert outcome.failed is None
    assert outcome.details["deleted"] == {"wal": 7}
    assert scene.deleted == scene.reported() == plane.dead
    assert plane.ended == (7, 7, None)
    assert plane.asked[1] == (600_000, 7), "no more than was counted"


def test_a_run_beyond_its_share_deletes_nothing_and_says_how_it_is_allowed(scene: Scene) -> None:
    plane = Plane([], dead=[f"wal/{n}" for n in range(8)])
    outcome = scene.collect(plane)
    assert scene.deleted == []
    assert plane.ended is None
    assert plane.judged["held_because"] == outcome.details["held"]
    assert "8 objects of 10 listed, more than 75 %" in (outcome.failed or "")
    assert f"tideline gc allow {scene.job.run_id}" in (outcome.failed or "")


@pytest.mark.parametrize("dead", [7, 8], ids=["done", "held"])
def test_a_run_that_finds_a_merged_segment_cut_says_so_when_it_ends(
    scene: Scene, dead: int
) -> None:
    scene.merged = MergedLook(3, ("orders/0/1: .log has 0 bytes, not 300",))
    outcome = scene.collect(Plane([], dead=[f"wal/{n}" for n in range(dead)]))
    assert ".log has 0 bytes, not 300" in (outcome.failed or "")
    assert ("gc allow" in (outcome.failed or "")) is (dead == 8)
    assert outcome.details["segments_looked_at"] == 3
    assert outcome.details["segments_not_whole"] == list(scene.merged.not_whole)


def test_an_allowed_run_looks_at_the_time_of_the_held_one(scene: Scene) -> None:
    held = UUID(int=9)
    begun = GcRunBegun(8, held, 3_600_000, 8, 800)
    plane = Plane([], dead=[f"wal/{n}" for n in range(8)], begun=begun)
    assert scene.collect(plane).failed is None
    assert plane.asked[0] == (600_000 + 3_600_000, 7 * DAY_MS + 3_600_000)
    assert len(scene.deleted) == 8
    assert plane.ended == (8, 8, held)


def test_a_run_of_another_history_stops_the_next_one_before_anything_is_counted(
    scene: Scene,
) -> None:
    report(scene.bucket, 41).write([])
    plane = Plane([(40, UUID(int=1))], dead=["wal/1"])
    with pytest.raises(HistoryUnknown):
        scene.collect(plane)
    assert (plane.asked, plane.judged, scene.deleted) == ([], {}, [])


@pytest.mark.parametrize("key", ["meta/v2/topic/a/b", "meta/v1/next-thing/a/b"])
def test_records_of_the_catalog_that_are_not_known_stop_a_run_before_anything_is_judged(
    scene: Scene, key: str
) -> None:
    scene.bucket.objects[key] = b""
    plane = Plane([], dead=["wal/1"])
    with pytest.raises(CatalogUnknown, match=r"nothing is judged.*use the version of tideline"):
        scene.collect(plane)
    assert (plane.asked, plane.judged, scene.deleted) == ([], {}, [])


def test_a_catalog_that_is_known_is_left_alone_as_a_whole(scene: Scene) -> None:
    start = catalog.Entry(UUID(int=1), True, catalog.SuffixStart(UUID(int=2), 0, 0, 5))
    key = catalog.object_key("", start)
    must_know_catalog(Bucket({f"x/{key}": catalog.encode(start)}), "b", "x/")
    assert not WAL_NAME.match(key)
    assert not SEGMENT_NAME.search(key)


def test_a_run_of_another_history_that_begins_meanwhile_stops_the_deletion(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*_: object) -> Listing:
        report(scene.bucket, 7, at=scene.job.started_at).write([])
        return Listing(10, Amount(10, 1_000), 0)

    monkeypatch.setattr(gc_job, "look_for_orphans", look)
    with pytest.raises(HistoryUnknown):
        scene.collect(Plane([], dead=["wal/1"]))
    assert scene.deleted == []


def test_a_postgres_that_goes_back_meanwhile_stops_the_deletion(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([None, WrongHistory("it was rolled back")])

    def must_own(_: Job) -> None:
        if (answer := next(answers)) is not None:
            raise answer

    monkeypatch.setattr(gc_job, "must_own", must_own)
    with pytest.raises(WrongHistory):
        scene.collect(Plane([], dead=["wal/1"]))
    assert scene.deleted == []


def test_a_kafka_that_is_newer_than_this_tideline_is_told_after_the_rest(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = Listing(10, Amount(10, 1_000), 0, not_judged="an unknown kind", newer_kafka=True)
    monkeypatch.setattr(gc_job, "look_for_orphans", lambda *_: listing)
    assert scene.collect(Plane([], dead=["wal/1"])).failed == "an unknown kind"
    assert scene.deleted == ["wal/1"]


async def test_how_long_an_idle_producer_is_remembered_is_asked_at_each_run() -> None:
    """Of Kafka: ``producer.id.expiration.ms``, which brokers take while they run."""
    idle: list[int] = []

    def expire_producers(idle_ms: int, step: int) -> int:
        idle.append(idle_ms)
        return 0

    def nothing(*_: object) -> int:
        return 0

    plane: Any = SimpleNamespace(
        expire_producers=expire_producers,
        prune_batches=nothing,
        forget_tracking_changes=nothing,
        forget_uncommitted_keys=nothing,
        mark_dead_objects=nothing,
    )
    async with fake_kafka(1) as kafka:
        host, port = kafka.addresses[1]
        job = Job("gc", settings_with(TIDELINE_KAFKA_BOOTSTRAP=f"{host}:{port}"))
        for value in ("86400000", "3600000"):
            kafka.nodes[0].answers["DescribeConfigsRequest"] = configs(
                {"producer.id.expiration.ms": value}, {}
            )
            await asyncio.to_thread(gc_job.housekeeping, job, plane)
    assert idle == [86_400_000, 3_600_000]
