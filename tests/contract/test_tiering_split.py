"""Claims of WAL files and what becomes of the batches that are split out of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark.tiering.split_files import runs
from tests.contract.tiering import ALL_OLD, Tiered, Worker, segment_of
from tideline.control_plane.errors import (
    InvalidInput,
    StaleClaim,
    TieringMismatch,
    UnknownTopic,
)
from tideline.control_plane.tiering_model import SplitWork, TieringScope

LARGEST = 2**63 - 1


async def test_a_claim_is_bounded_but_never_less_than_a_file(tiered: Tiered) -> None:
    log = await tiered.diskless(files=4, batches=3)
    cutoffs = {log.topic_id: ALL_OLD}
    (one,) = tiered.worker.claim(cutoffs, max_batches=1)
    assert len(one.batches) == 3
    assert len(tiered.worker.claim(cutoffs, max_files=1)) == 1
    assert [len(f.batches) for f in tiered.worker.claim(cutoffs, max_batches=8)] == [3, 3]
    for wrong in ({"max_files": 0}, {"max_batches": 0}, {"claim_ms": 0}):
        with pytest.raises(InvalidInput):
            tiered.worker.claim(cutoffs, **wrong)


async def test_the_oldest_batch_that_may_be_split_is_told_of_each_log_until_it_is(
    tiered: Tiered,
) -> None:
    log = await tiered.diskless(files=2, batches=1)
    old = {log.topic_id: ALL_OLD}
    (oldest,) = tiered.plane.oldest_unsplit(old)
    first = next(iter(tiered.plane.batches(*tiered.plane.log_id_range())))
    assert (oldest.topic_id, oldest.max_timestamp) == (log.topic_id, first.max_timestamp)
    assert tiered.plane.oldest_unsplit({log.topic_id: oldest.max_timestamp}) == []
    tiered.worker.split(log.topic_id)
    assert tiered.plane.oldest_unsplit(old) == []


async def test_who_starts_split_is_told_of_what_it_would_begin_with_and_of_a_run_that_is_at_work(
    tiered: Tiered,
) -> None:
    _, (one, two) = await tiered.scene.diskless_topic(2)
    old = {one.topic_id: ALL_OLD}
    nothing = SplitWork(0, 0, None, None)
    assert tiered.plane.split_work(old) == nothing
    await tiered.commit(one, 1, timestamp=500)
    oldest = await tiered.commit(two, 1, timestamp=100)
    assert tiered.plane.split_work(old) == SplitWork(0, 2, oldest, 100)
    assert tiered.plane.split_work({one.topic_id: 100}) == nothing, "nothing is old enough"
    (file,) = tiered.worker.claim({one.topic_id: 200})
    assert tiered.plane.split_work(old) == SplitWork(1, 0, None, None)
    tiered.plane.record_tiering_failure(
        TieringScope.SPLIT, file.file_id, "its bytes are wrong", park_after=1, backoff_ms=1
    )
    tiered.plane.release_claim(tiered.worker.worker, file.file_id, file.token)
    work = tiered.plane.split_work(old)
    assert (work.partitions, work.max_timestamp) == (1, 500), "nobody may take what is parked"
    tiered.worker.split(one.topic_id)
    assert tiered.plane.split_work(old) == nothing


async def test_a_requested_topic_is_work_at_once(tiered: Tiered) -> None:
    await tiered.diskless(files=1, batches=1)
    assert tiered.plane.split_work({}).partitions == 0
    ((name,),) = tiered.scene.sql("SELECT name FROM topics")
    tiered.plane.request_tiering(str(name))
    assert tiered.plane.split_work({}).partitions == 1


async def test_the_number_of_batches_is_estimated_without_counting(tiered: Tiered) -> None:
    await tiered.diskless(files=3, batches=4)
    tiered.scene.sql("ANALYZE batches")
    assert tiered.plane.estimate_batch_rows() == 12
    tiered.scene.clear()
    tiered.scene.sql("TRUNCATE batches")
    assert tiered.plane.estimate_batch_rows() == 0


async def test_a_request_makes_everything_committed_until_then_eligible(tiered: Tiered) -> None:
    log = await tiered.diskless(files=2, batches=1)
    ((name,),) = tiered.scene.sql("SELECT name FROM topics")
    tiered.plane.request_tiering(str(name))
    tiered.scene.sql("UPDATE batches SET append_time = append_time + 60000 WHERE base_offset = 1")
    (status,) = tiered.plane.tiering_status()
    (file,) = tiered.worker.claim({})
    assert [b.base_offset for b in file.batches] == [0]
    assert status.eligible_bytes == sum(b.byte_size for b in file.batches)
    tiered.worker.finish(file)
    (candidate,) = tiered.plane.merge_candidates()
    assert (candidate.requested, candidate.log) == (True, log)
    tiered.worker.merge(log)
    assert tiered.plane.merge_candidates() == []
    (status,) = tiered.plane.tiering_status()
    assert (status.requested_at, status.pending_batches) == (None, 1)
    for steer in (tiered.plane.request_tiering, tiered.plane.pause_tiering):
        with pytest.raises(UnknownTopic):
            steer("nobody")


async def test_a_batch_of_a_clock_that_runs_ahead_is_as_old_as_its_commit(tiered: Tiered) -> None:
    """Else it would keep its partition from being tiered until then."""
    _, (log,) = await tiered.scene.diskless_topic()
    await tiered.commit(log, 1, timestamp=LARGEST)
    await tiered.commit(log, 1, timestamp=100)
    ((committed,),) = tiered.scene.sql("SELECT max(append_time) FROM batches WHERE base_offset = 0")
    assert isinstance(committed, int)
    (young,) = tiered.worker.claim({log.topic_id: committed})
    assert [b.base_offset for b in young.batches] == [1], "it is no older than its commit"
    tiered.plane.release_claim(tiered.worker.worker, young.file_id, young.token)
    (oldest,) = tiered.plane.oldest_unsplit({log.topic_id: committed})
    assert oldest.max_timestamp == 100
    old = {log.topic_id: committed + 1}
    files = tiered.worker.claim(old)
    assert [b.base_offset for file in files for b in file.batches] == [1, 0]
    assert [file.oldest_ms for file in files] == [100, committed]
    for file in files:
        tiered.worker.finish(file)
    assert tiered.worker.begun(log).last_offset == 1


async def test_a_finished_split_may_be_told_again(tiered: Tiered) -> None:
    log = await tiered.diskless()
    (file, *_) = tiered.worker.claim({log.topic_id: ALL_OLD})
    for _ in range(2):
        tiered.worker.finish(file)
    assert tiered.scene.sql("SELECT count(*) FROM split_files") == [(1,)]
    assert tiered.plane.take_tiering_work(tiered.worker.worker) == {
        "files.split": 1, "runs.split": 1, "batches.split": 2, "bytes.split": 200,
    }, "and counts once"  # fmt: skip


async def test_files_are_finished_together_and_of_a_lost_claim_nothing_is(tiered: Tiered) -> None:
    log = await tiered.diskless(files=3, batches=2)
    mine, lost, last = tiered.worker.claim({log.topic_id: ALL_OLD})
    tiered.plane.release_claim(tiered.worker.worker, lost.file_id, lost.token)
    (theirs,) = Worker(tiered.plane).claim({log.topic_id: ALL_OLD})
    assert theirs.file_id == lost.file_id
    files = [mine, lost, last]
    every = [run for file in files for run in runs(file)]
    for _ in range(2):
        done = tiered.plane.finish_split(tiered.worker.worker, files, every)
        assert [(f.file_id, f.runs, f.batches, f.bytes) for f in done] == [
            (file.file_id, 1, 2, 200) for file in (mine, last)
        ]
    assert tiered.scene.sql("SELECT count(*) FROM batches WHERE split_id IS NULL") == [(2,)]
    assert tiered.scene.sql("SELECT file_id FROM wal_file_claims") == [(lost.file_id,)]


async def test_what_an_earlier_run_of_the_worker_claimed_is_given_back_and_another_workers_is_not(
    tiered: Tiered,
) -> None:
    log = await tiered.diskless(files=2)
    other = Worker(tiered.plane)
    (mine,) = tiered.worker.claim({log.topic_id: ALL_OLD}, max_files=1)
    (theirs,) = other.claim({log.topic_id: ALL_OLD})
    assert [tiered.plane.release_claims(tiered.worker.worker) for _ in range(2)] == [1, 0]
    with pytest.raises(StaleClaim):
        tiered.worker.finish(mine)
    (again,) = tiered.worker.claim({log.topic_id: ALL_OLD})
    assert again.file_id == mine.file_id
    assert again.token > mine.token
    for who, claim in ((tiered.worker, mine), (other, again)):
        with pytest.raises(StaleClaim, match=f"claim {claim.token} of WAL file {mine.file_id}"):
            who.finish(claim)
    other.finish(theirs)
    tiered.worker.finish(again)
    plan = tiered.worker.begun(log)
    assert tiered.plane.release_claims(tiered.worker.worker) == 1, "a merge, too"
    with pytest.raises(StaleClaim):
        tiered.plane.finish_merge(log, plan.token, segment_of(plan))
    assert tiered.worker.merge(log) is not None


async def test_only_exact_runs_of_the_claimed_batches_are_taken(tiered: Tiered) -> None:
    log = await tiered.diskless(files=2, batches=3)
    (file, _) = tiered.worker.claim({log.topic_id: ALL_OLD})
    (split,) = runs(file)
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"last_offset": 3}, "its last batch ends at offset 2, not at 3"),
        ({"last_offset": 1}, "its batches have 200 bytes, not 300"),
        ({"base_offset": 1}, "its batches have 200 bytes, not 300"),
        ({"byte_size": 299}, "its batches have 300 bytes, not 299"),
        ({"batch_count": 2}, "it has 3 batches, not 2"),
        ({"base_offset": 3, "last_offset": 5}, "offsets 3 to 5 hold none"),
        ({"base_offset": 70, "last_offset": 72}, "offsets 70 to 72 hold none"),
    ]
    for wrong, says in wrongs:
        with pytest.raises(TieringMismatch, match=f"WAL file {file.file_id}: .*{says}"):
            tiered.worker.finish(file, [replace(split, **wrong)])
    with pytest.raises(TieringMismatch, match=r"run of log 0 .*there is no such log"):
        tiered.worker.finish(file, [replace(split, log_id=0)])
    assert tiered.scene.sql("SELECT count(*) FROM batches WHERE split_id IS NOT NULL") == [(0,)]
    tiered.worker.finish(file, [split])


async def test_what_fails_waits_and_is_then_parked_until_an_operator_acts(tiered: Tiered) -> None:
    log = await tiered.diskless(files=1)
    ((name,),) = tiered.scene.sql("SELECT name FROM topics")
    cutoffs = {log.topic_id: ALL_OLD}
    (file,) = tiered.worker.claim(cutoffs)
    tiered.plane.release_claim(tiered.worker.worker, file.file_id, file.token)

    def fail(backoff_ms: int) -> int:
        return tiered.plane.record_tiering_failure(
            TieringScope.SPLIT, file.file_id, "CRC", park_after=3, backoff_ms=backoff_ms
        )

    assert fail(60_000) == 1
    assert tiered.worker.claim(cutoffs) == []
    (status,) = tiered.plane.tiering_status(str(name), cutoffs)
    assert (status.failures, status.parked, status.parked_reason) == (1, False, "CRC")
    assert (status.pending_batches, status.eligible_bytes) == (2, 200)
    tiered.scene.sql("UPDATE tiering_failures SET retry_at = now()")
    assert tiered.worker.claim(cutoffs) == [replace(file, token=file.token + 1)]
    tiered.plane.release_claim(tiered.worker.worker, file.file_id, file.token + 1)
    assert (fail(0), fail(0)) == (2, 3)
    tiered.scene.sql("UPDATE tiering_failures SET retry_at = now()")
    assert tiered.worker.claim(cutoffs) == []
    (status,) = tiered.plane.tiering_status()
    assert status.parked
    tiered.plane.request_tiering(str(name))
    (again,) = tiered.worker.claim({})
    assert fail(0) == 1
    tiered.worker.finish(again)
    (status,) = tiered.plane.tiering_status()
    assert (status.failures, status.parked_reason) == (0, None)
    assert fail(0) == 1
