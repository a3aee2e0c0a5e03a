"""Two connections at once: one is held in the middle of its transaction, the other goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.contract.conftest import Database
from tests.contract.scenes import PostgresScene, batch
from tests.contract.tiering import ALL_OLD, Tiered, Worker, jobs, segment_of
from tests.support.waiting import until
from tideline.control_plane.errors import StaleClaim, TieredRangeGone, TopicDeleted
from tideline.control_plane.tiering_model import MergePlan
from tideline.domain.ids import TopicIdPartition

T = TypeVar("T")


class Race:
    """``held`` is a transaction of its own that ends when the test says so."""

    def __init__(
        self, postgres_scene: PostgresScene, held: psycopg.Connection[Any], pool: ThreadPoolExecutor
    ):
        self._scene, self.held, self._pool = postgres_scene, held, pool

    def start(self, call: Callable[..., T], *arguments: object) -> Future[T]:
        """Run ``call`` beside the held transaction, and wait until it waits for it."""
        running = self._pool.submit(call, *arguments)

        def waits() -> bool:
            found = self._scene.sql(
                "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                "AND datname = current_database()"
            )
            assert found or not running.done(), f"it did not wait: {running}"
            return found != []

        until("the call to wait", waits)
        return running

    def hold(self, function: str, *arguments: object) -> list[tuple[Any, ...]]:
        marks = ", ".join(["%s"] * len(arguments))
        cursor = self.held.execute(f"SELECT tideline.{function}({marks})".encode(), arguments)
        return cursor.fetchall()


def result(call: Future[T]) -> T:
    """Of a call that nothing holds any more."""
    until("the call to end", call.done)
    return call.result()


@pytest.fixture
def race(tiered: Tiered) -> Iterator[Race]:
    with (
        ThreadPoolExecutor(2) as pool,
        psycopg.connect(tiered.scene.dsn, options="-c search_path=tideline") as held,
    ):
        yield Race(tiered.scene, held, pool)


@contextmanager
def second_worker(database: Database) -> Iterator[Worker]:
    with jobs(database) as plane:
        yield Worker(plane)


def finish_arguments(log: TopicIdPartition, plan: MergePlan) -> tuple[object, ...]:
    made = segment_of(plan)
    return (
        log.topic_id, log.partition, plan.token, made.segment_id, made.base_offset,
        made.last_offset, made.size_bytes, made.max_timestamp, made.record_count,
        made.batch_count, made.offset_index_bytes, made.time_index_bytes, made.snapshot_bytes,
        made.epoch_checkpoint_bytes, Jsonb([]),
    )  # fmt: skip


async def planned(tiered: Tiered) -> tuple[TopicIdPartition, MergePlan]:
    log = await tiered.diskless(files=2, batches=2)
    tiered.worker.split(log.topic_id)
    return log, tiered.worker.begun(log)


async def test_two_workers_never_claim_one_file(
    tiered: Tiered, database: Database, race: Race
) -> None:
    log = await tiered.diskless(files=4, batches=1)
    claimed = race.hold(
        "claim_wal_files", tiered.worker.worker, 2, 100, 60_000, [log.topic_id], [ALL_OLD]
    )
    assert len(claimed) == 2
    with second_worker(database) as other:
        # Neither waits for the other.
        theirs = other.claim({log.topic_id: ALL_OLD})
        assert other.claim({log.topic_id: ALL_OLD}) == []
    race.held.commit()
    claims = tiered.scene.sql(
        "SELECT worker, count(*), count(DISTINCT token) FROM wal_file_claims GROUP BY worker"
    )
    assert len(theirs) == 2
    assert sorted(claims, key=str) == sorted(
        [(worker, 2, 2) for worker in (tiered.worker.worker, other.worker)], key=str
    )


async def test_what_a_claim_that_came_to_nothing_was_taking_is_claimed_by_the_next(
    tiered: Tiered, race: Race
) -> None:
    log = await tiered.diskless(files=2, batches=1)
    race.hold("claim_wal_files", uuid4(), 1, 100, 60_000, [log.topic_id], [ALL_OLD])
    assert len(tiered.worker.claim({log.topic_id: ALL_OLD}, max_files=1)) == 1
    race.held.rollback()
    assert len(tiered.worker.claim({log.topic_id: ALL_OLD})) == 1


async def test_a_file_that_was_claimed_after_a_claim_began_to_look_is_left(
    tiered: Tiered, database: Database, race: Race
) -> None:
    """A claim that has read which files are claimed stands still at its first log until another
    one has taken and committed the same file."""
    log = await tiered.diskless(files=2, batches=1)
    race.held.execute("LOCK TABLE logs IN ACCESS EXCLUSIVE MODE")
    late = race.start(lambda: tiered.worker.claim({log.topic_id: ALL_OLD}))
    race.held.execute(
        "INSERT INTO wal_file_claims (file_id, worker, token, expires_at) SELECT min(file_id),"
        " gen_random_uuid(), nextval('tiering_tokens'), now() + interval '1 h' FROM batches"
    )
    race.held.commit()
    ((first, second),) = tiered.scene.sql("SELECT min(file_id), max(file_id) FROM batches")
    assert [file.file_id for file in result(late)] == [second]
    assert tiered.scene.sql("SELECT count(*) FROM wal_file_claims") == [(2,)]
    assert first != second


async def test_a_finish_that_meets_a_takeover_loses(
    tiered: Tiered, database: Database, race: Race
) -> None:
    log = await tiered.diskless(files=1)
    (file,) = tiered.worker.claim({log.topic_id: ALL_OLD})
    tiered.scene.sql("UPDATE wal_file_claims SET expires_at = now() - interval '1 s'")
    with second_worker(database) as other:
        race.hold("claim_wal_files", other.worker, 1, 100, 60_000, [log.topic_id], [ALL_OLD])
        late = race.start(tiered.worker.finish, file)
        race.held.commit()
        with pytest.raises(StaleClaim):
            result(late)
    assert tiered.scene.sql("SELECT count(*) FROM batches WHERE split_id IS NOT NULL") == [(0,)]


async def test_of_two_merges_of_a_partition_one_begins(
    tiered: Tiered, database: Database, race: Race
) -> None:
    log = await tiered.diskless()
    tiered.worker.split(log.topic_id)
    tiered.worker.merge(log, max_batches=1)
    race.hold(
        "begin_merge", log.topic_id, 0, tiered.worker.worker, 60_000, [uuid4()], "", 1_000, 10
    )
    with second_worker(database) as other:
        second = race.start(lambda: other.begin(log))
        race.held.commit()
        assert result(second) is None


async def test_retention_that_is_under_way_decides_first(tiered: Tiered, race: Race) -> None:
    log, plan = await planned(tiered)
    race.hold("delete_records", log.topic_id, 0, 4)
    finish = race.start(tiered.plane.finish_merge, log, plan.token, segment_of(plan))
    race.held.commit()
    with pytest.raises(TieredRangeGone):
        result(finish)
    assert await tiered.read(log) == []


async def test_a_deletion_that_is_under_way_decides_first(tiered: Tiered, race: Race) -> None:
    log, plan = await planned(tiered)
    race.hold("delete_topic", log.topic_id)
    finish = race.start(tiered.plane.finish_merge, log, plan.token, segment_of(plan))
    race.held.commit()
    with pytest.raises(TopicDeleted):
        result(finish)


async def test_retention_after_a_merge_sees_its_segment(tiered: Tiered, race: Race) -> None:
    log, plan = await planned(tiered)
    race.hold("finish_merge", *finish_arguments(log, plan))
    retention = race.start(tiered.plane.delete_records, log.topic_id, 0, 3)
    race.held.commit()
    assert result(retention) == 3
    assert tiered.states(log) == ("HYBRID", 3, 3, 3)
    assert await tiered.read(log) == [("segment", 0, 3)]


async def test_readers_and_other_partitions_do_not_wait_for_a_merge(
    tiered: Tiered, race: Race
) -> None:
    log, plan = await planned(tiered)
    _, (other,) = await tiered.scene.diskless_topic()
    race.hold("finish_merge", *finish_arguments(log, plan))
    (elsewhere,) = await tiered.scene.commit(tiered.gateway, batch(other))
    assert elsewhere.base_offset == 0
    assert await tiered.read(log) == [("wal", n, n) for n in range(4)]
    race.held.commit()
    (here,) = await tiered.scene.commit(tiered.gateway, batch(log))
    assert here.base_offset == 4
    assert await tiered.read(log) == [("segment", 0, 3), ("wal", 4, 4)]


async def test_a_commit_that_is_under_way_and_a_merge_both_happen(
    tiered: Tiered, race: Race
) -> None:
    log, plan = await planned(tiered)
    race.held.execute("SELECT FROM logs FOR NO KEY UPDATE")  # as a commit holds it
    finish = race.start(tiered.plane.finish_merge, log, plan.token, segment_of(plan))
    assert await tiered.read(log) == [("wal", n, n) for n in range(4)]
    race.held.execute("UPDATE logs SET max_timestamp = 2000")
    race.held.commit()
    result(finish)
    assert await tiered.read(log) == [("segment", 0, 3)]


async def test_garbage_collection_leaves_a_segment_that_is_being_finished(
    tiered: Tiered, race: Race
) -> None:
    log, plan = await planned(tiered)
    tiered.scene.sql("UPDATE merge_claims SET expires_at = now() - interval '1 s'")
    race.hold("finish_merge", *finish_arguments(log, plan))
    assert tiered.plane.claim_dead_objects(0) == []
    race.held.commit()
    assert tiered.plane.claim_dead_objects(0) == []
    assert await tiered.read(log) == [("segment", 0, 3)]


async def test_a_segment_that_is_being_collected_is_not_finished(
    tiered: Tiered, race: Race
) -> None:
    log, plan = await planned(tiered)
    tiered.scene.sql("UPDATE merge_claims SET expires_at = now() - interval '1 s'")
    race.hold("claim_dead_objects", 0, 0, 100)
    finish = race.start(tiered.plane.finish_merge, log, plan.token, segment_of(plan))
    race.held.commit()
    with pytest.raises(StaleClaim):
        result(finish)
    assert await tiered.read(log) == [("wal", n, n) for n in range(4)]


async def test_pruning_and_merging_one_range_both_happen(tiered: Tiered, race: Race) -> None:
    log, plan = await planned(tiered)
    tiered.plane.delete_records(log.topic_id, 0, 2)
    race.hold("prune_batches", 100)
    finish = race.start(tiered.plane.finish_merge, log, plan.token, segment_of(plan))
    race.held.commit()
    result(finish)
    assert await tiered.read(log) == [("segment", 0, 3)]


async def test_a_merge_whose_batches_are_pruned_while_it_plans_begins_nothing(
    tiered: Tiered, race: Race
) -> None:
    log = await tiered.diskless(files=2, batches=2)
    tiered.worker.split(log.topic_id)
    # It waits where it records its segment, after it has looked which batches there are.
    race.held.execute("LOCK TABLE merged_segments IN EXCLUSIVE MODE")
    begin = race.start(tiered.worker.begin, log)
    race.hold("delete_records", log.topic_id, 0, 2)
    race.hold("prune_batches", 100)
    race.held.commit()
    with pytest.raises(TieredRangeGone, match="while its batches were planned"):
        result(begin)
    assert tiered.scene.sql("SELECT FROM merged_segments") == []
    plan = tiered.worker.merge(log)
    assert plan is not None, "nothing holds the partition"
    assert (plan.base_offset, plan.last_offset, len(plan.batches)) == (2, 3, 2)
