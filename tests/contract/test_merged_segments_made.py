"""Split files become segments that hold exactly what was produced, whoever is killed meanwhile."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark.tiering.merge_partition import WORKSPACE, merge_partition, read_ahead, workspace
from spark.tiering.split_file import Ended, split_file
from tests.contract.conftest import Database
from tests.contract.tiering_world import (
    DISKLESS,
    TIERED,
    Killed,
    Mortal,
    World,
    files_of,
    order,
)
from tests.unit.kafka.segment_batches import Spec, sized, spec_lists
from tideline.domain.ids import TopicIdPartition
from tideline.kafka.batches import iter_batches
from tideline.kafka.segment_files import SegmentFile, decode_snapshot, object_keys
from tideline.kafka.segment_lookup import (
    SegmentExtent,
    position_for_offset,
    position_for_timestamp,
)


@pytest.fixture(scope="module")
def worlds(database: Database) -> Iterator[Callable[[], World]]:
    """A world that begins anew each time it is asked for."""
    with World.factory(database) as begin:
        yield begin


@pytest.fixture
def world(worlds: Callable[[], World]) -> World:
    return worlds()


def split_everything(world: World, services: object | None = None) -> None:
    hands = services or world.services()
    worker = uuid4()
    while claimed := hands.plane.claim_wal_files(  # type: ignore[attr-defined]
        worker, max_files=2, max_batches=5, claim_ms=60_000, cutoffs=world.cutoffs()
    ):
        for file in claimed:
            split_file(hands, worker, file)  # type: ignore[arg-type]


def merge_everything(
    world: World, limit_bytes: int, root: Path, services: object | None = None
) -> None:
    hands = services or world.services()
    worker = uuid4()
    for candidate in hands.plane.merge_candidates():  # type: ignore[attr-defined]
        wanted = order(candidate, limit_bytes)
        for _ in merge_partition(hands, worker, wanted, claim_ms=60_000, root=root):  # type: ignore[arg-type]
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
    with tempfile.TemporaryDirectory() as root:
        split_everything(world)
        merge_everything(world, limit, Path(root))
        assert list(Path(root).iterdir()) == [], "nothing is left on the executor's disk"
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
    with tempfile.TemporaryDirectory() as root:
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
                merge_everything(world, limit, Path(root), hands)
            except Killed:
                world.expire_claims()
        split_everything(world)
        merge_everything(world, limit, Path(root))
    check_whole(world, [log for log in logs if world.appended[log]], limit)


def test_a_segment_is_no_larger_than_its_limit(world: World, tmp_path: Path) -> None:
    (log,) = world.born_diskless()
    for _ in range(6):
        world.append((log, sized(1, 400)), (log, sized(1, 400)))
    split_everything(world)
    merge_everything(world, 1_500, tmp_path)
    rows = list(world.plane.merged_segments(*world.plane.log_id_range()))
    assert [row.batch_count for row in rows] == [3, 3, 3, 3], "cut inside split files too"
    assert world.merged(log) == world.expected(log)


def test_one_more_segment_is_made_only_of_enough(world: World, tmp_path: Path) -> None:
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
    made = list(
        merge_partition(world.services(), uuid4(), scheduled, claim_ms=60_000, root=tmp_path)
    )
    assert [outcome.batches for outcome in made] == [2, 2]
    assert world.rows_left() == 1


def test_of_two_workers_on_one_partition_one_counts(world: World, tmp_path: Path) -> None:
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

        def upload_file(self, bucket: str, key: str, path: Path) -> None:
            self.store.upload_file(bucket, key, path)
            if key.endswith(".log") and not taken:
                world.expire_claims()
                taken.extend(
                    outcome.ended
                    for outcome in merge_partition(
                        world.services(), uuid4(), order(candidate), claim_ms=60_000, root=tmp_path
                    )
                )

    (slow,) = merge_partition(
        world.services(store=Slow()), uuid4(), order(candidate), claim_ms=60_000, root=tmp_path
    )
    assert (taken, slow.ended) == ([Ended.DONE], Ended.STALE)
    check_whole(world, [log], 1 << 30)


def test_records_deleted_meanwhile_end_the_merge_quietly(world: World, tmp_path: Path) -> None:
    (log,) = world.born_diskless()
    world.append((log, sized(3, 50)))
    split_everything(world)
    (candidate,) = world.plane.merge_candidates()

    class Deleting(Mortal):
        pass

    def tick(after: bool) -> None:
        world.plane.delete_records(log.topic_id, log.partition, -1)

    hands = world.services(store=Deleting(world.store, tick))
    (gone,) = merge_partition(hands, uuid4(), order(candidate), claim_ms=60_000, root=tmp_path)
    assert gone.ended == Ended.STALE
    assert world.scene.sql("SELECT count(*) FROM tiering_failures") == [(0,)]
    world.collect()
    assert world.store.objects == {}


def test_a_wrong_split_file_is_counted_and_then_parked(world: World, tmp_path: Path) -> None:
    (log,) = world.born_diskless()
    world.append((log, sized(3, 50)))
    split_everything(world)
    (candidate,) = world.plane.merge_candidates()
    (key,) = world.store.keys(DISKLESS, "split/")
    world.store.put(DISKLESS, key, world.store.objects[DISKLESS, key][:-1])
    for _ in range(3):
        (failed,) = merge_partition(
            world.services(), uuid4(), order(candidate), claim_ms=60_000, root=tmp_path
        )
        assert failed.ended == Ended.FAILED
        assert "bytes" in str(failed.error)
        world.expire_claims()
    assert world.plane.merge_candidates() == []
    (status,) = world.plane.tiering_status()
    assert status.parked


def test_what_a_killed_process_left_on_disk_goes_with_the_next(tmp_path: Path) -> None:
    dead = tmp_path / f"{WORKSPACE}dead"
    dead.mkdir()
    (dead / ".in-use").touch()
    with workspace(tmp_path) as first:
        assert not dead.exists()
        with workspace(tmp_path) as second:
            assert first.exists(), "one that is in use stays"
            assert first != second
    assert list(tmp_path.iterdir()) == []


def test_reading_ahead_keeps_the_order_and_the_bound() -> None:
    sizes = [5, 1, 9, 2, 2, 30, 1]
    outstanding: list[str] = []

    def get(key: str) -> bytes:
        outstanding.append(key)
        return key.encode()

    objects = [(str(n), size) for n, size in enumerate(sizes)]
    found = read_ahead(objects, get, window_bytes=10)
    assert next(found) == b"0"
    assert set(outstanding) <= {"0", "1", "2"}
    assert list(found) == [str(n).encode() for n in range(1, len(sizes))]


def test_reading_ahead_fails_where_the_object_is() -> None:
    def get(key: str) -> bytes:
        if key == "1":
            raise KeyError(key)
        return b"x"

    found = read_ahead([("0", 1), ("1", 1), ("2", 1)], get)
    assert next(found) == b"x"
    with pytest.raises(KeyError):
        next(found)
