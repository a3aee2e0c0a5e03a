"""A task of merge with several partitions builds their small segments side by side."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from spark.tiering import side_by_side
from spark.tiering.merge_partition import SEGMENTS_AT_ONCE, MergeOrder
from spark.tiering.outcomes import Ended, MergeOutcome
from spark.tiering.side_by_side import merge_partitions
from spark.tiering.split_files import split
from tests.contract.tiering_world import World, order
from tests.support.waiting import HANGS_S, set_within
from tests.unit.kafka.segment_batches import sized
from tideline.domain.ids import TopicIdPartition


def split_partitions(world: World, partitions: int, files: int = 1) -> list[TopicIdPartition]:
    """Each with a run in each of ``files``."""
    logs = world.born_diskless(partitions)
    for _ in range(files):
        world.append(*((log, sized(2, 40)) for log in logs))
    hands, worker = world.services(), uuid4()
    while claimed := hands.plane.claim_wal_files(
        worker, max_files=9, max_batches=99, claim_ms=60_000, cutoffs=world.cutoffs()
    ):
        list(split(hands, worker, claimed, time.monotonic()))
    return logs


class Watched:
    """A store that says who reads it."""

    def __init__(self, world: World, reading: Callable[[], None]) -> None:
        self._store, self._reading = world.store, reading

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, *asked: Any) -> bytes:
        self._reading()
        return self._store.get(*asked)


def merged(world: World, store: object, orders: list[MergeOrder]) -> list[MergeOutcome]:
    services = world.services(store=store)
    return list(
        merge_partitions(services, uuid4(), orders, claim_ms=60_000, read=services.read_ranges)
    )


def test_small_partitions_are_merged_side_by_side(world: World) -> None:
    logs = split_partitions(world, 2 * SEGMENTS_AT_ONCE)
    together = threading.Barrier(SEGMENTS_AT_ONCE)
    orders = [order(candidate) for candidate in world.plane.merge_candidates()]
    made = merged(world, Watched(world, lambda: together.wait(HANGS_S) and None), orders)
    assert {m.partition for m in made} == {log.partition for log in logs}
    assert [m.ended for m in made] == [Ended.DONE] * len(logs)
    assert all(world.merged(log) == world.expected(log) for log in logs)


def test_a_partition_of_many_segments_is_merged_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    split_partitions(world, 3, files=2)
    small, large, last = (order(candidate) for candidate in world.plane.merge_candidates())
    large = replace(large, limit_bytes=1)
    assert large.segments_at_once(large.pending_bytes) == SEGMENTS_AT_ONCE
    under_way: set[int] = set()
    beside: dict[int, set[int]] = {}

    def watched(services: Any, worker: Any, wanted: MergeOrder, **how: Any) -> Iterator[Any]:
        under_way.add(wanted.partition)
        beside[wanted.partition] = set(under_way)
        yield from merge_partition(services, worker, wanted, **how)
        under_way.remove(wanted.partition)

    merge_partition = side_by_side.merge_partition
    monkeypatch.setattr(side_by_side, "merge_partition", watched)
    made = merged(world, world.store, [small, large, last])
    assert {m.ended for m in made} == {Ended.DONE}
    assert beside[large.partition] == {large.partition}
    assert large.partition not in beside[last.partition]


def test_what_ends_one_partition_ends_the_task_and_no_claim_is_left(world: World) -> None:
    split_partitions(world, SEGMENTS_AT_ONCE)
    orders = [order(candidate) for candidate in world.plane.merge_candidates()]
    others, over = threading.Barrier(SEGMENTS_AT_ONCE), threading.Event()

    def reading() -> None:
        if others.wait(HANGS_S) == 0:
            over.set()
            raise OSError("the disk is broken")
        set_within("the broken one to end", over)

    services, worker = world.services(store=Watched(world, reading)), uuid4()
    with pytest.raises(OSError, match="the disk is broken"):
        list(merge_partitions(services, worker, orders, claim_ms=60_000, read=services.read_ranges))
    claimed = [world.plane.merge_claimed_for(one.log, worker) for one in orders]
    assert claimed == [0] * len(orders), "the next attempt waits for nobody"
    finished = [row.log for row in world.plane.merged_segments(*world.plane.log_id_range())
                if row.state == "COPY_SEGMENT_FINISHED"]  # fmt: skip
    assert len(finished) == SEGMENTS_AT_ONCE - 1, "those that were under way have ended"
    assert world.scene.sql("SELECT count(*) FROM tiering_failures") == [(0,)]
