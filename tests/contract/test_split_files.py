"""A claimed WAL file is split where it lies: its runs of offsets are recorded, nothing is
copied."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from spark.tiering import split_files
from spark.tiering.outcomes import Ended, SplitOutcome
from spark.tiering.split_files import SplitOrder, Splitter, runs, split
from tests.contract.tiering_world import World
from tests.unit.kafka.segment_batches import Spec, sized
from tideline.control_plane.tiering_model import ClaimedBatch, ClaimedFile, SplitRun

TOPIC = UUID(int=7)


def claimed(base: int = 0, records: int = 1, log: int = 1) -> ClaimedBatch:
    return ClaimedBatch("t", TOPIC, log, log, base, base + records - 1, 0, 100, False, 5, 1, 3)


def test_a_run_ends_where_offsets_are_missing_and_at_another_partition() -> None:
    batches = (claimed(4, 2), claimed(0, 3), claimed(3), claimed(9), claimed(6, log=2))
    found = list(runs(ClaimedFile(1, "wal/a", 1, batches)))
    assert [(r.log_id, r.base_offset, r.last_offset, r.batch_count) for r in found] == [
        (1, 0, 5, 3), (1, 9, 9, 1), (2, 6, 6, 1),
    ]  # fmt: skip


def claim(world: World, worker: UUID, **more: Any) -> list[ClaimedFile]:
    options = {"max_files": 10, "max_batches": 1_000, "claim_ms": 60_000} | more
    return world.plane.claim_wal_files(worker, **{"cutoffs": world.cutoffs()} | options)


def split_now(world: World, worker: UUID, files: list[ClaimedFile]) -> list[SplitOutcome]:
    return list(split(world.services(), worker, files, time.monotonic()))


def test_a_file_of_many_partitions_has_a_run_of_each_and_no_object_is_touched(
    world: World,
) -> None:
    one, two = world.born_diskless(2)
    old = world.migrated(boundary=10)
    world.append(
        (one, sized(2, 10)), (two, sized(1, 10)), (one, Spec((5,), log_append_time=1)),
        (old, sized(3, 10)), (two, sized(4, 10)),
    )  # fmt: skip
    before, worker = dict(world.store.objects), uuid4()
    world.store.objects.clear()
    (outcome,) = split_now(world, worker, claim(world, worker))
    assert (outcome.ended, outcome.batches, outcome.runs) == (Ended.DONE, 5, 3)
    assert outcome.bytes == sum(len(body) for body in before.values())
    assert world.store.objects == {}
    assert claim(world, worker) == [], "nothing is left to split"


def test_a_run_that_does_not_fit_is_counted_against_its_file_and_the_others_do_not_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log,) = world.born_diskless()
    for _ in range(3):
        world.append((log, sized(2, 10)))
    first = world.scene.sql("SELECT min(file_id) FROM wal_files")[0][0]

    def wrong(file: ClaimedFile) -> Iterator[SplitRun]:
        for run in runs(file):
            yield replace(run, byte_size=1) if file.file_id == first else run

    monkeypatch.setattr(split_files, "runs", wrong)
    worker = uuid4()
    for failures in (1, 2, 3):
        outcomes = split_now(world, worker, claim(world, worker))
        assert [o.ended for o in outcomes] == [Ended.FAILED] + [Ended.DONE] * (
            2 if failures == 1 else 0
        )
        assert "bytes, not 1" in str(outcomes[0].error)
        assert claim(world, worker) == [], "it is not handed out again at once"
        world.expire_claims()
    assert claim(world, worker) == [], "after three failures it is parked"
    (status,) = world.plane.tiering_status()
    assert status.parked


def test_of_two_workers_on_one_file_one_counts(world: World) -> None:
    (log,) = world.born_diskless()
    world.append((log, sized(2, 10)))
    first, second = uuid4(), uuid4()
    slow = claim(world, first)
    assert claim(world, second) == [], "a claim holds"
    world.expire_claims()
    taken = claim(world, second)
    assert [o.ended for o in split_now(world, first, slow)] == [Ended.STALE]
    assert [o.ended for o in split_now(world, second, taken)] == [Ended.DONE]
    assert [o.ended for o in split_now(world, first, slow)] == [Ended.STALE]
    (candidate,) = world.plane.merge_candidates()
    assert (candidate.files, candidate.batches) == (1, 1)
    assert world.plane.take_tiering_work(first) == {}
    assert world.plane.take_tiering_work(second)["batches.split"] == 1
    assert world.plane.tiering_totals()["batches.split"] == 1


def test_workers_claim_until_nothing_is_left_also_what_came_behind_where_they_went_on(
    world: World,
) -> None:
    logs = world.born_diskless(2)
    for n in range(7):
        world.append(*((log, Spec((100 + n,))) for log in logs))
    order = SplitOrder(
        uuid4(), max_files=2, max_batches=100, claim_ms=60_000, cutoffs=world.cutoffs()
    )
    mine = Splitter(world.services(), order)
    assert len(mine.once()) == 2
    world.append((logs[0], Spec((1,))))
    others = list(Splitter(world.services(), replace(order, worker=uuid4())).rest())
    assert [o.ended for o in others] == [Ended.DONE] * 6, "the older one, too"
    assert list(mine.rest()) == []
    assert world.scene.sql("SELECT count(*) FROM batches WHERE split_id IS NULL") == [(0,)]
