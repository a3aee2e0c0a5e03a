"""Where a store lets the end of an earlier, partial PUT win, no source goes before its segment was
seen whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark.gc.merged import MergedLook, look_at, note
from tests.contract.test_merged_segments_made import merge_everything, split_everything
from tests.contract.tiering_world import DISKLESS, TIERED, MemoryStore, World
from tests.unit.kafka.segment_batches import Spec
from tideline.control_plane.tiering_model import SEGMENT_SUFFIXES
from tideline.domain.ids import TopicIdPartition

HOUR_MS = 3_600_000
BESIDE = (".timeindex", ".snapshot", ".leader-epoch-checkpoint")


class LateStore(MemoryStore):
    """Each object is put twice: of the first attempt only the head has come, and it ends when the
    test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.at_once: str | None = None
        """The first put of a key with this suffix is followed by the end of its late attempt."""
        self.lost: dict[tuple[str, str], bytes] = {}

    def put(self, bucket: str, key: str, body: bytes) -> None:
        super().put(bucket, key, body)
        if self.at_once is not None and key.endswith(self.at_once):
            self.at_once = None
            self.end_late(key)

    def end_late(self, key: str) -> None:
        """The late attempt ends, and what came of it, nothing, takes the whole one's place."""
        self.lost[TIERED, key] = self.objects[TIERED, key]
        self.objects[TIERED, key] = b""


@pytest.fixture
def world(worlds: Callable[[], World]) -> World:
    made = worlds()
    made.store = LateStore()
    return made


def merged(world: World) -> TopicIdPartition:
    (log,) = world.born_diskless(1)
    for n in range(3):
        world.append((log, Spec((1_000 + n,), producer_id=7)))
    split_everything(world)
    merge_everything(world, 1 << 30)
    return log


def looked(world: World, grace_ms: int = 0) -> MergedLook:
    """What a run of the collection does before anything is due."""
    unseen = world.plane.unseen_segments(grace_ms, 1_000)
    return note(world.plane, unseen, list(look_at(world.store, TIERED, unseen)))


def store_of(world: World) -> LateStore:
    assert isinstance(world.store, LateStore)
    return world.store


@pytest.mark.parametrize("suffix", [".log", *BESIDE])
def test_a_segment_that_is_cut_behind_its_upload_is_not_counted_and_made_again(
    world: World, suffix: str
) -> None:
    store_of(world).at_once = suffix
    log = merged(world)
    assert store_of(world).lost, "the late attempt came before the segment was looked at"
    assert world.merged(log) == b""
    assert world.rows_left() == 3
    world.expire_claims()
    merge_everything(world, 1 << 30)
    assert world.merged(log) == world.expected(log)
    assert world.rows_left() == 0


@pytest.mark.parametrize("suffix", [".log", *BESIDE])
def test_sources_of_a_segment_that_was_cut_later_stay_until_it_is_whole_again(
    world: World, suffix: str
) -> None:
    log = merged(world)
    sources = world.store.keys(DISKLESS)
    (key,) = (key for key in world.store.keys(TIERED) if key.endswith(suffix))
    store_of(world).end_late(key)
    for _ in range(2):
        (why,) = looked(world).not_whole
        assert f"{suffix} has 0 bytes, not {len(store_of(world).lost[TIERED, key])}" in why
        assert world.plane.claim_dead_files(0) == []
        assert not any(a.objects for a in world.plane.measure_garbage(1, 0, 0))
    assert world.store.keys(DISKLESS) == sources
    world.store.objects |= store_of(world).lost
    assert looked(world) == MergedLook(1, ())
    assert sorted(world.plane.claim_dead_files(0)) == sources
    assert world.merged(log) == world.expected(log)


def test_nothing_goes_before_a_segment_was_looked_at_and_that_is_not_before_a_grace(
    world: World,
) -> None:
    merged(world)
    assert world.plane.claim_dead_files(0) == []
    assert looked(world, HOUR_MS) == MergedLook(0, ()), "an upload may be under way yet"
    assert world.plane.claim_dead_files(0) == []
    assert looked(world) == MergedLook(1, ())
    assert len(world.plane.claim_dead_files(0)) == 3
    assert looked(world) == MergedLook(0, ()), "each is looked at once"


def test_one_that_is_not_whole_holds_what_died_before_it_no_longer_than_another(
    world: World,
) -> None:
    """The collection goes on with what died a minute before the oldest of them was merged."""
    merged(world)
    assert looked(world).looked_at == 1
    world.scene.sql(
        "UPDATE wal_files SET unreferenced_at = now() - interval '1 hour' RETURNING file_id"
    )
    assert len(world.plane.claim_dead_files(0)) == 3
    merged(world)
    assert len(world.plane.claim_dead_files(0)) == 3


def test_a_segment_that_expires_holds_nothing_any_more(world: World) -> None:
    log = merged(world)
    (key,) = (key for key in world.store.keys(TIERED) if key.endswith(".log"))
    store_of(world).end_late(key)
    assert looked(world).problem is not None
    assert world.plane.delete_records(log.topic_id, log.partition, 3) == 3
    world.plane.mark_dead_objects(0)
    assert looked(world) == MergedLook(0, ())
    assert len(world.plane.claim_dead_files(0)) == 3
    assert len(world.plane.claim_dead_objects(0)) == len(SEGMENT_SUFFIXES)


def test_what_is_wrong_is_told_with_what_stays_and_not_without_end() -> None:
    look = MergedLook(9, tuple(f"orders/0/{n}: .log has 0 bytes, not 300" for n in range(7)))
    assert look.problem is not None
    assert "7 merged segments are not what was sent: orders/0/0: .log has 0 bytes" in look.problem
    assert "and 2 more" in look.problem
    assert "What they were merged from stays" in look.problem
