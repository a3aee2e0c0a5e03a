"""Tracked topics whose ids Kafka does not have any more are buried by two whole looks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry

from tests.unit.kafka.fake_cluster import FakeKafka, fake_kafka
from tideline.control_plane.memory import MemoryControlPlane
from tideline.control_plane.model import TrackingKind
from tideline.kafka import topic_identity
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.topic_identity import TopicIdentity
from tideline.worker.identity import RECONCILER, IdentityMetrics, IdentityReconciler

HOUR_MS = 3_600_000


@dataclass
class Bench:
    kafka: FakeKafka
    plane: MemoryControlPlane
    reconciler: IdentityReconciler
    registry: CollectorRegistry

    async def track(self, name: str, topic_id: UUID | None) -> None:
        kind = TrackingKind.BORN_DISKLESS if topic_id is None else TrackingKind.MIGRATED
        await self.plane.begin_tracking(name, topic_id, kind, 1, "CreateTime", 2_000)

    async def tombstones(self) -> list[tuple[str, str]]:
        return [(t.name, t.deleted_by) for t in await self.plane.deleted_topics(HOUR_MS, limit=100)]

    def gone(self) -> float | None:
        return self.registry.get_sample_value("inkless_identity_topics_gone")


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(topic_identity, "CAUGHT_UP_S", 0.1)
    clock = [1_000_000]
    plane = MemoryControlPlane(lambda: clock[0])
    registry = CollectorRegistry()
    async with fake_kafka() as kafka, kafka.client() as cluster:
        reconciler = IdentityReconciler(
            plane,
            TopicIdentity(cluster),
            IdentityMetrics(registry),
        )
        yield Bench(kafka, plane, reconciler, registry)


async def test_a_topic_deleted_past_the_gateways_is_buried_at_the_second_look(bench: Bench) -> None:
    await bench.track("orders", bench.kafka.controller.create("orders"))
    await bench.track("others", bench.kafka.controller.create("others"))
    await bench.reconciler.reconcile()
    assert bench.gone() == 0
    bench.kafka.controller.delete("orders")
    bench.kafka.controller.create("orders")
    await bench.reconciler.reconcile()
    assert (bench.gone(), await bench.tombstones()) == (1, [])
    await bench.reconciler.reconcile()
    assert await bench.tombstones() == [("orders", RECONCILER)]
    await bench.reconciler.reconcile()
    assert bench.gone() == 0
    assert [t.name for t in await bench.plane.live_topics()] == ["others"]


async def test_an_aborted_topic_that_is_deleted_frees_its_name(bench: Bench) -> None:
    old = bench.kafka.controller.create("orders")
    await bench.track("orders", old)
    await bench.plane.abort_migration(old)
    await bench.plane.stop_tracking("orders")
    bench.kafka.controller.delete("orders")
    new = bench.kafka.controller.create("orders")
    for _ in range(2):
        await bench.reconciler.reconcile()
    await bench.track("orders", new)
    (live,) = await bench.plane.live_topics()
    assert live.topic_id == new


async def test_a_broker_that_lags_hides_and_buries_nothing(bench: Bench) -> None:
    await bench.track("orders", bench.kafka.controller.create("orders"))
    bench.kafka.nodes[1].frozen_at = 1
    for _ in range(3):
        with pytest.raises(KafkaUnavailable):
            await bench.reconciler.reconcile()
    assert await bench.tombstones() == []


async def test_brokers_that_claim_to_follow_and_serve_what_they_knew_are_outvoted_by_one(
    bench: Bench,
) -> None:
    await bench.track("orders", bench.kafka.controller.create("orders"))
    for node in bench.kafka.nodes[:2]:
        node.frozen_at, node.claims_to_follow = 1, True
    for _ in range(3):
        await bench.reconciler.reconcile()
    assert await bench.tombstones() == []


async def test_a_look_that_was_none_does_not_count_as_the_second(bench: Bench) -> None:
    await bench.track("orders", bench.kafka.controller.create("orders"))
    bench.kafka.controller.delete("orders")
    await bench.reconciler.reconcile()
    bench.kafka.nodes[2].frozen_at = 1
    with pytest.raises(KafkaUnavailable):
        await bench.reconciler.reconcile()
    assert await bench.tombstones() == []
    bench.kafka.nodes[2].frozen_at = None
    await bench.reconciler.reconcile()
    assert await bench.tombstones() == [("orders", RECONCILER)]
