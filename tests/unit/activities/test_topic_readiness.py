"""Whether partitions are ready is asked for many at once, and judged as for one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from activities.topic_readiness import await_readiness
from tests.unit.activities.world import TOPIC_ID, World
from tideline.control_plane.model import TrackedPartition
from tideline.domain.coverage import Coverage
from tideline.domain.ids import TopicIdPartition
from tideline.domain.messages import PartitionRef, ReadinessFound, ReadinessRequest, TopicRef
from tideline.domain.migration import MigrationState, Phase, PhaseStatus
from tideline.domain.options import MigrationOptions
from tideline.errors import UnreachableError
from tideline.kafka.errors import KafkaUnavailable
from tideline.migration.prefix import prefix_coverage
from tideline.object_store.client import ObjectStoreUnavailable

PARTITIONS = 4


@pytest.fixture
def crossed(world: World) -> World:
    """Four partitions with B0 = 100, rolled on three replicas, their segments in remote storage."""
    world.kafka.partitions = PARTITIONS
    (segment,) = world.store.found
    world.store.found = []
    for partition in range(PARTITIONS):
        row = TrackedPartition(
            TOPIC_ID, partition, MigrationState.HYBRID, 1, False, 100, 5, high_watermark=100
        )
        world.plane.put_row(row, "orders")
        world.store.found.append(replace(segment, log=TopicIdPartition(TOPIC_ID, partition)))
    return world


async def look(world: World, *partitions: int) -> ReadinessFound:
    ref = TopicRef("orders", TOPIC_ID.hex, PARTITIONS)
    wanted = list(partitions or range(PARTITIONS))
    return await await_readiness(world.services, ReadinessRequest(ref, MigrationOptions(), wanted))


def row(world: World, partition: int) -> TrackedPartition:
    return world.plane.partition(TopicIdPartition(TOPIC_ID, partition)).tracked()


async def test_all_that_are_covered_are_ready_after_one_request_a_broker(crossed: World) -> None:
    assert await look(crossed) == ReadinessFound(ready=[0, 1, 2, 3])
    assert all(row(crossed, partition).ready for partition in range(PARTITIONS))
    assert crossed.kafka.asked == [
        "EARLIEST of broker 1", "EARLIEST_LOCAL of broker 1", "EARLIEST_LOCAL of broker 2",
        "EARLIEST_LOCAL of broker 3",
    ]  # fmt: skip
    assert crossed.store.refreshed == 1
    done = [(p, s) for p, s, _, _ in crossed.plane.phases if s is PhaseStatus.DONE]
    assert done == [(Phase.READINESS, PhaseStatus.DONE)] * PARTITIONS


async def test_while_a_replica_has_not_rolled_neither_metadata_nor_bucket_is_asked(
    crossed: World,
) -> None:
    crossed.kafka.local_starts[2] = 40
    found = await look(crossed)
    assert (found.ready, found.own_look) == ([], [])
    assert found.reasons["0"] == "replica 2 has not rolled: it still has 40 to 100"
    assert (crossed.store.refreshed, crossed.store.listed) == (0, [])
    told = [reason for phase, status, _, reason in crossed.plane.phases]
    assert len(told) == PARTITIONS  # not once more with each look
    assert not row(crossed, 0).ready


async def test_the_bucket_is_listed_only_for_what_the_metadata_cover(crossed: World) -> None:
    crossed.store.found = [
        replace(segment, end_offset=80) if segment.log.partition else segment
        for segment in crossed.store.found
    ]
    found = await look(crossed)
    assert found.ready == [0]
    assert found.reasons["1"] == "remote storage has offsets up to 81, of 100"
    assert set(crossed.store.listed) == {0}


async def test_objects_that_are_not_there_hold_a_partition_back(crossed: World) -> None:
    crossed.store.listing = {}
    found = await look(crossed, 2)
    assert found.ready == []
    assert "is not in the bucket" in found.reasons["2"]


async def test_a_broker_that_is_away_is_a_reason_to_wait(crossed: World) -> None:
    crossed.kafka.silent.add(3)
    found = await look(crossed, 1)
    assert "replica 3 did not answer" in found.reasons["1"]


@pytest.mark.parametrize(
    "error", [KafkaUnavailable("closed by it"), ObjectStoreUnavailable("503 SlowDown")]
)
async def test_what_does_not_answer_for_one_partition_keeps_only_that_one_waiting(
    crossed: World, monkeypatch: pytest.MonkeyPatch, error: UnreachableError
) -> None:
    async def not_of_2(services: Any, ref: PartitionRef, *args: Any, **more: Any) -> Coverage:
        if ref.partition == 2:
            raise error
        return await prefix_coverage(services, ref, *args, **more)

    monkeypatch.setattr("activities.topic_readiness.prefix_coverage", not_of_2)
    found = await look(crossed)
    assert (found.ready, found.reasons) == ([0, 1, 3], {"2": str(error)})


async def test_a_look_that_is_cut_off_was_not_for_nothing(
    crossed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.topic_readiness.JUDGED_AT_ONCE", 1)
    objects = crossed.store.objects

    async def until_2(topic: str, log: TopicIdPartition) -> object:
        if log.partition == 2:
            raise asyncio.CancelledError
        return await objects(topic, log)

    monkeypatch.setattr(crossed.store, "objects", until_2)
    with pytest.raises(asyncio.CancelledError):
        await look(crossed)
    assert [row(crossed, partition).ready for partition in range(4)] == [True, True, False, False]
    monkeypatch.setattr(crossed.store, "objects", objects)
    crossed.store.listed.clear()
    assert (await look(crossed)).ready == [0, 1, 2, 3]
    assert set(crossed.store.listed) == {2, 3}


async def test_while_nothing_answers_not_every_partition_is_tried(
    crossed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.topic_readiness.JUDGED_AT_ONCE", 2)
    asked: list[int] = []

    async def away(topic: str, log: TopicIdPartition) -> object:
        asked.append(log.partition)
        raise ObjectStoreUnavailable("S3 at [::1]:9 is away")

    monkeypatch.setattr(crossed.store, "objects", away)
    crossed.services.wait_bound_ms = 0
    found = await look(crossed)
    assert (found.ready, found.reasons) == ([], dict.fromkeys("0123", "S3 at [::1]:9 is away"))
    assert asked == [0, 1]


async def test_a_broker_that_hangs_is_asked_once_a_look(
    crossed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.topic_readiness.PARTITIONS_AT_ONCE", 1)
    crossed.kafka.silent.add(3)
    crossed.services.wait_bound_ms = 0
    found = await look(crossed)
    assert all("replica 3 did not answer" in why for why in found.reasons.values())
    assert crossed.kafka.asked.count("EARLIEST_LOCAL of broker 3") == 1


async def test_what_is_more_than_a_wait_is_left_to_the_partition(crossed: World) -> None:
    """B0 was unset meanwhile, or retention has taken the whole prefix."""
    unset = TrackedPartition(TOPIC_ID, 3, MigrationState.MIGRATING, 2, False)
    crossed.plane.put_row(unset, "orders")
    assert await look(crossed, 1, 2, 3) == ReadinessFound(ready=[1, 2], own_look=[3])
    crossed.kafka.log_start = 100
    assert (await look(crossed, 0)).own_look == [0]


async def test_a_newer_generation_is_not_overwritten(
    crossed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the write somebody else has moved the partition."""
    objects = crossed.store.objects

    async def moved(topic: str, log: TopicIdPartition) -> object:
        current = row(crossed, log.partition)
        crossed.plane.put_row(replace(current, generation=current.generation + 1), "orders")
        monkeypatch.setattr(crossed.store, "objects", objects)
        return await objects(topic, log)

    monkeypatch.setattr(crossed.store, "objects", moved)
    found = await look(crossed, 0)
    assert found.ready == [0]  # by the second look, under the new generation
    assert row(crossed, 0).generation == 2


async def test_a_diskless_partition_has_no_prefix_to_wait_for(crossed: World) -> None:
    await crossed.plane.advance_prefix_start(TopicIdPartition(TOPIC_ID, 1), 100)
    assert row(crossed, 1).state is MigrationState.DISKLESS_ONLY
    assert (await look(crossed, 1)).ready == [1]
    assert crossed.store.listed == []
    (done,) = [p for p in crossed.plane.phases if p[0] is Phase.READINESS]
    assert done[1] is PhaseStatus.DONE, "it is told as any other"


async def test_a_topic_of_another_id_is_nothing_to_look_at(crossed: World) -> None:
    ref = TopicRef("orders", UUID(int=7).hex, 1)
    request = ReadinessRequest(ref, MigrationOptions(), [0])
    with pytest.raises(Exception, match="Postgres does not know 'orders'"):
        await await_readiness(crossed.services, request)
