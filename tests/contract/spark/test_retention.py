"""Retention over frames decides what the domain's rule decides, log by log."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from spark.common.metadata_records import MetadataRecord, record_of
from spark.common.rows import from_frame, spark_schema, to_batch, to_frame
from spark.retention import frames as retention
from spark.retention.frames import MERGED_REGION, LimitedLog
from tests.retention_rule import LeadingRun, Region, RetainedLog, Unit, plan, prefix_units
from tideline.domain.ids import TopicIdPartition
from tideline.domain.prefix import past_gap
from tideline.domain.remote_log import (
    EpochStart,
    PartitionDelete,
    PartitionDeleteState,
    RemoteLogEvent,
    RemoteLogIndex,
    RemoteSegment,
    SegmentState,
    SegmentUpdate,
)
from tideline.domain.retention import Policy

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row, SparkSession

NOW = 1_000
TOPIC = UUID(int=7)


@dataclass
class Log:
    """One log with everything that retention looks at."""

    bounds: RetainedLog
    policy: Policy
    segments: list[RemoteSegment] = field(default_factory=list)
    lineage: list[EpochStart] = field(default_factory=list)
    merged: list[Unit] = field(default_factory=list)
    wal: list[Unit] = field(default_factory=list)

    def units(self) -> list[Unit]:
        prefix = prefix_units(self.bounds, self.segments, self.lineage)
        return [*prefix, *self.merged, *self.wal]


def random_log(rng: random.Random, number: int) -> Log:
    """Contiguous segments with now and then a hole, an overlap or a foreign epoch."""
    boundary = rng.choice([-1, 0, 40])
    lineage = [EpochStart(2, 0), EpochStart(3, rng.randrange(1, 30))]
    log = TopicIdPartition(TOPIC, number)
    segments, offset = [], 0
    while boundary != 0 and offset < 40 and rng.random() < 0.9:
        end = offset + rng.randrange(12)
        epochs = [EpochStart(2, offset)]
        if offset >= lineage[1].start_offset:
            epochs = [EpochStart(3, offset)]
        elif end >= lineage[1].start_offset:
            epochs.append(lineage[1])
        if rng.random() < 0.1:
            epochs = [EpochStart(rng.choice([1, 2, 4]), offset)]
        segments.append(
            RemoteSegment(
                log,
                "t",
                UUID(int=len(segments) + 1),
                offset,
                end,
                rng.randrange(30),
                tuple(epochs),
                SegmentState.COPY_SEGMENT_FINISHED,
                max_timestamp=rng.randrange(-1, 100),
            )
        )
        offset = end + 1 + rng.choice([0, 0, 0, 0, 3, -2])
    merged: list[Unit] = []
    wal: list[Unit] = []
    offset = max(boundary, 0)
    if boundary >= 0:
        for region, found in ((Region.MERGED, merged), (Region.WAL, wal)):
            for _ in range(rng.randrange(4)):
                end = offset + rng.randrange(8)
                at = rng.randrange(100)
                found.append(Unit(region, offset, end, rng.randrange(30), at))
                offset = end + 1
    start = rng.choice([0, 0, rng.randrange(offset + 1)])
    gap = rng.choice([-1, -1, rng.randrange(40)]) if boundary == 40 else -1
    prefix_start = start if boundary < 0 else min(start, boundary + 2)
    bounds = RetainedLog(
        prefix_start=past_gap(prefix_start, gap, boundary),
        accepted_gap_from=gap,
        boundary=boundary,
        suffix_start=-1 if boundary < 0 else max(start, boundary),
        high_watermark=-1 if boundary < 0 else offset,
    )
    ages = [-1, NOW - rng.randrange(100), NOW - rng.randrange(100), NOW + rng.randrange(1, 100)]
    age, size = rng.choice(ages), rng.choice([-1, rng.randrange(120)])
    return Log(bounds, Policy(age, size), segments, lineage, merged, wal)


def empty_log(boundary: int) -> Log:
    """A log without any unit, under limits that allow nothing."""
    return Log(RetainedLog(max(boundary, 0), boundary, boundary, boundary), Policy(0, 0))


def limited(number: int, log: Log) -> LimitedLog:
    return LimitedLog(
        number, "t", TOPIC, number, "HYBRID", log.bounds.prefix_start, log.bounds.boundary,
        log.bounds.prefix_end, log.bounds.suffix_start, log.bounds.high_watermark,
        log.policy.retention_ms,
        log.policy.retention_bytes, tuple(e.epoch for e in log.lineage),
        tuple(e.start_offset for e in log.lineage),
    )  # fmt: skip


def decided(spark: SparkSession, logs: Sequence[Log]) -> dict[int, Row]:
    """The frames' answer by log."""
    rows = [limited(n, log) for n, log in enumerate(logs)]
    segments = [record_of(s, 0, n) for n, log in enumerate(logs) for s in log.segments]
    merged = [
        retention.Unit(
            n, MERGED_REGION, u.start_offset, u.end_offset, u.size_bytes, u.max_timestamp
        )
        for n, log in enumerate(logs)
        for u in log.merged
    ]
    wal = [
        (n, sum(u.size_bytes for u in log.wal if u.end_offset >= log.bounds.log_start))
        for n, log in enumerate(logs)
    ]
    frame = to_frame(spark, LimitedLog, rows, 2)
    units = retention.prefix_units(
        frame, to_frame(spark, MetadataRecord, segments, 2), NOW
    ).unionByName(to_frame(spark, retention.Unit, merged, 2))
    reached = retention.segments_to_remove(
        frame, units, spark.createDataFrame(wal, "log_id long, wal_bytes long"), NOW
    ).collect()
    cuts = []
    for row in reached:
        if not row.reaches_wal:
            continue
        run = LeadingRun(row.cutoff, row.excess, row.before_offset)
        for unit in logs[row.log_id].wal:
            if unit.end_offset >= row.log_start and not run.take(unit):
                break
        cuts.append((row.log_id, run.before_offset, run.by_time, run.by_size, run.removed_bytes))
    cut_frame = spark.createDataFrame(
        cuts,
        "log_id long, cut_before long, cut_by_time long, cut_by_size long, cut_bytes long",
    )
    again = spark.createDataFrame(reached)
    planned = retention.with_targets(retention.with_wal_cut(again, cut_frame)).collect()
    return {row.log_id: row for row in planned}


def test_the_frames_decide_what_the_rule_decides(spark: SparkSession) -> None:
    rng = random.Random(20_261_121)
    logs = [empty_log(-1), empty_log(0), empty_log(40)]
    logs += [random_log(rng, n) for n in range(3, 600)]
    answers = decided(spark, logs)
    assert all(answers[n].prefix_before is answers[n].suffix_before is None for n in range(3))
    seen = {"prefix": 0, "suffix": 0, "blocked": 0, "nothing": 0}
    for n, log in enumerate(logs):
        wanted = plan(log.bounds, log.units(), log.policy, NOW)
        row = answers[n]
        found = (
            row.before_offset, row.prefix_before, row.suffix_before, row.by_time, row.by_size,
            row.removed_bytes, row.blocked,
        )  # fmt: skip
        assert found == (
            wanted.before_offset, wanted.prefix_before, wanted.suffix_before, wanted.by_time,
            wanted.by_size, wanted.removed_bytes, wanted.held_back is not None,
        ), log  # fmt: skip
        seen["prefix"] += wanted.prefix_before is not None
        seen["suffix"] += wanted.suffix_before is not None
        seen["blocked"] += wanted.held_back is not None
        seen["nothing"] += wanted.by_time + wanted.by_size == 0
    assert min(seen.values()) > 20, seen


def random_events(rng: random.Random, partitions: int) -> list[RemoteLogEvent]:
    """Histories of segments, now and then out of order or of unknown segments."""
    events: list[RemoteLogEvent] = []
    for number in range(partitions):
        log = TopicIdPartition(TOPIC, number)
        told: list[RemoteLogEvent] = []
        for start in range(0, rng.randrange(40), 10):
            segment = RemoteSegment(
                log, "t", UUID(int=number * 1000 + start), start, start + 9, rng.randrange(99),
                (EpochStart(1, start),), SegmentState.COPY_SEGMENT_STARTED, max_timestamp=start,
            )  # fmt: skip
            states = sorted(rng.sample(list(SegmentState)[1:], rng.randrange(4)))
            updates = [SegmentUpdate(log, segment.segment_id, state) for state in states]
            if rng.random() < 0.2:
                rng.shuffle(updates)
            history: list[RemoteLogEvent] = [segment, *updates]
            if rng.random() < 0.1:
                history = [*history[1:], history[0]]
            told += history
        if rng.random() < 0.2:
            deleted = PartitionDelete(log, PartitionDeleteState.DELETE_PARTITION_FINISHED)
            told.insert(rng.randrange(len(told) + 1), deleted)
        events += told
    return events


def test_the_frames_fold_the_metadata_as_the_index_does(spark: SparkSession) -> None:
    rng = random.Random(7)
    events = random_events(rng, 200)
    index = RemoteLogIndex()
    for event in events:
        index.apply(event)
    rows = [record_of(event, 0, position) for position, event in enumerate(events)]
    # With a limit by size every unit is told.
    whole = Log(RetainedLog(0, -1, -1, -1), Policy(-1, 0), lineage=[EpochStart(1, 0)])
    logs = [limited(number, whole) for number in range(200)]
    units = retention.prefix_units(
        to_frame(spark, LimitedLog, logs, 2), to_frame(spark, MetadataRecord, rows, 2), NOW
    )
    found = sorted(
        (u.log_id, u.start_offset, u.end_offset, u.size_bytes, u.max_timestamp)
        for u in from_frame(retention.Unit, units)
    )
    wanted = sorted(
        (s.log.partition, s.start_offset, s.end_offset, s.size_bytes, s.max_timestamp)
        for s in index.topic_segments(TOPIC)
        if s.state is SegmentState.COPY_SEGMENT_FINISHED
    )
    assert found == wanted
    assert len(wanted) > 20


def test_of_a_log_that_only_age_limits_nothing_is_told_behind_what_stays(
    spark: SparkSession,
) -> None:
    ages = [10, 20, 90, 30, 95]
    segments = [
        RemoteSegment(
            TopicIdPartition(TOPIC, number), "t", UUID(int=n + 1), 10 * n, 10 * n + 9, 5,
            (EpochStart(2, 0),), SegmentState.COPY_SEGMENT_FINISHED, max_timestamp=age,
        )
        for number in range(3)
        for n, age in enumerate(ages)
    ]  # fmt: skip
    bounds, lineage = RetainedLog(0, -1, -1, -1), [EpochStart(2, 0)]
    policies = [Policy(NOW - 50, -1), Policy(NOW - 50, 1_000), Policy(NOW - 100, -1)]
    logs = [limited(n, Log(bounds, policy, lineage=lineage)) for n, policy in enumerate(policies)]
    rows = [record_of(segment, 0, n) for n, segment in enumerate(segments)]
    units = retention.prefix_units(
        to_frame(spark, LimitedLog, logs, 2), to_frame(spark, MetadataRecord, rows, 2), NOW
    )
    told: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for unit in from_frame(retention.Unit, units):
        told[unit.log_id].append(unit.start_offset)
    assert {n: sorted(starts) for n, starts in told.items()} == {
        0: [0, 10, 20],
        1: [0, 10, 20, 30, 40],
        2: [0, 10, 20, 30, 40],
    }


def test_units_are_not_sent_to_every_executor_whole(spark: SparkSession) -> None:
    """Millions of them would have to fit into each. To Spark few rows went into them."""
    logs = [limited(n, Log(RetainedLog(0, -1, -1, -1), Policy(-1, 0))) for n in range(50)]
    made = spark.range(1, numPartitions=1).mapInArrow(one_unit, spark_schema(retention.Unit))
    found = retention.segments_to_remove(
        to_frame(spark, LimitedLog, logs, 1).localCheckpoint(),
        made.localCheckpoint(),
        spark.createDataFrame([], "log_id long, wal_bytes long"),
        NOW,
    )
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert "Inner, BuildRight" in plan, plan
    assert "Inner, BuildLeft" not in plan
    (removed,) = found.where("by_size > 0").collect()
    assert (removed.log_id, removed.before_offset, removed.removed_bytes) == (3, 10, 5)


def one_unit(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield to_batch(retention.Unit, [retention.Unit(3, MERGED_REGION, 0, 9, 5, 7)])
