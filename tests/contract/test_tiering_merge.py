"""Merged segments: planned under a token, registered in one transaction, or not at all."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from uuid import uuid4

import pytest

from tests.contract.scenes import batch, seed
from tests.contract.tiering import PREFIX, Tiered, Worker, segment_of
from tideline.control_plane.errors import (
    InvalidInput,
    StaleClaim,
    TieringMismatch,
    UnknownLog,
)
from tideline.control_plane.tiering_model import (
    SEGMENT_SUFFIXES,
    MergedSegmentState,
    MergePlan,
    TieringScope,
)
from tideline.domain.ids import TopicIdPartition, topic_id_to_base64
from tideline.domain.producer_state import StoredProducerState


async def split_log(tiered: Tiered, files: int = 3, batches: int = 2) -> TopicIdPartition:
    log = await tiered.diskless(files, batches)
    tiered.worker.split(log.topic_id)
    return log


async def test_a_merged_range_is_read_from_its_segment_alone(tiered: Tiered) -> None:
    log = await split_log(tiered)
    await tiered.commit(log, 1)
    (candidate,) = tiered.plane.merge_candidates()
    assert (candidate.base_offset, candidate.last_offset) == (0, 5)
    assert (candidate.bytes, candidate.batches, candidate.files) == (600, 6, 3)
    plan = tiered.worker.begun(log)
    assert (plan.base_offset, plan.last_offset, plan.batch_count) == (0, 5, 6)
    assert [(b.base_offset, b.last_offset, b.byte_size) for b in plan.batches] == [
        (n, n, 100) for n in range(6)
    ]
    assert len({b.object_key for b in plan.batches}) == 3
    assert (plan.boundary_epoch, plan.producers) == (0, ())
    folder = f"{PREFIX}{plan.topic}-{topic_id_to_base64(log.topic_id)}/0"
    assert plan.object_key_stem == f"{folder}/{0:020}-{topic_id_to_base64(plan.segment_id)}"
    (begun,) = tiered.plane.merge_candidates()
    assert begun.segments_in_progress == (plan.segment_id,)
    assert await tiered.read(log) == [("wal", n, n) for n in range(7)]
    assert tiered.states(log) == ("DISKLESS_ONLY", -1, -1, 0)

    tiered.plane.finish_merge(log, plan.token, segment_of(plan))
    assert await tiered.read(log) == [("segment", 0, 5), ("wal", 6, 6)]
    assert tiered.states(log) == ("HYBRID", 0, 5, 0)
    assert tiered.plane.merge_candidates() == []
    lo, hi = tiered.plane.log_id_range()
    (row,) = tiered.plane.merged_segments(lo, hi)
    assert (row.state, row.base_offset, row.last_offset) == (
        MergedSegmentState.COPY_SEGMENT_FINISHED, 0, 5,
    )  # fmt: skip
    assert (row.size_bytes, row.record_count, row.log, row.leader_epoch) == (600, 6, log, 0)
    assert [b.base_offset for b in tiered.plane.batches(lo, hi)] == [6]
    tiered.plane.finish_merge(log, plan.token, segment_of(plan))
    assert tiered.plane.take_tiering_work(tiered.worker.worker)["segments.created"] == 1
    assert tiered.scene.sql("SELECT count(*) FROM split_files") == [(0,)]


async def test_a_segment_takes_whole_batches_up_to_its_bounds(tiered: Tiered) -> None:
    log = await split_log(tiered, files=2, batches=3)
    first = tiered.worker.merge(log, max_bytes=450)
    assert first is not None
    assert (first.last_offset, first.byte_size) == (3, 400)
    (rest,) = tiered.plane.merge_candidates()
    assert (rest.base_offset, rest.last_offset, rest.bytes, rest.batches) == (4, 5, 200, 2)
    second = tiered.worker.merge(log, max_bytes=1)
    third = tiered.worker.merge(log, max_batches=1)
    assert second is not None
    assert third is not None
    assert [(p.base_offset, p.last_offset) for p in (second, third)] == [(4, 4), (5, 5)]
    assert {b.object_key for b in second.batches} == {b.object_key for b in third.batches}
    assert tiered.worker.begin(log) is None
    assert await tiered.read(log) == [("segment", 0, 3), ("segment", 4, 4), ("segment", 5, 5)]
    for wrong in ({"max_bytes": 0}, {"max_batches": 0}, {"claim_ms": 0}):
        with pytest.raises(InvalidInput):
            tiered.worker.begin(log, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UnknownLog):
        tiered.worker.begin(TopicIdPartition(uuid4(), 0))


async def test_a_segment_of_thousands_of_batches_is_planned_as_far_as_its_bounds(
    tiered: Tiered,
) -> None:
    """It is looked for among more and more of what waits behind it."""
    log = await split_log(tiered, files=5, batches=500)
    ends = []
    for bounds in ({"max_bytes": 110_000}, {"max_batches": 1_000}, {"max_bytes": 100}, {}):
        plan = tiered.worker.merge(log, **{"max_batches": 9_000, **bounds})
        assert plan is not None
        assert len(plan.batches) == plan.batch_count == plan.last_offset - plan.base_offset + 1
        ends.append(plan.last_offset)
    assert ends == [1_099, 2_099, 2_100, 2_499]


async def test_a_claim_that_is_asked_for_again_fences_the_first_and_another_attempt_waits(
    tiered: Tiered,
) -> None:
    """A repeated call has the same segment id. Another attempt of the same task has another: were
    it to take the claim over, the two would end each other for ever."""
    log = await split_log(tiered)
    first = tiered.worker.begun(log)
    same = tiered.worker.begin(log, segment_id=first.segment_id)
    assert same is not None
    assert (same.segment_id, same.token > first.token) == (first.segment_id, True)
    with pytest.raises(StaleClaim):
        tiered.plane.finish_merge(log, first.token, segment_of(first))
    assert tiered.worker.begin(log) is None
    assert 0 < tiered.plane.merge_claimed_for(log, tiered.worker.worker) <= 60_000
    assert tiered.plane.merge_claimed_for(log, uuid4()) == 0, "another run has none"
    tiered.plane.renew_merge(log, same.token, 3_600_000)
    assert tiered.plane.merge_claimed_for(log, tiered.worker.worker) > 60_000
    tiered.scene.sql("UPDATE merge_claims SET expires_at = now() - interval '1 s'")
    assert tiered.plane.merge_claimed_for(log, tiered.worker.worker) == 0
    again = tiered.worker.begun(log)
    for lost in (first, same):
        with pytest.raises(StaleClaim):
            tiered.plane.finish_merge(log, lost.token, segment_of(lost))
        with pytest.raises(StaleClaim):
            tiered.plane.renew_merge(log, lost.token, 60_000)
    tiered.plane.finish_merge(log, again.token, segment_of(again))
    with pytest.raises(StaleClaim, match="has ended"):
        tiered.plane.renew_merge(log, again.token, 60_000)
    await tiered.commit(log, 1)
    tiered.worker.split(log.topic_id)
    with pytest.raises(InvalidInput, match="was used"):
        tiered.worker.begin(log, segment_id=again.segment_id)


async def test_a_repeated_call_whose_segments_were_taken_over_begins_nothing(
    tiered: Tiered,
) -> None:
    """Its answer was lost, and its claim has run out before it was asked again."""
    log = await split_log(tiered)
    lost = tiered.worker.begun(log)
    tiered.scene.sql("UPDATE merge_claims SET expires_at = now() - interval '1 s'")
    other = Worker(tiered.plane)
    theirs = other.merge(log, max_batches=1)
    assert theirs is not None
    for _ in range(2):
        assert tiered.worker.begin(log, segment_id=lost.segment_id) is None
    rest = tiered.worker.merge(log)
    assert rest is not None, "under another id it goes on"
    assert rest.base_offset == theirs.last_offset + 1


@pytest.mark.parametrize(
    ("table", "of_what"), [("merged_segments", "its segment"), ("merge_claims", "the partition")]
)
async def test_a_segment_is_finished_with_the_token_of_both_itself_and_the_claim(
    tiered: Tiered, table: str, of_what: str
) -> None:
    """They have one at all times; neither is taken for the other."""
    log = await split_log(tiered)
    plan = tiered.worker.begun(log)
    tiered.scene.sql(f"UPDATE {table} SET token = token + 1")
    with pytest.raises(StaleClaim, match=f"token {plan.token + 1} has taken {of_what} over"):
        tiered.plane.finish_merge(log, plan.token, segment_of(plan))
    assert await tiered.read(log) == [("wal", n, n) for n in range(6)]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            "UPDATE logs SET migration_state = 'HYBRID', tiered_high_offset = 2,"
            " tiered_log_start_offset = 0",
            "begins at offset 0, but all below 3 is merged",
        ),
        ("DELETE FROM batches", "has no batch left from offset 0 to 5"),
        ("DELETE FROM batches WHERE last_offset = 5", "ends at offset 5, its last batch at 4"),
        ("UPDATE batches SET split_id = NULL", "has batches that are not split"),
    ],
    ids=["merged", "gone", "shorter", "not split"],
)
async def test_a_segment_is_finished_over_what_was_planned_and_nothing_else(
    tiered: Tiered, damage: str, says: str
) -> None:
    """Nothing but damage leaves the range so: the sources are collected once it is merged."""
    log = await split_log(tiered)
    plan = tiered.worker.begun(log)
    tiered.scene.sql(damage)
    before = tiered.states(log)
    with pytest.raises(TieringMismatch, match=says):
        tiered.plane.finish_merge(log, plan.token, segment_of(plan))
    assert tiered.states(log) == before


async def test_a_segment_is_not_finished_behind_offsets_that_nothing_holds(tiered: Tiered) -> None:
    log = await split_log(tiered, files=2, batches=1)
    first, second = await planned(tiered, log, 2)
    tiered.scene.lose(log, first.base_offset, first.last_offset)
    with pytest.raises(TieringMismatch, match="begins at offset 1, but nothing holds those from 0"):
        tiered.plane.finish_merge(log, second.token, segment_of(second))


async def planned(tiered: Tiered, log: TopicIdPartition, segments: int) -> list[MergePlan]:
    """Of one batch each."""
    return tiered.plane.begin_merge(
        log, tiered.worker.worker, 60_000, [uuid4() for _ in range(segments)], 1, 10
    )


async def test_segments_that_are_planned_at_once_are_finished_in_their_order(
    tiered: Tiered,
) -> None:
    log = await split_log(tiered, files=2, batches=2)
    plans = await planned(tiered, log, 9)
    assert [(p.base_offset, p.last_offset) for p in plans] == [(n, n) for n in range(4)]
    assert len({p.token for p in plans}) == 1
    first, second, third, last = plans
    with pytest.raises(TieringMismatch, match="below it are batches that are not merged"):
        tiered.plane.finish_merge(log, second.token, segment_of(second))
    tiered.plane.finish_merge(log, first.token, segment_of(first))
    assert Worker(tiered.plane).begin(log) is None, "the claim holds until the last is finished"
    tiered.plane.renew_merge(log, first.token, 60_000)
    for plan in (second, second, third):
        tiered.plane.finish_merge(log, plan.token, segment_of(plan))
    tiered.plane.abandon_merge(log, last.token, "a test")
    with pytest.raises(StaleClaim):
        tiered.plane.finish_merge(log, last.token, segment_of(last))
    assert tiered.worker.merge(log) is not None
    assert await tiered.read(log) == [("segment", n, n) for n in range(4)]
    dead = {d.object_key for d in tiered.plane.claim_dead_objects(0)}
    assert dead == {last.object_key_stem + suffix for suffix in SEGMENT_SUFFIXES}


async def test_of_segments_that_were_planned_at_once_none_is_collected_while_the_claim_holds(
    tiered: Tiered,
) -> None:
    log = await split_log(tiered, files=2, batches=1)
    first, second = await planned(tiered, log, 2)
    assert tiered.plane.claim_dead_objects(0) == []
    tiered.plane.finish_merge(log, first.token, segment_of(first))
    assert tiered.plane.claim_dead_objects(0) == []
    tiered.scene.sql("UPDATE merge_claims SET expires_at = now() - interval '1 s'")
    dead = {d.object_key for d in tiered.plane.claim_dead_objects(0)}
    assert dead == {second.object_key_stem + suffix for suffix in SEGMENT_SUFFIXES}
    with pytest.raises(StaleClaim):
        tiered.plane.finish_merge(log, second.token, segment_of(second))
    assert tiered.worker.merge(log) is not None
    assert await tiered.read(log) == [("segment", 0, 0), ("segment", 1, 1)]


async def test_only_the_planned_range_is_registered(tiered: Tiered) -> None:
    log = await split_log(tiered)
    plan = tiered.worker.begun(log)
    good = segment_of(plan)
    for wrong, says in (
        (replace(good, base_offset=1), "begins at offset 1, planned was 0"),
        (replace(good, last_offset=6), "ends at offset 6, planned were 0 to 5"),
        (replace(good, size_bytes=599), "has 599 bytes, its batches have 600"),
        (replace(good, batch_count=5), "has 5 batches, there are 6"),
        (replace(good, last_offset=4), "has 600 bytes, its batches have 500"),
    ):
        with pytest.raises(TieringMismatch, match=f"{plan.segment_id} of .* {says}"):
            tiered.plane.finish_merge(log, plan.token, wrong)
    with pytest.raises(StaleClaim):
        tiered.plane.finish_merge(log, plan.token, replace(good, segment_id=uuid4()))
    with pytest.raises(UnknownLog):
        tiered.plane.finish_merge(TopicIdPartition(uuid4(), 0), plan.token, good)
    assert await tiered.read(log) == [("wal", n, n) for n in range(6)]
    tiered.plane.finish_merge(log, plan.token, good)


async def test_a_paused_or_parked_partition_is_no_candidate(tiered: Tiered) -> None:
    log = await split_log(tiered)
    (candidate,) = tiered.plane.merge_candidates()
    tiered.plane.pause_tiering(candidate.topic)
    assert tiered.plane.merge_candidates() == []
    assert tiered.worker.begin(log) is None
    tiered.plane.resume_tiering(candidate.topic)
    tiered.plane.record_tiering_failure(
        TieringScope.MERGE, candidate.log_id, "disk full", park_after=1
    )
    assert tiered.plane.merge_candidates() == []
    (status,) = tiered.plane.tiering_status(candidate.topic)
    assert (status.parked, status.parked_reason) == (True, "disk full")
    assert (status.pending_split_files, status.pending_split_batches) == (3, 6)
    assert (status.pending_bytes, status.diskless_start_offset) == (600, 0)
    tiered.plane.resume_tiering(candidate.topic)
    assert tiered.plane.merge_candidates() == [candidate]
    tiered.worker.merge(log)
    (status,) = tiered.plane.tiering_status()
    assert (status.merged_segments, status.merged_bytes, status.pending_bytes) == (1, 600, 0)
    assert (status.tiered_high_offset, status.diskless_start_offset) == (5, 6)


async def test_the_first_segment_goes_on_from_the_seeds_and_the_next_from_the_first(
    tiered: Tiered,
) -> None:
    postgres_scene = tiered.scene
    seeds = [seed(7, last_offset=9), seed(8, last_offset=29, epoch=2), seed(8, last_offset=19)]
    log = await postgres_scene.hybrid_log(tiered.gateway, 30, seeds)
    sequences = count()

    async def merge(producers: tuple[StoredProducerState, ...]) -> MergePlan:
        await postgres_scene.commit(tiered.gateway, batch(log, producer=(7, 1, next(sequences))))
        tiered.worker.split(log.topic_id)
        plan = tiered.worker.begun(log)
        tiered.plane.finish_merge(log, plan.token, segment_of(plan, producers))
        return plan

    of_seven = StoredProducerState(7, 0, 9, 9, 9, 1_000)
    of_eight = StoredProducerState(8, 2, 9, 29, 9, 1_000)
    later = StoredProducerState(7, 1, 0, 30, 0, 1_000)
    first = await merge((later, of_eight))
    assert (first.base_offset, first.boundary_epoch) == (30, 3)
    assert first.producers == (of_seven, of_eight)
    postgres_scene.sql(
        "DELETE FROM producer_state WHERE producer_id = 8"
    )  # as expire_producers does
    assert (await merge(())).producers == (later,)


async def test_a_hybrid_log_goes_back_to_diskless_when_nothing_tiered_is_left(
    tiered: Tiered,
) -> None:
    log = await tiered.scene.hybrid_log(tiered.gateway, 10)
    for _ in range(3):
        await tiered.commit(log, 2)
    tiered.worker.split(log.topic_id)
    tiered.worker.merge(log, max_batches=4)
    assert tiered.states(log) == ("HYBRID", 0, 13, 10)
    await tiered.scene.plane.set_tiering_complete(log, 1, False, "a gap")
    assert tiered.states(log)[2] == 13
    tiered.plane.advance_prefix_start(log.topic_id, 0, 10)
    assert tiered.states(log) == ("HYBRID", 10, 13, 10)
    tiered.plane.advance_prefix_start(log.topic_id, 0, 10)
    await tiered.scene.plane.set_tiering_complete(log, 1, True, "nothing to cover")
    assert tiered.states(log) == ("HYBRID", 10, 13, 10)
    tiered.plane.delete_records(log.topic_id, 0, 12)
    assert tiered.states(log) == ("HYBRID", 12, 13, 12)
    tiered.plane.delete_records(log.topic_id, 0, 14)
    assert tiered.states(log) == ("DISKLESS_ONLY", -1, -1, 14)
    tiered.worker.merge(log)
    assert tiered.states(log) == ("HYBRID", 14, 15, 14)
    assert tiered.plane.delete_records(log.topic_id, 0, -1) == 16
    assert tiered.states(log) == ("DISKLESS_ONLY", -1, -1, 16)
    assert await tiered.read(log) == []
