"""Objects go when nothing refers to them any more, after a grace, and never before."""

from __future__ import annotations

from tests.contract.scenes import batch
from tests.contract.tiering import ALL_OLD, Tiered, segment_of
from tideline.control_plane.garbage_model import DeadReason, ListedObject
from tideline.control_plane.tiering_model import SEGMENT_SUFFIXES, Bucket
from tideline.domain.ids import TopicIdPartition

HOUR_MS = 3_600_000


async def merged(tiered: Tiered) -> TopicIdPartition:
    """Two segments of two batches each."""
    log = await tiered.diskless(files=2, batches=2)
    tiered.worker.split(log.topic_id)
    while tiered.worker.merge(log, max_batches=2):
        pass
    return log


def age(tiered: Tiered, table: str, column: str) -> None:
    tiered.scene.sql(f"UPDATE {table} SET {column} = {column} - interval '2 hours'")


async def test_a_wal_file_outlives_its_last_batch_by_the_grace(tiered: Tiered) -> None:
    await merged(tiered)
    age(tiered, "wal_files", "committed_at")
    assert tiered.plane.claim_dead_files(HOUR_MS) == []
    age(tiered, "wal_files", "unreferenced_at")
    keys = tiered.plane.claim_dead_files(HOUR_MS)
    assert len(keys) == 2
    assert tiered.plane.claim_dead_files(HOUR_MS) == keys
    assert tiered.plane.forget_dead_files(keys) == 2


async def test_a_key_that_was_never_committed_is_forgotten_after_the_grace_and_its_object_an_orphan(
    tiered: Tiered,
) -> None:
    gateway = tiered.gateway
    await tiered.scene.plane.register_object_keys(gateway.gateway_id, gateway.incarnation, ["k"])
    assert tiered.plane.forget_uncommitted_keys(HOUR_MS) == 0
    age(tiered, "wal_files", "registered_at")
    assert tiered.plane.forget_uncommitted_keys(HOUR_MS) == 1
    assert tiered.plane.report_orphans(1, Bucket.DISKLESS, listed("k")) == ["k"]


async def test_recorded_runs_go_with_their_last_batch_and_leave_no_object(tiered: Tiered) -> None:
    log = await tiered.diskless()
    tiered.worker.split(log.topic_id)
    tiered.worker.merge(log, max_batches=3)
    assert tiered.scene.sql("SELECT base_offset FROM split_files ORDER BY 1") == [(2,), (4,)]
    tiered.plane.delete_records(log.topic_id, 0, 4)
    assert {d.bucket for d in tiered.plane.claim_dead_objects(0)} == {Bucket.TIERED}
    assert tiered.scene.sql("SELECT base_offset FROM split_files") == [(4,)]
    tiered.worker.merge(log)
    assert {d.bucket for d in tiered.plane.claim_dead_objects(0)} == {Bucket.TIERED}
    assert tiered.scene.sql("SELECT count(*) FROM split_files") == [(0,)]
    assert len(tiered.plane.claim_dead_files(0)) == 2, "the third has a batch that has expired"
    tiered.plane.prune_batches()
    assert len(tiered.plane.claim_dead_files(0)) == 3


async def test_what_a_killed_worker_left_goes_when_its_claim_has_lapsed(tiered: Tiered) -> None:
    log = await tiered.diskless(files=2, batches=1)
    one, _ = tiered.worker.claim({log.topic_id: ALL_OLD})
    tiered.worker.finish(one)
    plan = tiered.worker.begun(log)
    assert tiered.plane.claim_dead_objects(0) == []
    for table in ("wal_file_claims", "merge_claims"):
        age(tiered, table, "expires_at")
    tiered.plane.claim_dead_objects(HOUR_MS)
    dead = {d.object_key for d in tiered.plane.claim_dead_objects(0)}
    assert dead == {plan.object_key_stem + suffix for suffix in SEGMENT_SUFFIXES}
    assert tiered.plane.forget_dead_objects([*dead, "unheard"]) == 6
    assert tiered.scene.sql("SELECT count(*) FROM merged_segments") == [(0,)]
    tiered.worker.split(log.topic_id)
    assert tiered.worker.merge(log) is not None
    assert await tiered.read(log) == [("segment", 0, 1)]


async def test_an_expired_segment_goes_object_by_object_log_first(tiered: Tiered) -> None:
    log = await merged(tiered)
    tiered.plane.forget_dead_objects([d.object_key for d in tiered.plane.claim_dead_objects(0)])
    tiered.plane.delete_records(log.topic_id, 0, 3)
    assert tiered.plane.claim_dead_objects(HOUR_MS) == []
    dead = tiered.plane.claim_dead_objects(0, limit=100)
    assert dead[0].object_key.endswith(".log")
    assert len(dead) == 6
    assert {d.bucket for d in dead} == {Bucket.TIERED}
    assert tiered.plane.claim_dead_objects(0, limit=2) == dead[:2]
    tiered.plane.forget_dead_objects([d.object_key for d in dead[:4]])
    lo, hi = tiered.plane.log_id_range()
    assert [r.state for r in tiered.plane.merged_segments(lo, hi)] == [
        "DELETE_SEGMENT_STARTED",
        "COPY_SEGMENT_FINISHED",
    ]
    tiered.plane.forget_dead_objects([d.object_key for d in dead[4:]])
    assert [r.base_offset for r in tiered.plane.merged_segments(lo, hi)] == [2]
    assert await tiered.read(log) == [("segment", 2, 3)]


async def test_a_deleted_topic_leaves_no_object(tiered: Tiered) -> None:
    log = await merged(tiered)
    await tiered.commit(log, 1)
    tiered.worker.split(log.topic_id)
    lo, hi = tiered.plane.log_id_range()
    stems = [r.object_key_stem for r in tiered.plane.merged_segments(lo, hi)]
    await tiered.scene.plane.delete_topic(log.topic_id)
    dead = {d.object_key for d in tiered.plane.claim_dead_objects(0)}
    assert dead == {stem + suffix for stem in stems for suffix in SEGMENT_SUFFIXES}
    assert tiered.scene.sql("SELECT count(*) FROM split_files") == [(0,)]
    tiered.plane.forget_dead_objects(list(dead))
    assert list(tiered.plane.merged_segments(lo, hi)) == []
    assert tiered.plane.prune_batches() == 1
    assert len(tiered.plane.claim_dead_files(0)) == 3
    assert tiered.scene.sql("SELECT count(*) FROM producer_snapshots") == [(0,)]


def listed(*keys: str, etag: str = "e") -> list[ListedObject]:
    return [ListedObject(key, 10, etag, 1_000) for key in keys]


async def test_what_nobody_finished_stays_as_long_as_an_orphan(tiered: Tiered) -> None:
    """A restored Postgres may know as begun what was finished in the history that was lost."""
    log = await tiered.diskless(files=2, batches=1)
    one, _ = tiered.worker.claim({log.topic_id: ALL_OLD})
    tiered.worker.finish(one)
    tiered.worker.begun(log)
    for table in ("wal_file_claims", "merge_claims"):
        age(tiered, table, "expires_at")
    tiered.plane.mark_dead_objects(HOUR_MS)
    age(tiered, "marked_objects", "marked_at")
    assert tiered.plane.claim_dead_objects(HOUR_MS, orphan_grace_ms=3 * HOUR_MS) == []
    dead = tiered.plane.claim_dead_objects(HOUR_MS, orphan_grace_ms=HOUR_MS)
    assert {d.reason for d in dead} == {DeadReason.UNFINISHED}


async def test_an_orphan_is_reported_first_and_goes_when_a_later_run_lists_it_again(
    tiered: Tiered,
) -> None:
    log = await tiered.diskless(files=1)
    ((wal,),) = tiered.scene.sql("SELECT object_key FROM wal_files")
    tiered.worker.split(log.topic_id)
    plan = tiered.worker.begun(log)
    ours = listed(str(wal), "wal/lost")
    assert tiered.plane.report_orphans(1, Bucket.DISKLESS, ours) == ["wal/lost"]
    assert tiered.plane.claim_orphans(1, 0) == [], "the run that reports it first deletes nothing"
    assert tiered.plane.claim_orphans(2, 0) == [], "not listed by this run"
    tiered.plane.report_orphans(2, Bucket.DISKLESS, ours)
    assert tiered.plane.claim_orphans(2, HOUR_MS) == [], "its report is younger than the grace"
    age(tiered, "orphan_reports", "first_seen")
    (due,) = tiered.plane.claim_orphans(2, HOUR_MS)
    assert (due.object_key, due.bucket, due.size) == ("wal/lost", Bucket.DISKLESS, 10)
    assert tiered.plane.claim_dead_objects(0) == []
    assert tiered.plane.forget_orphans(Bucket.DISKLESS, ["wal/lost"]) == 1

    segment = [plan.object_key_stem + suffix for suffix in SEGMENT_SUFFIXES]
    stray = plan.object_key_stem[:-1] + "_.log"
    assert tiered.plane.report_orphans(3, Bucket.TIERED, listed(*segment, stray)) == [stray]
    tiered.plane.finish_merge(log, plan.token, segment_of(plan))
    assert tiered.plane.report_orphans(4, Bucket.TIERED, listed(*segment)) == []


async def test_an_orphan_that_becomes_known_or_is_written_anew_is_no_old_orphan(
    tiered: Tiered,
) -> None:
    gateway = tiered.gateway
    tiered.plane.report_orphans(1, Bucket.DISKLESS, listed("late", "again"))
    age(tiered, "orphan_reports", "first_seen")
    await tiered.scene.plane.register_object_keys(gateway.gateway_id, gateway.incarnation, ["late"])
    assert tiered.plane.claim_orphans(1, 0) == []
    now = listed("late") + listed("again", etag="another")
    assert tiered.plane.report_orphans(2, Bucket.DISKLESS, now) == ["again"]
    assert tiered.plane.claim_orphans(2, 0) == [], "another object than the one that was reported"
    assert tiered.scene.sql("SELECT object_key, first_run FROM orphan_reports") == [("again", 2)]


async def test_a_file_is_judged_only_when_it_lost_a_batch(tiered: Tiered) -> None:
    log = await tiered.diskless(files=3, batches=2)
    tiered.plane.claim_dead_files(0)
    assert tiered.scene.sql("SELECT count(*) FROM lessened_files") == [(0,)]
    tiered.plane.delete_records(log.topic_id, 0, 3)
    tiered.plane.prune_batches()
    assert tiered.scene.sql("SELECT count(*) FROM lessened_files") == [(2,)]
    assert len(tiered.plane.claim_dead_files(0)) == 1, "the second file has a batch left"
    assert tiered.scene.sql("SELECT count(*) FROM lessened_files") == [(0,)]
    tiered.plane.delete_records(log.topic_id, 0, 4)
    tiered.plane.prune_batches()
    assert len(tiered.plane.claim_dead_files(0)) == 2


async def test_a_file_whose_every_batch_was_refused_is_dead(tiered: Tiered) -> None:
    log = await tiered.diskless(files=0)
    await tiered.scene.plane.delete_topic(log.topic_id)
    gateway = tiered.gateway
    await tiered.scene.plane.register_object_keys(gateway.gateway_id, gateway.incarnation, ["n"])
    (refused,) = await tiered.scene.commit(gateway, batch(log), key="n")
    assert refused.error != "NONE"
    assert tiered.plane.claim_dead_files(0) == ["n"]
