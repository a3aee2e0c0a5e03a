"""What a gateway says counts when the worker has asked the brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from tests.support.waiting import eventually
from tests.unit.kafka.fake_cluster import FakeKafka, fake_kafka
from tideline.background import cancel_and_wait
from tideline.control_plane.memory import MemoryControlPlane
from tideline.control_plane.model import GatewayRegistration, TopicStatus, TrackingKind
from tideline.kafka import topic_identity
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.observer import KafkaObserver, OffsetAnswer, PartitionLayout, TopicLayout
from tideline.kafka.topic_identity import TopicIdentity
from tideline.kafka.topic_observer import ConfigEntry
from tideline.worker import reports
from tideline.worker.identity import RECONCILER, IdentityMetrics
from tideline.worker.reports import ReportKeeper
from tideline.worker.requests import RequestDispatcher

HOUR_MS = 3_600_000


@dataclass
class Configs:
    """What DescribeConfigs says, by topic."""

    sealed: set[str] = field(default_factory=set)
    away: set[str] = field(default_factory=set)

    async def configs(self, topic: str) -> dict[str, ConfigEntry]:
        if topic in self.away:
            raise KafkaError(ErrorCode.request_timed_out, topic)
        limit = ConfigEntry("78", own=True)
        return {"max.message.bytes": limit} if topic in self.sealed else {}


class Ends(KafkaObserver):
    """Every topic has one partition, whose log ends where the test says."""

    end = 0

    async def topic(self, topic: str, topic_id: UUID | None = None) -> TopicLayout | None:
        found = await super().topic(topic, topic_id)
        rows = {0: PartitionLayout(0, 1, 0, (1,), (1,))}
        return None if found is None else replace(found, partitions=rows)

    async def offsets(self, topic: str, partitions: Iterable[int], *_: Any, **__: Any) -> Any:
        return {partition: OffsetAnswer(self.end, -1, 0) for partition in partitions}


@dataclass
class Bench:
    kafka: FakeKafka
    plane: MemoryControlPlane
    keeper: ReportKeeper
    configs: Configs
    ends: Ends
    clock: list[int]

    async def ask(self, name: str = "new", given: str | None = "2000") -> str | None:
        limits = ("CreateTime", 2_000, 5_000, None)
        return await self.plane.ask_birth(name, 1, *limits, given)

    def acknowledge(self, name: str = "new") -> None:
        self.plane.topics.live_or_refuse(name).acknowledged[1] = UUID(int=1)

    async def topics(self) -> dict[str, tuple[UUID | None, TopicStatus]]:
        return {t.name: (t.topic_id, t.status) for t in await self.plane.live_topics()}

    async def tombstones(self) -> list[tuple[str, str]]:
        return [(t.name, t.deleted_by) for t in await self.plane.deleted_topics(HOUR_MS, limit=9)]

    def make(self, name: str = "new") -> UUID:
        """Kafka creates it as the gateway has asked it to."""
        self.configs.sealed.add(name)
        return self.kafka.controller.create(name)

    def pass_s(self, seconds: float) -> None:
        self.clock[0] += int(seconds * 1000)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(topic_identity, "CAUGHT_UP_S", 0.1)
    clock = [1_000_000]
    plane = MemoryControlPlane(lambda: clock[0])
    plane.gateways.register(
        GatewayRegistration(1, 1, UUID(int=1), "active", 1, 3000, "h:1", "1", datetime.now(UTC))
    )
    configs: Any = Configs()
    async with fake_kafka() as kafka, kafka.client() as cluster:
        ends = Ends(cluster)
        keeper = ReportKeeper(
            plane,
            TopicIdentity(cluster),
            ends,
            configs,
            IdentityMetrics(CollectorRegistry()),
            lambda: clock[0] / 1000,
            lambda: datetime.fromtimestamp(clock[0] / 1000, UTC),
        )
        yield Bench(kafka, plane, keeper, configs, ends, clock)


async def test_a_birth_is_begun_by_its_name_and_active_when_its_id_is_known_everywhere(
    bench: Bench,
) -> None:
    await bench.ask()
    assert await bench.keeper.look() == reports.SOON_S
    assert await bench.topics() == {"new": (None, TopicStatus.TRACKING)}
    topic_id = bench.make()
    for _ in range(2):
        await bench.keeper.look()
    assert await bench.topics() == {"new": (topic_id, TopicStatus.TRACKING)}
    bench.acknowledge()
    await bench.keeper.look()
    assert await bench.topics() == {"new": (topic_id, TopicStatus.ACTIVE)}
    (held,) = (await bench.plane.config_overrides_of(topic_id)).values()
    assert (held.override_value, held.user_value) == ("78", "2000")
    tracked = await bench.plane.tracked_topic("new")
    assert tracked is not None
    assert tracked.timestamp_before_max_ms == 5_000
    await bench.plane.withdraw_birth("new")
    assert await bench.keeper.look() == reports.QUIET_S


@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_topic_that_takes_records_is_neither_hidden_nor_born(
    bench: Bench, is_begun: bool
) -> None:
    await bench.ask()
    if is_begun:
        await bench.keeper.look()
    bench.kafka.controller.create("new")
    await bench.keeper.look()
    assert await bench.topics() == {}
    refused = await bench.ask()
    assert refused is not None
    assert "takes records" in refused
    assert await bench.ask() is None, "it may be asked for again"


async def test_a_sealed_topic_with_records_is_not_born(bench: Bench) -> None:
    """Somebody may have sealed it who may alter its configs."""
    bench.make()
    bench.ends.end = 158
    await bench.ask()
    await bench.keeper.look()
    assert await bench.topics() == {}
    assert "has records up to offset 157" in str(await bench.ask())


async def test_a_sealed_and_empty_topic_is_born_whoever_has_let_go_of_its_name(
    bench: Bench,
) -> None:
    topic_id = bench.make()
    await bench.ask()
    for _ in range(2):
        await bench.keeper.look()
    assert await bench.topics() == {"new": (topic_id, TopicStatus.TRACKING)}


async def test_a_name_that_is_tracked_as_another_topic_is_refused(bench: Bench) -> None:
    topic_id = bench.kafka.controller.create("new")
    await bench.plane.begin_tracking("new", topic_id, TrackingKind.MIGRATED, 1, "CreateTime", 2_000)
    await bench.ask()
    await bench.keeper.look()
    assert "is tracked already" in str(await bench.ask())
    assert await bench.topics() == {"new": (topic_id, TopicStatus.TRACKING)}


async def test_a_creation_that_nobody_waits_for_lets_go_of_its_name(bench: Bench) -> None:
    await bench.ask()
    await bench.keeper.look()
    bench.pass_s(60)
    await bench.keeper.look()
    assert await bench.tombstones() == [], "a gateway waits"
    await bench.plane.withdraw_birth("new")
    await bench.keeper.look()
    bench.pass_s(2)
    await bench.keeper.look()
    assert await bench.tombstones() == [], "Kafka may do it yet"
    bench.pass_s(2)
    await bench.keeper.look()
    assert await bench.tombstones() == [("new", RECONCILER)]


async def test_a_creation_whose_gateway_died_is_let_go_of_after_ten_minutes(bench: Bench) -> None:
    await bench.ask()
    await bench.keeper.look()
    bench.pass_s(601)
    for _ in range(2):
        await bench.keeper.look()
        bench.pass_s(4)
    assert await bench.tombstones() == [("new", RECONCILER)]


async def test_a_creation_that_died_after_kafka_had_done_it_is_completed(bench: Bench) -> None:
    await bench.ask()
    await bench.keeper.look()
    await bench.plane.withdraw_birth("new")
    topic_id = bench.make()
    bench.acknowledge()
    for _ in range(2):
        await bench.keeper.look()
    bench.acknowledge()
    await bench.keeper.look()
    assert await bench.topics() == {"new": (topic_id, TopicStatus.ACTIVE)}
    (held,) = (await bench.plane.config_overrides_of(topic_id)).values()
    assert held.user_value == "2000"


async def test_what_cannot_be_learned_of_one_topic_holds_up_no_other(bench: Bench) -> None:
    for name in ("first", "second"):
        await bench.ask(name)
        bench.make(name)
    bench.configs.away.add("first")
    await bench.keeper.look()
    assert list(await bench.topics()) == ["second"]


async def test_a_reported_deletion_buries_what_no_broker_knows(bench: Bench) -> None:
    topic_id = bench.kafka.controller.create("orders")
    await bench.plane.begin_tracking(
        "orders", topic_id, TrackingKind.MIGRATED, 1, "CreateTime", 2_000
    )
    bench.kafka.controller.delete("orders")
    assert not await bench.plane.report_deletion(topic_id)
    await bench.keeper.look()
    assert await bench.tombstones() == [], "one look may come too early"
    bench.pass_s(0.5)
    await bench.keeper.look()
    assert await bench.tombstones() == [("orders", "gateway")]
    assert await bench.plane.report_deletion(topic_id)
    assert await bench.keeper.look() == reports.QUIET_S


async def test_a_reported_deletion_of_a_topic_that_kafka_has_changes_nothing(bench: Bench) -> None:
    topic_id = bench.kafka.controller.create("orders")
    await bench.plane.begin_tracking(
        "orders", topic_id, TrackingKind.MIGRATED, 1, "CreateTime", 2_000
    )
    await bench.plane.report_deletion(topic_id)
    assert await bench.keeper.look() == reports.SOON_S, "Kafka may do it yet"
    bench.pass_s(16)
    await bench.keeper.look()
    assert await bench.plane.open_deletions() == []
    assert await bench.topics() == {"orders": (topic_id, TopicStatus.TRACKING)}


async def test_a_broker_that_does_not_follow_buries_nothing(bench: Bench) -> None:
    topic_id = bench.kafka.controller.create("orders")
    await bench.plane.begin_tracking(
        "orders", topic_id, TrackingKind.MIGRATED, 1, "CreateTime", 2_000
    )
    bench.kafka.nodes[1].frozen_at = 1
    bench.kafka.controller.delete("orders")
    await bench.plane.report_deletion(topic_id)
    for _ in range(2):
        with pytest.raises(KafkaUnavailable):
            await bench.keeper.look()
        bench.pass_s(1)
    assert await bench.tombstones() == []


async def test_what_is_reported_is_looked_at_when_it_is_heard_of(bench: Bench) -> None:
    """By the connection of the worker that listens, long before the next look."""
    nobody: Any = None
    reported = asyncio.Event()
    dispatcher = RequestDispatcher(bench.plane, nobody, nobody, nobody, nobody, reported)
    bench.keeper._heard = reported
    looks, look = list[float](), bench.keeper.look

    async def counted() -> float:
        looks.append(await look())
        return looks[-1]

    bench.keeper.look = counted  # type: ignore[method-assign]
    running = [
        asyncio.create_task(dispatcher.run()),
        asyncio.create_task(bench.keeper.run()),
    ]
    await eventually("quiet", lambda: reports.QUIET_S in looks and not reported.is_set())
    began = asyncio.get_running_loop().time()
    before = len(looks)
    await bench.ask()
    await eventually("a look", lambda: len(looks) > before)
    assert asyncio.get_running_loop().time() - began < reports.QUIET_S
    assert looks[before] == reports.SOON_S
    await cancel_and_wait(*running)


async def test_a_word_a_moment_does_not_make_a_look_a_moment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "SOON_S", 0.2)
    looks = list[float]()

    async def counted() -> float:
        looks.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0)
        bench.keeper._heard.set()
        return reports.QUIET_S

    bench.keeper.look = counted  # type: ignore[method-assign]
    running = asyncio.create_task(bench.keeper.run())
    await eventually("three looks", lambda: len(looks) >= 3)
    await cancel_and_wait(running)
    assert looks[2] - looks[0] >= 2 * reports.SOON_S * 0.9
