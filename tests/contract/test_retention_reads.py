"""What retention and garbage collection read: the SQL says what the domain's rule says."""

from __future__ import annotations

import random

from tests.contract.scenes import batch
from tests.contract.tiering import Tiered
from tests.retention_rule import LeadingRun, Region, Unit
from tideline.control_plane.garbage_model import GarbageRow, ListedObject
from tideline.control_plane.tiering_model import Bucket, CutRequest
from tideline.domain.ids import TopicIdPartition


def log_id(tiered: Tiered, log: TopicIdPartition) -> int:
    ((found,),) = tiered.scene.sql(
        "SELECT log_id FROM logs WHERE topic_id = %s AND partition = %s",
        log.topic_id,
        log.partition,
    )
    return int(str(found))


def now_ms(tiered: Tiered) -> int:
    """Postgres's clock."""
    ((now,),) = tiered.scene.sql("SELECT tideline.epoch_ms(clock_timestamp())")
    return int(str(now))


async def test_the_wal_region_is_cut_where_the_rule_cuts_it(tiered: Tiered) -> None:
    rng = random.Random(11)
    logs: dict[int, list[Unit]] = {}
    for _ in range(12):
        _, (log,) = await tiered.scene.diskless_topic()
        sizes = [(rng.randrange(1, 4), rng.randrange(100), rng.randrange(1, 60)) for _ in range(8)]
        await tiered.scene.commit(
            tiered.gateway,
            *[batch(log, records=n, timestamp=at, size=size) for n, at, size in sizes],
        )
        units, offset = [], 0
        for records, at, size in sizes:
            units.append(Unit(Region.WAL, offset, offset + records - 1, size, at))
            offset += records
        logs[log_id(tiered, log)] = units
    requests = [
        CutRequest(number, start, rng.choice([-1, rng.randrange(100)]), rng.randrange(200))
        for number, units in logs.items()
        for start in (0, units[3].start_offset, units[3].end_offset)
    ]
    for request in requests:
        (cut,) = tiered.plane.retention_wal_cut([request])
        run = LeadingRun(request.cutoff_ms, request.excess_bytes, request.from_offset)
        for unit in logs[request.log_id]:
            if unit.end_offset >= request.from_offset and not run.take(unit):
                break
        wanted = (run.before_offset, run.by_time, run.by_size, run.removed_bytes)
        assert (cut.before_offset, cut.by_time, cut.by_size, cut.removed_bytes) == wanted, request


async def test_records_without_a_timestamp_are_as_old_as_their_commit_and_then_as_their_segment(
    tiered: Tiered,
) -> None:
    """As Kafka takes the time at which a segment without timestamps was last written."""
    _, (log,) = await tiered.scene.diskless_topic()
    before = now_ms(tiered)
    await tiered.commit(log, batches=2, timestamp=-1)
    after, number = now_ms(tiered), log_id(tiered, log)

    def cut(cutoff_ms: int) -> int:
        (found,) = tiered.plane.retention_wal_cut([CutRequest(number, 0, cutoff_ms, 0)])
        return found.by_time

    assert [cut(-1), cut(before - 1), cut(after)] == [0, 0, 2]
    tiered.worker.split(log.topic_id)
    tiered.worker.merge(log, max_batches=2)
    tiered.scene.sql("UPDATE merged_segments SET max_timestamp = -1 WHERE log_id = %s", number)
    (unit,) = tiered.plane.retention_suffix([number], [False])
    assert after <= unit.max_timestamp <= now_ms(tiered)


async def test_a_cut_looks_at_a_bounded_number_of_batches(tiered: Tiered) -> None:
    first, second = [await tiered.diskless(files=2, batches=2) for _ in range(2)]
    ids = [log_id(tiered, first), log_id(tiered, second)]
    everything = [CutRequest(n, 0, -1, 10_000) for n in ids]
    (cut,) = tiered.plane.retention_wal_cut(everything, limit=3)
    assert (cut.log_id, cut.before_offset, cut.removed_bytes) == (ids[0], 3, 300)


async def test_a_cut_ends_where_batches_were_merged_meanwhile(tiered: Tiered) -> None:
    log = await tiered.diskless(files=2, batches=2)
    tiered.worker.split(log.topic_id)
    tiered.worker.merge(log, max_batches=2)
    (cut,) = tiered.plane.retention_wal_cut([CutRequest(log_id(tiered, log), 0, -1, 10_000)])
    assert (cut.before_offset, cut.by_size) == (0, 0)


async def test_a_batch_counts_once_in_a_segment_or_in_the_wal(tiered: Tiered) -> None:
    log = await tiered.diskless(files=3, batches=2)
    number = log_id(tiered, log)
    tiered.worker.split(log.topic_id)
    tiered.worker.merge(log, max_batches=4)
    units = [
        (u.region, u.start_offset, u.end_offset, u.size_bytes)
        for u in tiered.plane.retention_suffix([number], [True])
    ]
    assert sorted(units) == [(1, 0, 3, 400), (2, 4, 5, 200)]
    assert [u.region for u in tiered.plane.retention_suffix([number], [False])] == [1]
    tiered.plane.delete_records(log.topic_id, log.partition, 5)
    units = [
        (u.region, u.start_offset, u.end_offset, u.size_bytes)
        for u in tiered.plane.retention_suffix([number], [True])
    ]
    assert units == [(2, 5, 5, 100)]


async def test_a_preview_of_garbage_marks_nothing(tiered: Tiered) -> None:
    log = await tiered.diskless(files=1, batches=1)
    await tiered.commit(log, 1)
    tiered.worker.split(log.topic_id)
    tiered.worker.merge(log, max_batches=1)
    tiered.plane.delete_records(log.topic_id, log.partition, -1)
    abandoned = tiered.worker.begin(log)
    assert abandoned is None
    before = tiered.scene.sql("SELECT status, unreferenced_at FROM wal_files ORDER BY file_id")
    found = tiered.plane.preview_garbage(0, 100)
    assert {row.kind for row in found} == {"wal", "segment"}
    assert tiered.scene.sql(
        "SELECT status, unreferenced_at FROM wal_files ORDER BY file_id"
    ) == before  # fmt: skip
    assert tiered.scene.sql("SELECT DISTINCT state FROM merged_segments") == [
        ("COPY_SEGMENT_FINISHED",)
    ]


async def test_what_the_preview_calls_due_is_what_a_run_claims(tiered: Tiered) -> None:
    log = await tiered.diskless(files=2, batches=1)
    tiered.worker.split(log.topic_id)
    tiered.worker.merge(log)
    tiered.plane.delete_records(log.topic_id, log.partition, -1)
    tiered.plane.prune_batches()
    tiered.plane.claim_dead_files(60_000)
    tiered.plane.claim_dead_objects(60_000)
    due = {(r.bucket, r.object_key) for r in tiered.plane.preview_garbage(0, 100) if r.due}
    files = {(Bucket.DISKLESS, key) for key in tiered.plane.claim_dead_files(0)}
    objects = {(dead.bucket, dead.object_key) for dead in tiered.plane.claim_dead_objects(0)}
    assert due == files | objects
    assert len(files) == 2
    assert len(objects) == 6


async def test_live_objects_are_no_garbage(tiered: Tiered) -> None:
    log = await tiered.diskless(files=2, batches=1)
    tiered.worker.split(log.topic_id)
    tiered.worker.merge(log, max_batches=1)
    gone = [row for row in tiered.plane.preview_garbage(0, 100) if is_live(tiered, row)]
    assert gone == []


def is_live(tiered: Tiered, row: GarbageRow) -> bool:
    """Whether a reader could still come for it."""
    return bool(
        tiered.scene.sql(
            "SELECT FROM wal_files JOIN batches USING (file_id) WHERE object_key = %s"
            " UNION ALL SELECT FROM merged_segments WHERE object_key_stem || '.log' = %s",
            row.object_key,
            row.object_key,
        )
    )


async def test_unknown_objects_are_told_without_a_report(tiered: Tiered) -> None:
    await tiered.diskless(files=1, batches=1)
    ((known,),) = tiered.scene.sql("SELECT object_key FROM wal_files")
    keys = [str(known), "wal/nobody"]
    assert tiered.plane.unknown_objects(Bucket.DISKLESS, keys) == {"wal/nobody": None}
    assert tiered.scene.sql("SELECT count(*) FROM orphan_reports") == [(0,)]
    tiered.plane.report_orphans(1, Bucket.DISKLESS, [ListedObject("wal/nobody", 1, "e", 0)])
    told = tiered.plane.unknown_objects(Bucket.DISKLESS, keys)
    assert told.keys() == {"wal/nobody"}
    assert told["wal/nobody"] is not None
    (row,) = tiered.plane.preview_garbage(0, 10)
    assert (row.kind, row.reason, row.due) == ("orphan", "unknown", True)
