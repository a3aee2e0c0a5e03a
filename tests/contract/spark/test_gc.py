"""Garbage collection: what is an orphan, and that a kill anywhere leaves nothing wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest

from spark.common.entry import Job
from spark.common.metadata_records import MetadataRecord, decoded, record_of
from spark.common.metadata_topic import Extent
from spark.common.rows import to_frame
from spark.common.snapshots import Identity
from spark.gc import frames as gc
from spark.gc.job import gc as job_of_gc
from spark.gc.listing import what_was_lost
from spark.gc.tasks import SEGMENT_NAME, WAL_NAME, Collector, Holds, Sweep, on_disk
from tests.support.waiting import until
from tideline.control_plane.garbage_model import ListedObject
from tideline.control_plane.tiering_model import Bucket
from tideline.domain.ids import TopicIdPartition, topic_id_to_base64
from tideline.domain.remote_log import EpochStart, RemoteSegment, SegmentState, SegmentUpdate
from tideline.errors import UsageError
from tideline.object_store.client import ObjectEntry
from tideline.settings import JobsSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG = TopicIdPartition(UUID(int=5), 2)
STARTED, FINISHED, DELETING, DELETED = SegmentState


def records(spark: SparkSession, *histories: tuple[int, Sequence[SegmentState]]) -> DataFrame:
    """The metadata topic after these histories of segments, by number."""
    rows: list[MetadataRecord] = []
    for number, states in histories:
        for nth, state in enumerate(states):
            segment_id = UUID(int=number)
            event = (
                RemoteSegment(LOG, "t", segment_id, 0, 9, 10, (EpochStart(0, 0),), state)
                if nth == 0
                else SegmentUpdate(LOG, segment_id, state)
            )
            rows.append(record_of(event, 0, len(rows)))
    return to_frame(spark, MetadataRecord, rows, 2)


def segment(key: str, partition: int, number: int) -> gc.SegmentObject:
    return gc.SegmentObject(key, LOG.topic_id, partition, UUID(int=number), 1, "e", 0)


def test_only_what_no_broker_knows_in_any_state_is_an_orphan(spark: SparkSession) -> None:
    events = records(
        spark,
        (1, [STARTED]),
        (2, [STARTED, FINISHED]),
        (3, [STARTED, FINISHED, DELETING]),
        (4, [STARTED, FINISHED, DELETING, DELETED]),
        (5, [STARTED, FINISHED, DELETING, DELETED, DELETED]),
    )
    objects = [segment(f"k{n}", LOG.partition, n) for n in range(1, 7)]
    objects.append(segment("elsewhere", 3, 2))
    listed = to_frame(spark, gc.SegmentObject, objects, 2)
    known = gc.known_segments(events)
    assert gc.is_readable(known)
    found = {row.object_key for row in gc.orphans(listed, known).collect()}
    assert found == {"k4", "k5", "k6", "elsewhere"}


@pytest.mark.parametrize(
    "value",
    [b"\x07", b"\x01\x03\x00new", b"\x01\x00\x01" + bytes(60)],
    ids=["another frame", "an unknown kind of record", "a segment of another version"],
)
def test_a_record_that_is_not_understood_stops_the_judgement(
    spark: SparkSession, value: bytes
) -> None:
    broken = decoded(0, 0, value)
    assert broken is not None
    events = to_frame(spark, MetadataRecord, [broken], 1)
    assert not gc.is_readable(gc.known_segments(events))


@pytest.mark.parametrize(
    ("key", "looked_at"),
    [
        ("wal/" + "a" * 32, True),
        ("wal/" + "a" * 31, False),
        ("wal/" + "a" * 32 + ".bak", False),
        ("reports/coverage/2026-11-21/x.parquet", False),
        ("runs/gc/11111111-2222-3333-4444-555555555555.json", False),
        ("p/t-AAAAAAAAAAAAAAAAAAAAAQ/0/00000000000000000042-AAAAAAAAAAAAAAAAAAAAAQ.log", True),
        ("t-AAAAAAAAAAAAAAAAAAAAAQ/0/00000000000000000042-AAAAAAAAAAAAAAAAAAAAAQ.indexes", True),
        ("t-AAAAAAAAAAAAAAAAAAAAAQ/0/00000000000000000042-AAAAAAAAAAAAAAAAAAAAAQ.log.1", False),
        ("t-AAAAAAAAAAAAAAAAAAAAAQ/0/readme.log", False),
    ],
)
def test_nothing_is_looked_at_but_names_that_tideline_and_kafka_give(
    key: str, looked_at: bool
) -> None:
    names = WAL_NAME.match(key) or SEGMENT_NAME.search(key)
    assert bool(names) is looked_at


class Killed(BaseException):
    """The process dies here."""


@dataclass
class World:
    """A bucket, and what Postgres says may go. ``dies_after`` calls the process is killed."""

    objects: set[str]
    held: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    reported: dict[str, int] = field(default_factory=dict)
    log: list[tuple[str, list[str]]] = field(default_factory=list)
    dies_after: int | None = None

    def _tick(self, what: str, keys: Iterable[str]) -> list[str]:
        if self.dies_after is not None:
            self.dies_after -= 1
            if self.dies_after < 0:
                raise Killed
        self.log.append((what, list(keys)))
        return self.log[-1][1]

    def list_objects(
        self, bucket: str, prefix: str, start_after: str | None = None
    ) -> Iterator[ObjectEntry]:
        for key in sorted(k for k in self.objects if k.startswith(prefix)):
            yield ObjectEntry(key, 1, datetime.now(UTC))

    def delete(self, bucket: str, keys: Iterable[str]) -> None:
        self.objects -= set(self._tick("delete", keys))

    def forget_dead_files(self, keys: Sequence[str]) -> int:
        return self.forget_dead_objects(keys)

    def forget_dead_objects(self, keys: Sequence[str]) -> int:
        gone = set(self._tick("forget", keys)) & self.held
        self.held -= gone
        return len(gone)

    def forget_orphans(self, bucket: Bucket, keys: Sequence[str]) -> int:
        return self.forget_dead_objects(keys)

    def unknown_objects(self, bucket: Bucket, keys: Sequence[str]) -> dict[str, int | None]:
        return {k: self.reported.get(k) for k in keys if k not in self.known}

    def report_orphans(
        self, run_number: int, bucket: Bucket, listed: Sequence[ListedObject]
    ) -> list[str]:
        unknown = [one.object_key for one in listed if one.object_key not in self.known]
        self.reported |= dict.fromkeys(unknown, run_number)
        return unknown

    def collector(self, run_number: int | None = 1) -> Collector:
        return Collector(self, self, "diskless", "tiered", run_number)


@pytest.mark.parametrize("holds", list(Holds))
def test_what_may_go_is_forgotten_only_when_its_object_is_gone(holds: Holds) -> None:
    for death in range(6):
        keys = {f"k{n}" for n in range(2_500)}
        world = World(objects=set(keys), held=set(keys), dies_after=death)
        with pytest.raises(Killed):
            world.collector().delete(holds, Bucket.DISKLESS, sorted(keys))
        assert world.objects <= world.held
        world.dies_after = None
        world.collector().delete(holds, Bucket.DISKLESS, sorted(world.held))
        assert (world.objects, world.held) == (set(), set())


def test_the_log_of_a_segment_goes_first() -> None:
    keys = ["a.index", "a.log", "a.snapshot", "b.index", "b.log"]
    world = World(objects=set(keys), held=set(keys))
    assert world.collector().delete(Holds.MARKS, Bucket.TIERED, keys) == 5
    assert world.log[0] == ("delete", ["a.log", "b.log", "a.index", "a.snapshot", "b.index"])


WAL = [f"wal/{n:032x}" for n in range(3)]


def test_a_listing_reports_what_nobody_knows_and_deletes_nothing() -> None:
    world = World(objects={*WAL, "wal/not-ours"}, known={WAL[0]})
    assert world.collector(7).list_and_sweep("wal/", WAL_NAME) == Sweep(3, 3, 2)
    assert world.reported == {WAL[1]: 7, WAL[2]: 7}
    assert world.log == []


def test_a_dry_run_reports_nothing() -> None:
    world = World(objects=set(WAL))
    assert world.collector(None).list_and_sweep("wal/", WAL_NAME) == Sweep(3, 3, 3)
    assert (world.reported, world.log) == ({}, [])


def settings_with(**values: str) -> JobsSettings:
    return JobsSettings.of(
        {
            "TIDELINE_POSTGRES_DSN": "postgresql://127.0.0.1:9/none",
            "TIDELINE_KAFKA_BOOTSTRAP": "127.0.0.1:9",
            "TIDELINE_S3_ENDPOINT": "http://127.0.0.1:9",
            **values,
        }
    )


def test_a_grace_in_which_a_gateway_may_still_use_a_key_is_refused() -> None:
    settings = settings_with(TIDELINE_GC_GRACE_MS="60000")
    with pytest.raises(UsageError, match=r"TIDELINE_GC_GRACE_MS is 60000.*set 60001 at least"):
        job_of_gc(Job("gc", settings))


def test_a_grace_of_orphans_in_which_nobody_mends_a_restore_is_refused() -> None:
    settings = settings_with(TIDELINE_GC_ORPHAN_GRACE_MS="3600000")
    with pytest.raises(UsageError, match=r"TIDELINE_GC_ORPHAN_GRACE_MS is 3600000.*86400000"):
        job_of_gc(Job("gc", settings))


def test_metadata_that_lacks_what_was_read_before_judges_no_segment() -> None:
    """What it told of older segments is gone, and they may be the only copy of their records."""
    topic = UUID(int=7)
    now = Identity("cluster", topic, 2)
    name, prefix = topic_id_to_base64(topic), now.prefix("p/")
    extents = [Extent(0, 0, 40), Extent(1, 0, 0)]
    assert what_was_lost({}, now, extents) == ""
    assert what_was_lost({name: (prefix, {0: 40})}, now, extents) == ""
    cut = what_was_lost({name: (prefix, {0: 41})}, now, extents)
    assert "-0 ends at 40, and was read up to 41" in cut
    assert prefix in cut
    assert "-9 ends at 0" in what_was_lost({name: (prefix, {9: 1})}, now, extents)
    former = what_was_lost({"former": ("p/former/", {0: 5})}, now, extents)
    assert "created again (it was topic former)" in former
    assert "delete p/former/" in former


def test_what_a_run_has_listed_is_kept_on_disks_and_as_it_was(spark: SparkSession) -> None:
    """A row for each object of a fleet: no heap has to hold them."""
    store = spark.sparkContext._jsc.sc()
    before = {info.id() for info in store.getRDDStorageInfo()}
    asked = spark.sparkContext.accumulator(0)

    def listing(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            asked.add(batch.num_rows)
            yield batch

    kept = on_disk(spark.range(1_000, numPartitions=2).mapInArrow(listing, "id long"))
    assert asked.value == 1_000, "it is listed at once"

    def whole() -> Any:
        """Spark's status store hears of each partition by an event, some time after the task."""
        (info,) = [one for one in store.getRDDStorageInfo() if one.id() not in before]
        return info if info.numCachedPartitions() == 2 else None

    info = until("Spark to tell of both partitions", whole)
    assert info.memSize() == 0
    assert info.diskSize() > 0
    assert kept.count() == kept.join(kept, "id", "left_semi").count() == 1_000
    assert asked.value == 1_000, "and not again"


def test_what_brokers_know_is_not_sent_to_every_executor_whole(spark: SparkSession) -> None:
    """Millions of keys have to fit into each of them then. To Spark few rows went into both."""
    known = on_disk(gc.known_segments(records(spark, (1, [STARTED]))))
    listed = on_disk(to_frame(spark, gc.SegmentObject, [segment("k", LOG.partition, 2)], 1))
    found = gc.orphans(listed, known)
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert "SortMergeJoin" in plan
    assert "Broadcast" not in plan
    assert [row.object_key for row in found.collect()] == ["k"]
