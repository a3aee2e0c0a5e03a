"""A claimed WAL file becomes one split file for each run of offsets, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID, uuid4

import pytest

from spark.tiering.split_file import BatchMismatch, Ended, check, runs, split_file
from tests.contract.conftest import Database
from tests.contract.tiering_world import ALL_OLD, DISKLESS, World
from tests.unit.kafka.segment_batches import Spec, build, sized
from tideline.control_plane.tiering_model import ClaimedBatch, ClaimedFile
from tideline.domain.ids import TopicIdPartition

TOPIC = UUID(int=7)


def claimed(
    base: int = 0, records: int = 1, at: int = 0, size: int = 100, log: int = 1, **more: object
) -> ClaimedBatch:
    return ClaimedBatch(
        **{
            "topic": "t", "topic_id": TOPIC, "partition": log, "log_id": log,
            "base_offset": base, "last_offset": base + records - 1, "byte_offset": at,
            "byte_size": size, "log_append_time": False, "append_time": 5, "max_timestamp": 1,
            "boundary_epoch": 3, **more,
        }
    )  # fmt: skip


def test_a_run_ends_where_offsets_are_missing_and_at_another_partition() -> None:
    batches = [claimed(4, 2), claimed(0, 3), claimed(3), claimed(9), claimed(6, log=2)]
    assert [[b.base_offset for b in run] for run in runs(batches)] == [[0, 3, 4], [9], [6]]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"byte_size": 200}, "bytes"),
        ({"last_offset": 14}, "records"),
        ({"max_timestamp": 77}, "max timestamp"),
    ],
)
def test_a_batch_that_is_not_what_was_committed_is_refused(
    wrong: dict[str, int], says: str
) -> None:
    raw = build(sized(3, 20), 0, -1)
    fits = {"base_offset": 10, "last_offset": 12, "byte_size": len(raw), "max_timestamp": 1_002}
    check(memoryview(raw), claimed(**fits), "wal/a")  # type: ignore[arg-type]
    with pytest.raises(BatchMismatch, match=f"wal/a .*{says}"):
        check(memoryview(raw), claimed(**fits | wrong), "wal/a")  # type: ignore[arg-type]


def test_a_damaged_batch_is_refused() -> None:
    raw = bytearray(build(sized(3, 20), 0, -1))
    batch = claimed(10, 3, size=len(raw), max_timestamp=1_002)
    raw[-1] ^= 1
    with pytest.raises(BatchMismatch, match="CRC"):
        check(memoryview(raw), batch, "wal/a")
    with pytest.raises(BatchMismatch, match="magic"):
        check(memoryview(bytes(len(raw))), batch, "wal/a")


@pytest.fixture(scope="module")
def worlds(database: Database) -> Iterator[Callable[[], World]]:
    with World.factory(database) as begin:
        yield begin


@pytest.fixture
def world(worlds: Callable[[], World]) -> World:
    return worlds()


def claim(world: World, worker: UUID, **more: int) -> list[ClaimedFile]:
    options = {"max_files": 10, "max_batches": 1_000, "claim_ms": 60_000} | more
    return world.plane.claim_wal_files(worker, cutoffs=world.cutoffs(), **options)


def test_a_file_of_many_partitions_becomes_a_file_for_each(world: World) -> None:
    one, two = world.born_diskless(2)
    old = world.migrated(boundary=10)
    world.append(
        (one, sized(2, 10)), (two, sized(1, 10)), (one, Spec((5,), log_append_time=1)),
        (old, sized(3, 10)), (two, sized(4, 10)),
    )  # fmt: skip
    worker = uuid4()
    (file,) = claim(world, worker)
    outcome = split_file(world.services(), worker, file)
    assert (outcome.ended, outcome.batches, outcome.split_files) == (Ended.DONE, 5, 3)
    split = [world.store.objects[DISKLESS, key] for key in world.store.keys(DISKLESS, "split/")]
    assert sorted(split) == sorted(world.expected(log) for log in (one, two, old))
    assert claim(world, worker) == [], "nothing is left to split"


def test_what_is_young_stays_and_what_is_old_around_it_is_split(world: World) -> None:
    (log,) = world.born_diskless()
    world.append((log, Spec((1,))), (log, Spec((90,))), (log, Spec((2,))))
    worker = uuid4()
    (file,) = world.plane.claim_wal_files(
        worker, max_files=1, max_batches=9, claim_ms=60_000, cutoffs={log.topic_id: 50}
    )
    outcome = split_file(world.services(), worker, file)
    assert (outcome.batches, outcome.split_files) == (2, 2)


def test_a_wrong_run_is_counted_and_the_others_do_not_wait_for_it(world: World) -> None:
    one, two = world.born_diskless(2)
    key = world.append((one, sized(2, 10)), (two, sized(2, 10)))
    body = bytearray(world.store.objects[DISKLESS, key])
    body[-1] ^= 1
    world.store.put(DISKLESS, key, bytes(body))
    worker = uuid4()
    for failures in (1, 2, 3):
        (file,) = claim(world, worker)
        outcome = split_file(world.services(), worker, file)
        assert outcome.ended == Ended.FAILED
        assert outcome.batches == (1 if failures == 1 else 0)
        assert "CRC" in str(outcome.error)
        assert claim(world, worker) == [], "it is not handed out again at once"
        world.expire_claims()
    assert claim(world, worker) == [], "after three failures it is parked"
    (status,) = [s for s in world.plane.tiering_status() if s.partition == two.partition]
    assert status.parked
    assert "CRC" in str(status.parked_reason)


def test_what_becomes_eligible_in_a_parked_file_goes_once_a_person_has_looked_at_it(
    world: World,
) -> None:
    """Seed 002, 10: persistent failures are left to a person. No other file waits with it."""
    (wrong,), (young,) = world.born_diskless(), world.born_diskless()
    key = world.append((young, sized(1, 10)), (wrong, sized(2, 10)))
    body = bytearray(world.store.objects[DISKLESS, key])
    body[-1] ^= 1
    world.store.put(DISKLESS, key, bytes(body))
    world.append((young, sized(3, 10)))
    worker = uuid4()

    def of(*logs: TopicIdPartition) -> list[ClaimedFile]:
        return world.plane.claim_wal_files(
            worker, max_files=10, max_batches=1_000, claim_ms=60_000,
            cutoffs={log.topic_id: ALL_OLD for log in logs},
        )  # fmt: skip

    for _ in range(3):
        (file,) = of(wrong)
        assert split_file(world.services(), worker, file).ended == Ended.FAILED
        world.expire_claims()
    (other,) = of(wrong, young)
    assert other.object_key != key
    assert split_file(world.services(), worker, other).ended == Ended.DONE
    assert of(wrong, young) == []
    (status,) = [s for s in world.plane.tiering_status() if s.topic_id == young.topic_id]
    assert status.parked, "the operator of the topic that waits sees it too"

    world.plane.resume_tiering(status.topic)
    (file,) = of(wrong, young)
    outcome = split_file(world.services(), worker, file)
    assert (outcome.ended, outcome.batches) == (Ended.FAILED, 1)
    (candidate,) = [c for c in world.plane.merge_candidates() if c.topic_id == young.topic_id]
    assert candidate.batches == 2


def test_a_missing_object_is_the_files_own_failure(world: World) -> None:
    (log,) = world.born_diskless()
    key = world.append((log, sized(2, 10)))
    world.store.delete(DISKLESS, [key])
    worker = uuid4()
    (file,) = claim(world, worker)
    outcome = split_file(world.services(), worker, file)
    assert outcome.ended == Ended.FAILED
    assert "no such object" in str(outcome.error)


def test_of_two_workers_on_one_file_one_counts(world: World) -> None:
    (log,) = world.born_diskless()
    world.append((log, sized(2, 10)))
    first, second = uuid4(), uuid4()
    (slow,) = claim(world, first)
    assert claim(world, second) == [], "a claim holds"
    world.expire_claims()
    (taken,) = claim(world, second)
    assert split_file(world.services(), first, slow).ended == Ended.STALE
    assert split_file(world.services(), second, taken).ended == Ended.DONE
    assert split_file(world.services(), first, slow).ended == Ended.STALE
    (candidate,) = world.plane.merge_candidates()
    assert (candidate.files, candidate.batches) == (1, 1)


def test_only_topics_with_a_cutoff_and_only_what_is_older_is_claimed(world: World) -> None:
    (one,) = world.born_diskless()
    (two,) = world.born_diskless()
    world.append((one, Spec((1,))), (two, Spec((1,))))
    (file,) = world.plane.claim_wal_files(
        uuid4(), max_files=1, max_batches=9, claim_ms=60_000, cutoffs={one.topic_id: ALL_OLD}
    )
    assert {batch.log for batch in file.batches} == {one}
