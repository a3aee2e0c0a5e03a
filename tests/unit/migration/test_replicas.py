"""Replicas of diskless topics are looked at, and moved, a few at once (seed 003)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from tests.placed_plane import PlacedPlane
from tests.support.waiting import bounded
from tests.unit.kafka.fake_broker import FakeBroker
from tests.unit.migration.moving_kafka import MovingKafka
from tideline.control_plane.model import (
    GatewayRegistration,
    TopicStatus,
    TrackedPartition,
    TrackedTopic,
    TrackingKind,
)
from tideline.domain.ids import TopicPartition
from tideline.domain.migration import MigrationState
from tideline.domain.replica_spread import Spread
from tideline.errors import RefusedError
from tideline.kafka.client import KafkaCluster
from tideline.migration import replicas as module
from tideline.migration.replicas import ReplicaKeeper, ReplicaReport

IDS = {name: UUID(int=n) for n, name in enumerate(("born", "hybrid", "half", "classic"), 1)}
RACKS = {1: "a", 2: "b", 3: "c"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.0)


def topic(name: str, *rows: tuple[int, bool], born: bool = False) -> TrackedTopic:
    """Each row is a B0 and whether the partition is ready; -1: it migrates."""
    return TrackedTopic(
        name=name,
        topic_id=IDS[name],
        kind=TrackingKind.BORN_DISKLESS if born else TrackingKind.MIGRATED,
        status=TopicStatus.ACTIVE,
        timestamp_type="CreateTime",
        max_message_bytes=1_000,
        partitions={
            n: TrackedPartition(
                topic_id=IDS[name],
                partition=n,
                state=(
                    MigrationState.MIGRATING
                    if boundary < 0
                    else MigrationState.HYBRID
                    if boundary
                    else MigrationState.DISKLESS_ONLY
                ),
                generation=1,
                quiesced=False,
                boundary=boundary,
                boundary_epoch=0,
                ready=ready,
            )
            for n, (boundary, ready) in enumerate(rows)
        },
    )


BORN = topic("born", (0, False), (0, False), (0, False), born=True)
HYBRID = topic("hybrid", (10, True), (10, True))


@dataclass
class Bench:
    kafka: MovingKafka
    keeper: ReplicaKeeper
    plane: PlacedPlane

    async def look(self, *, whole: bool = True) -> ReplicaReport:
        return await self.keeper.look(whole=whole)

    async def normalise(self, name: str | None = None, at_once: int = 10) -> Any:
        told: list[Any] = []
        async with bounded("all replicas to be moved"):
            done = await self.keeper.normalise(name, at_once, lambda begun: told.append(begun))
        assert {p for begun in told for p in begun} == done.moved.keys()
        return done


@asynccontextmanager
async def bench(
    *topics: TrackedTopic, gateways: Sequence[int] = (1, 2, 3), **changes: Any
) -> AsyncIterator[Bench]:
    placed = {
        "born": [[1], [2], [1]],
        "hybrid": [[1, 2, 3], [1, 2]],
        "half": [[1], [1]],
        "classic": [[1], [3, 1]],
    }
    kafka = MovingKafka(changes.pop("racks", RACKS), IDS, changes.pop("placed", placed), **changes)
    plane = PlacedPlane(lambda: 1_000)
    for n in gateways:
        plane.gateways.register(
            GatewayRegistration(
                n, n, UUID(int=n), "active", 1, 3_000, f"h:{n}", "1", datetime.now(UTC)
            )
        )
    for each in topics:
        plane.put(each)
    async with (
        FakeBroker(kafka) as broker,
        KafkaCluster([broker.address], timeout_ms=60_000) as cluster,
    ):
        yield Bench(kafka, ReplicaKeeper(plane, cluster, 2_000), plane)


async def test_every_diskless_partition_is_judged_and_no_classic_one() -> None:
    async with bench(BORN, HYBRID) as b:
        report = await b.look()
    assert report.racks == ("a", "b", "c")
    assert [(a.partition.topic, a.partition.partition, a.spread) for a in report.partitions] == [
        ("born", 0, Spread.SINGLE),
        ("born", 1, Spread.SINGLE),
        ("born", 2, Spread.SINGLE),
        ("hybrid", 0, Spread.EVEN),
        ("hybrid", 1, Spread.UNEVEN),
    ]
    assert report.of("hybrid")[1].missing == ("c",)
    assert report.single_topics == 1


async def test_what_is_due_is_moved_until_nothing_is_left_a_few_at_once() -> None:
    async with bench(BORN, HYBRID, looks_to_move=2) as b:
        done = await b.normalise(at_once=2)
        after = await b.look()
    assert b.kafka.most_at_once == 2
    assert len(done.moved) == 4
    assert done.refused == {}
    assert all(a.rack_aware for a in after.partitions)
    assert [replicas[0] for replicas in b.kafka.placed["born"]] == [1, 2, 1], "leaders stay"
    assert b.kafka.placed["classic"] == [[1], [3, 1]]


async def test_one_topic_is_moved_when_one_is_named() -> None:
    async with bench(BORN, HYBRID) as b:
        done = await b.normalise("hybrid")
    assert list(done.moved) == [TopicPartition("hybrid", 1)]


@pytest.mark.parametrize("rows", [((10, False),), ((0, False), (-1, False))])
async def test_a_topic_that_is_not_ready_as_a_whole_is_not_moved(
    rows: tuple[tuple[int, bool], ...],
) -> None:
    async with bench(topic("half", *rows)) as b:
        done = await b.normalise()
        (found,) = (await b.look()).partitions
    assert done.moved == {}
    assert b.kafka.begun == []
    assert "not ready" in found.why_not


async def test_reassignments_of_others_count_for_the_throttle() -> None:
    async with bench(BORN) as b:
        b.kafka.moving[("classic", 0)] = ([2], 0)
        b.kafka.stuck.add(("classic", 0))
        report = await b.look()
        begun = await b.keeper.begin(report, 2)
        none = await b.keeper.begin(report, 1)
    assert report.moving == 1
    assert len(begun.moved) == 1
    assert none.moved == {}


async def test_a_run_that_is_cut_off_loses_nothing_and_the_next_one_goes_on() -> None:
    async with bench(BORN, looks_to_move=3) as b:
        await b.keeper.begin(await b.look(), 1)
        (first,) = b.kafka.moving
        done = await b.normalise()
        after = await b.look()
    assert TopicPartition(*first) not in done.moved
    assert all(a.rack_aware for a in after.partitions)


async def test_what_kafka_refuses_is_told_and_the_rest_is_moved() -> None:
    async with bench(BORN, refuses={("born", 1)}) as b:
        done = await b.normalise()
    assert done.refused == {TopicPartition("born", 1): "INVALID_REPLICA_ASSIGNMENT"}
    assert {p.partition for p in done.moved} == {0, 2}


async def test_what_is_under_way_can_be_taken_back_and_stays_as_it_was() -> None:
    async with bench(BORN, looks_to_move=50) as b:
        await b.keeper.begin(await b.look(), 2)
        assert await b.keeper.take_back("born") == [0, 1]
        assert await b.keeper.take_back("born") == []
    assert b.kafka.moving == {}
    assert b.kafka.placed["born"] == [[1], [2], [1]]


async def test_a_run_whose_moves_are_taken_back_ends_and_says_so() -> None:
    async with bench(topic("half", (0, False)), looks_to_move=10_000) as b:
        running = asyncio.ensure_future(b.normalise())
        await b.kafka.asked_to_move.wait()
        assert await b.keeper.take_back("half") == [0]
        done = await running
    assert done.refused == {TopicPartition("half", 0): "taken back by somebody"}
    assert len([begun for begun in b.kafka.begun if None not in begun.values()]) == 1


async def test_replicas_go_to_brokers_beside_which_a_gateway_stands() -> None:
    racks = {1: "a", 2: "b", 3: "b"}
    async with bench(topic("half", (0, False)), gateways=(1, 3), racks=racks) as b:
        await b.normalise()
    assert b.kafka.placed["half"][0] == (1, 3)


async def test_the_broker_that_holds_least_of_all_topics_is_taken() -> None:
    racks = {1: "a", 2: "b", 3: "b"}
    placed = {"half": [[1], [1]], "classic": [[2], [2]]}
    async with bench(topic("half", (0, False)), racks=racks, placed=placed) as b:
        await b.normalise()
        assert b.kafka.placed["half"][0] == (1, 3)
        b.kafka.metadata_asked.clear()
        await b.look(whole=False)
    assert b.kafka.metadata_asked == [["half"]], "a look for gauges asks for diskless topics only"


async def test_another_topic_of_the_name_is_left_alone() -> None:
    async with bench(BORN) as b:
        b.kafka.ids = {**IDS, "born": UUID(int=99)}
        assert (await b.look()).partitions == ()
        with pytest.raises(RefusedError, match="no diskless partition"):
            await b.keeper.take_back("born")
