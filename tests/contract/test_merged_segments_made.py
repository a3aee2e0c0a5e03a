"""Split files become segments that hold exactly what was produced, whoever is killed meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID, uuid4

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark.tiering import log_upload, segment_build
from spark.tiering import merge_partition as merging
from spark.tiering.merge_partition import merge_partition
from spark.tiering.outcomes import Ended, MergeOutcome
from spark.tiering.split_files import split
from spark.tiering.wal_reads import in_segment
from spark.tiering.whole_objects import WholeObjects
from tests.contract.tiering_world import (
    DISKLESS,
    EPOCH,
    TIERED,
    Killed,
    Mortal,
    World,
    files_of,
    order,
)
from tests.support.waiting import WITHIN_S, set_within, until
from tests.unit.kafka.segment_batches import Spec, sized, spec_lists
from tests.unit.spark.test_whole_objects import full_disk
from tideline.control_plane.errors import TieredRangeGone
from tideline.control_plane.jobs import JobsControlPlane
from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import EpochStart
from tideline.kafka.batches import iter_batches
from tideline.kafka.segment_files import (
    SegmentFile,
    decode_leader_epochs,
    decode_snapshot,
    object_keys,
)
from tideline.kafka.segment_lookup import (
    SegmentExtent,
    position_for_offset,
    position_for_timestamp,
)
from tideline.object_store.client import ObjectTruncated


def split_everything(world: World, services: object | None = None) -> None:
    hands = services or world.services()
    worker = uuid4()
    while claimed := hands.plane.claim_wal_files(  # type: ignore[attr-defined]
        worker, max_files=2, max_batches=5, claim_ms=60_000, cutoffs=world.cutoffs()
    ):
        for _ in split(hands, worker, claimed, time.monotonic()):  # type: ignore[arg-type]
            pass


def merge_everything(world: World, limit_bytes: int, services: object | None = None) -> None:
    hands = services or world.services()
    worker = uuid4()
    for candidate in hands.plane.merge_candidates():  # type: ignore[attr-defined]
        wanted = order(candidate, limit_bytes)
        for _ in merge_partition(hands, worker, wanted, claim_ms=60_000):  # type: ignore[arg-type]
            pass


def check_segments(world: World, log: TopicIdPartition, limit_bytes: int) -> None:
    """Every object is there and agrees; every record is found through the indexes."""
    for row in world.plane.merged_segments(*world.plane.log_id_range()):
        if row.log != log or row.state != "COPY_SEGMENT_FINISHED":
            continue
        data = {
            file: world.store.objects[TIERED, key]
            for file, key in object_keys(row.object_key_stem).items()
        }
        body = data[SegmentFile.LOG]
        headers = list(iter_batches(body))
        assert (row.size_bytes, row.batch_count) == (len(body), len(headers))
        assert row.size_bytes <= limit_bytes or row.batch_count == 1
        without = sum(h.last_offset - h.base_offset + 1 for h in headers if h.is_empty)
        assert row.record_count == row.last_offset - row.base_offset + 1 - without
        assert row.max_timestamp == max(h.max_timestamp for h in headers)
        assert row.offset_index_bytes == len(data[SegmentFile.OFFSET_INDEX])
        assert row.time_index_bytes == len(data[SegmentFile.TIME_INDEX])
        extent = SegmentExtent(row.base_offset, row.last_offset, len(body))
        index, timeindex = data[SegmentFile.OFFSET_INDEX], data[SegmentFile.TIME_INDEX]
        for header in headers:
            at = position_for_offset(index, extent, header.last_offset)
            assert at <= header.position
            assert at in {h.position for h in headers}
        for timestamp in {h.max_timestamp for h in headers} | {0, row.max_timestamp + 1}:
            at = position_for_timestamp(index, timeindex, extent, timestamp)
            first = next((h for h in headers if h.max_timestamp >= timestamp), None)
            assert at <= (first.position if first else len(body))
        newest = {h.producer_id: h for h in headers if h.producer_id >= 0}
        remembered = {e.producer_id: e for e in decode_snapshot(data[SegmentFile.SNAPSHOT])}
        for producer, header in newest.items():
            assert remembered[producer].last_offset == header.last_offset
            assert remembered[producer].last_sequence == header.last_sequence


def check_records(world: World, log: TopicIdPartition) -> None:
    """Decoded, the records are those that were produced."""
    for batch in world.appended[log]:
        there = list(DefaultRecordBatch(batch.stored))
        sent = list(DefaultRecordBatch(batch.raw))
        assert [(r.key, r.value) for r in there] == [(r.key, r.value) for r in sent]
        offsets = range(batch.base_offset, batch.last_offset + 1)
        assert [r.offset for r in there] == (list(offsets) if sent else [])


def check_whole(world: World, logs: list[TopicIdPartition], limit_bytes: int) -> None:
    """All is merged, byte for byte; nothing else is left in Postgres and S3 after gc."""
    for log in logs:
        assert world.merged(log) == world.expected(log)
        check_segments(world, log, limit_bytes)
        check_records(world, log)
    assert world.rows_left() == 0
    world.collect()
    segments = list(world.plane.merged_segments(*world.plane.log_id_range()))
    keys = [key for row in segments for key in object_keys(row.object_key_stem).values()]
    assert world.store.keys(TIERED) == sorted(keys)
    assert world.store.keys(DISKLESS) == []


LIMITS = st.sampled_from([400, 5_000, 1 << 30])
QUICK = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@given(specs=spec_lists(max_batches=24), per_file=st.integers(1, 9), limit=LIMITS)
@QUICK
def test_any_wal_files_become_segments_of_the_same_records(
    worlds: Callable[[], World], specs: list[Spec], per_file: int, limit: int
) -> None:
    world = worlds()
    logs = [*world.born_diskless(2), world.migrated(boundary=10, seeded=[4_000])]
    for file in files_of(logs, specs, per_file):
        world.append(*file)
    split_everything(world)
    merge_everything(world, limit)
    check_whole(world, [log for log in logs if world.appended[log]], limit)


@given(
    specs=spec_lists(max_batches=12),
    limit=LIMITS,
    deaths=st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=4),
)
@settings(QUICK, max_examples=25)
def test_killed_anywhere_and_begun_again_nothing_is_lost_or_twice_or_leaked(
    worlds: Callable[[], World],
    specs: list[Spec],
    limit: int,
    deaths: list[tuple[int, bool]],
) -> None:
    world = worlds()
    logs = [*world.born_diskless(1), world.migrated(boundary=10)]
    for file in files_of(logs, specs, 4):
        world.append(*file)
    for calls, answered in deaths:
        left = calls

        def tick(after: bool, answered: bool = answered) -> None:
            nonlocal left
            if after == answered:
                left -= 1
                if left < 0:
                    raise Killed

        hands = world.services(Mortal(world.plane, tick), Mortal(world.store, tick))
        try:
            split_everything(world, hands)
            merge_everything(world, limit, hands)
        except Killed:
            world.expire_claims()
    split_everything(world)
    merge_everything(world, limit)
    check_whole(world, [log for log in logs if world.appended[log]], limit)


@pytest.mark.parametrize("file", [file for file in SegmentFile if file is not SegmentFile.LOG])
def test_a_log_is_there_only_beside_its_whole_set(world: World, file: SegmentFile) -> None:
    """Whoever finds a `.log` takes the segment for whole: it comes when the others have."""

    class Dying:
        """The worker's store, until the worker is killed as it puts ``file``."""

        def __getattr__(self, name: str) -> Any:
            return getattr(world.store, name)

        def put(self, bucket: str, key: str, body: bytes) -> None:
            if bucket == TIERED and key.endswith(file):
                raise Killed
            world.store.put(bucket, key, body)

    (log,) = world.born_diskless()
    world.append((log, sized(1, 400)))
    split_everything(world)
    with pytest.raises(Killed):
        merge_everything(world, 1 << 30, world.services(store=Dying()))
    assert not [key for key in world.store.keys(TIERED) if key.endswith(SegmentFile.LOG)]
    world.expire_claims()
    merge_everything(world, 1 << 30)
    check_whole(world, [log], 1 << 30)


def test_a_checkpoint_has_the_epochs_of_the_prefix_that_its_order_names(world: World) -> None:
    log = world.migrated(boundary=10)
    world.append((log, sized(1, 400)))
    split_everything(world)
    (candidate,) = world.plane.merge_candidates()
    lineage = (EpochStart(0, 0), EpochStart(2, 4), EpochStart(EPOCH, 10))
    wanted = replace(order(candidate), lineage=lineage)
    for _ in merge_partition(world.services(), uuid4(), wanted, claim_ms=60_000):
        pass
    (key,) = [k for k in world.store.keys(TIERED) if k.endswith(SegmentFile.LEADER_EPOCHS)]
    assert decode_leader_epochs(world.store.objects[TIERED, key]) == lineage


def test_a_segment_is_no_larger_than_its_limit(world: World) -> None:
    (log,) = world.born_diskless()
    for _ in range(6):
        world.append((log, sized(1, 400)), (log, sized(1, 400)))
    split_everything(world)
    merge_everything(world, 1_500)
    rows = list(world.plane.merged_segments(*world.plane.log_id_range()))
    assert [row.batch_count for row in rows] == [3, 3, 3, 3], "cut inside split files too"
    assert world.merged(log) == world.expected(log)


def test_one_more_segment_is_made_only_of_enough(world: World) -> None:
    (log,) = world.born_diskless()
    for _ in range(5):
        world.append((log, sized(1, 400)))
    split_everything(world)
    (candidate,) = world.plane.merge_candidates()
    size = candidate.bytes // 5
    wanted = order(candidate, 2 * size)
    scheduled = type(wanted)(
        **{
            **{name: getattr(wanted, name) for name in wanted.__dataclass_fields__},
            "requested": False,
            "enough_bytes": 2 * size,
        }
    )
    made = list(merge_partition(world.services(), uuid4(), scheduled, claim_ms=60_000))
    assert [outcome.batches for outcome in made] == [2, 2]
    assert world.rows_left() == 1


def test_of_two_workers_on_one_partition_one_counts(world: World) -> None:
    (log,) = world.born_diskless()
    world.append((log, sized(3, 50)))
    split_everything(world)
    (candidate,) = world.plane.merge_candidates()
    taken: list[str] = []

    class Slow:
        """The first worker loses its claim while it uploads."""

        def __init__(self) -> None:
            self.store = world.store

        def __getattr__(self, name: str) -> object:
            return getattr(self.store, name)

        def put(self, bucket: str, key: str, body: bytes) -> None:
            self.store.put(bucket, key, body)
            if key.endswith(".log") and not taken:
                world.expire_claims()
                taken.extend(
                    outcome.ended
                    for outcome in merge_partition(
                        world.services(), uuid4(), order(candidate), claim_ms=60_000
                    )
                )

    (slow,) = merge_partition(
        world.services(store=Slow()), uuid4(), order(candidate), claim_ms=60_000
    )
    assert (taken, slow.ended) == ([Ended.DONE], Ended.STALE)
    check_whole(world, [log], 1 << 30)


def test_records_deleted_meanwhile_end_the_merge_quietly(world: World) -> None:
    (log,) = world.born_diskless()
    world.append((log, sized(3, 50)))
    split_everything(world)
    (candidate,) = world.plane.merge_candidates()

    class Deleting(Mortal):
        pass

    def tick(after: bool) -> None:
        world.plane.delete_records(log.topic_id, log.partition, -1)

    hands = world.services(store=Deleting(world.store, tick))
    (gone,) = merge_partition(hands, uuid4(), order(candidate), claim_ms=60_000)
    assert gone.ended == Ended.STALE
    assert world.scene.sql("SELECT count(*) FROM tiering_failures") == [(0,)]
    world.collect()
    assert world.store.objects == {}


def merged_once(world: World, log: TopicIdPartition, limit: int = 1 << 30) -> list[MergeOutcome]:
    (candidate,) = [c for c in world.plane.merge_candidates() if c.log == log]
    return list(
        merge_partition(world.services(), uuid4(), order(candidate, limit), claim_ms=60_000)
    )


def damage(world: World, key: str) -> None:
    body = bytearray(world.store.objects[DISKLESS, key])
    body[-1] ^= 1
    world.store.put(DISKLESS, key, bytes(body))


def test_what_lies_before_a_wrong_batch_is_merged_and_the_partition_is_parked_there(
    world: World,
) -> None:
    """Seed 002, 10: persistent failures are left to a person. No other partition waits with it."""
    wrong, right = world.born_diskless(2)
    world.append((wrong, sized(3, 50)))
    key = world.append((right, sized(3, 50)), (wrong, sized(3, 50)))
    world.append((wrong, sized(3, 50)), (right, sized(3, 50)))
    damage(world, key)
    split_everything(world)
    done, failed = merged_once(world, wrong)
    assert (done.ended, done.base_offset, done.last_offset) == (Ended.DONE, 0, 2)
    assert (failed.ended, failed.base_offset) == (Ended.FAILED, 3)
    assert [o.ended for o in merged_once(world, right)] == [Ended.DONE]
    for _ in range(2):
        assert world.plane.merge_candidates() == [], "it is not handed out again at once"
        world.expire_claims()
        (failed,) = merged_once(world, wrong)
        assert failed.ended == Ended.FAILED
        assert f"{key} [" in str(failed.error)
        assert "offsets [3, 5]" in str(failed.error)
        assert "CRC" in str(failed.error)
    world.expire_claims()
    assert world.plane.merge_candidates() == [], "after three failures it is parked"
    (status,) = [s for s in world.plane.tiering_status() if s.parked]
    assert status.log == wrong
    assert "CRC" in str(status.parked_reason)
    assert world.merged(right) == world.expected(right)
    assert world.store.keys(DISKLESS), "the object with the wrong batch stays"

    damage(world, key)
    world.plane.resume_tiering(status.topic)
    assert [o.ended for o in merged_once(world, wrong)] == [Ended.DONE]
    check_whole(world, [wrong, right], 1 << 30)


def test_a_batch_that_changes_behind_its_check_fails_the_partition_and_nothing_appears(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what else of it is not as it was read: it is no place to end early."""
    (log,) = world.born_diskless()
    world.append((log, sized(3, 50)))
    world.append(*[(log, sized(3, 50))] * 3)
    split_everything(world)

    def changed(*asked: object) -> Iterator[memoryview]:
        for piece in in_segment(*asked):  # type: ignore[arg-type]
            if len(list(iter_batches(piece))) > 1:
                piece[-1] ^= 1
            yield piece

    with monkeypatch.context() as broken:
        broken.setattr(segment_build, "in_segment", changed)
        (failed,) = merged_once(world, log)
    assert failed.ended == Ended.FAILED
    assert "CRC" in str(failed.error)
    assert not [key for key in world.store.keys(TIERED) if key.endswith(SegmentFile.LOG)]
    assert world.merged(log) == b""
    world.expire_claims()
    assert [o.ended for o in merged_once(world, log)] == [Ended.DONE]
    check_whole(world, [log], 1 << 30)


def test_a_missing_object_is_the_partitions_own_failure(world: World) -> None:
    (log,) = world.born_diskless()
    world.store.delete(DISKLESS, [world.append((log, sized(2, 10)))])
    split_everything(world)
    (failed,) = merged_once(world, log)
    assert failed.ended == Ended.FAILED
    assert "no such object" in str(failed.error)


@pytest.mark.parametrize("left", [1.5, 1, 0.5, 0], ids="{} batches are left".format)
def test_an_object_that_is_cut_short_is_the_failure_of_the_partitions_behind_the_cut(
    world: World, left: float
) -> None:
    first, cut, another = world.born_diskless(3)
    key = world.append(*((log, sized(2, 10)) for log in (first, cut)))
    world.append((another, sized(2, 10)))
    split_everything(world)
    whole = world.store.objects[DISKLESS, key]
    world.store.put(DISKLESS, key, whole[: int(len(whole) / 2 * left)])
    (failed,) = merged_once(world, cut)
    assert failed.ended == Ended.FAILED
    assert f"{key} [{len(whole) // 2}, {len(whole)})" in str(failed.error)
    assert [o.ended for o in merged_once(world, first)] == [
        Ended.DONE if left >= 1 else Ended.FAILED
    ]
    assert [o.ended for o in merged_once(world, another)] == [Ended.DONE]
    world.store.put(DISKLESS, key, whole)
    world.expire_claims()
    merge_everything(world, 1 << 30)
    check_whole(world, [first, cut, another], 1 << 30)


def test_of_a_read_that_an_objects_end_cuts_what_lies_before_it_is_merged(world: World) -> None:
    (log,) = world.born_diskless()
    key = world.append(*[(log, sized(2, 10))] * 3)
    split_everything(world)
    whole = world.store.objects[DISKLESS, key]
    world.store.put(DISKLESS, key, whole[:-1])
    done, failed = merged_once(world, log)
    assert (done.ended, done.last_offset) == (Ended.DONE, 3)
    assert (failed.ended, failed.base_offset) == (Ended.FAILED, 4)


def test_a_body_that_was_cut_on_its_way_is_asked_for_again(world: World) -> None:
    (log,) = world.born_diskless()
    world.append((log, sized(2, 10)))
    split_everything(world)
    (candidate,) = world.plane.merge_candidates()
    asked: list[str] = []

    class Cut:
        def __getattr__(self, name: str) -> object:
            return getattr(world.store, name)

        def get(self, bucket: str, key: str, start: int, size: int) -> bytes:
            asked.append(key)
            if len(asked) == 1:
                raise ObjectTruncated("the connection broke")
            return world.store.get(bucket, key, start, size)

    (done,) = merge_partition(
        world.services(store=Cut()), uuid4(), order(candidate), claim_ms=60_000
    )
    assert (done.ended, len(asked)) == (Ended.DONE, 2)


def test_segments_are_made_of_ranges_where_the_disk_takes_no_whole_objects(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log,) = world.born_diskless()
    world.append(*[(log, sized(2, 10))] * 3)
    split_everything(world)
    (candidate,) = world.plane.merge_candidates()
    full_disk(monkeypatch)
    services = world.services()
    read = WholeObjects(tmp_path, services.read_object, services.read_range).read
    (done,) = merge_partition(services, uuid4(), order(candidate), claim_ms=60_000, read=read)
    assert done.ended == Ended.DONE
    assert [path for path in tmp_path.iterdir() if path.suffix != ".lock"] == []
    check_whole(world, [log], 1 << 30)


def test_what_retention_prunes_while_a_merge_is_planned_is_no_failure(world: World) -> None:
    (log,) = world.born_diskless()
    world.append((log, sized(2, 10)))
    split_everything(world)
    (candidate,) = world.plane.merge_candidates()

    class Pruned:
        def __getattr__(self, name: str) -> object:
            return getattr(world.plane, name)

        def begin_merge(self, *_: object) -> object:
            raise TieredRangeGone("TL025", "retention has removed it")

    made = merge_partition(world.services(Pruned()), uuid4(), order(candidate), claim_ms=60_000)
    assert list(made) == []


def test_a_claim_is_given_back_whatever_ends_the_task(world: World) -> None:
    (log,) = world.born_diskless()
    world.append((log, sized(2, 10)))
    split_everything(world)
    (candidate,) = world.plane.merge_candidates()

    def broken(_: object) -> NoReturn:
        raise OSError("the disk is broken")

    run = uuid4()
    with pytest.raises(OSError, match="the disk is broken"):
        list(merge_partition(world.services(), run, order(candidate), claim_ms=60_000, read=broken))
    assert world.plane.merge_claimed_for(log, run) == 0
    assert world.scene.sql("SELECT count(*) FROM tiering_failures") == [(0,)]
    assert [o.ended for o in merged_once(world, log)] == [Ended.DONE], "nobody waits for it"


def test_an_object_that_another_ones_merge_has_set_free_is_no_failure(world: World) -> None:
    (log,) = world.born_diskless()
    key = world.append((log, sized(3, 50)))
    split_everything(world)
    (candidate,) = world.plane.merge_candidates()

    class Late:
        """Reads when the other one has merged, and gc has collected."""

        def __getattr__(self, name: str) -> object:
            return getattr(world.store, name)

        def get(self, *asked: object) -> bytes:
            world.expire_claims()
            assert [o.ended for o in merged_once(world, log)] == [Ended.DONE]
            world.collect()
            assert key not in world.store.keys(DISKLESS)
            return world.store.get(*asked)  # type: ignore[arg-type]

    (late,) = merge_partition(
        world.services(store=Late()), uuid4(), order(candidate), claim_ms=60_000
    )
    assert late.ended == Ended.STALE
    assert world.scene.sql("SELECT count(*) FROM tiering_failures") == [(0,)]


def test_segments_side_by_side_and_in_parts_are_those_of_one_after_the_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_upload, "PART_BYTES", 2_000)
    (log,) = world.born_diskless()
    for n in range(20):
        world.append(*((log, Spec((n, n + 1), producer_id=7, base_sequence=4 * n + 2 * k,
                                  value_bytes=900)) for k in range(2)))  # fmt: skip
    split_everything(world)
    begun: list[int] = []

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(world.plane, name)

        def begin_merge(self, *asked: object) -> object:
            plans = world.plane.begin_merge(*asked)  # type: ignore[arg-type]
            begun.append(len(plans))
            return plans

    (candidate,) = world.plane.merge_candidates()
    made = list(
        merge_partition(
            world.services(Counting()), uuid4(), order(candidate, 8_000), claim_ms=60_000
        )
    )
    assert begun[0] == merging.SEGMENTS_AT_ONCE
    assert len(made) > 6
    assert len(begun) < len(made)
    check_whole(world, [log], 8_000)
    assert world.store.parts == {}


def test_a_claim_is_held_while_its_segment_is_built_and_another_attempt_waits_for_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "WAIT_S", 0.02)
    (log,) = world.born_diskless()
    world.append((log, sized(3, 50)))
    split_everything(world)
    (candidate,) = world.plane.merge_candidates()
    ahead, waited, run = threading.Event(), threading.Event(), uuid4()
    lefts: list[int] = []

    def renewals() -> int:
        return sum(left > before for before, left in pairwise(lefts))

    class Slow:
        def __getattr__(self, name: str) -> object:
            return getattr(world.store, name)

        def get(self, *asked: object) -> bytes:
            ahead.set()
            set_within("the other attempt to wait", waited, WITHIN_S)
            return world.store.get(*asked)  # type: ignore[arg-type]

    class Looking:
        def __getattr__(self, name: str) -> object:
            return getattr(second, name)

        def merge_claimed_for(self, log: TopicIdPartition, worker: UUID) -> int:
            lefts.append(left := second.merge_claimed_for(log, worker))
            if renewals() == 2:
                waited.set()
            return left

    def slow() -> list[MergeOutcome]:
        return list(
            merge_partition(world.services(store=Slow()), run, order(candidate), claim_ms=10_000)
        )

    with (
        ThreadPoolExecutor(1) as pool,
        closing(JobsControlPlane(world.settings, "second-attempt")) as second,
    ):
        first = pool.submit(slow)
        set_within("the first attempt to read", ahead, WITHIN_S)
        another = merge_partition(world.services(), uuid4(), order(candidate), claim_ms=10_000)
        assert list(another) == [], "another run waits for nobody"
        again = list(
            merge_partition(world.services(Looking()), run, order(candidate), claim_ms=10_000)
        )
        until("the first attempt to end", first.done)
        assert [o.ended for o in first.result()] == [Ended.DONE]
    assert again == []
    assert renewals() >= 2, "the claim was held while its segment was built"
    assert not any(lefts[lefts.index(0) :]), "it was waited for until it ended"
    check_whole(world, [log], 1 << 30)
