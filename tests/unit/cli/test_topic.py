"""``tideline topic``: a topic is forgotten only when Kafka does not have it any more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from typer.testing import CliRunner

from tests.unit.kafka.fake_cluster import FakeKafka, fake_kafka
from tideline.cli import topic
from tideline.cli.app import app
from tideline.control_plane.memory import MemoryControlPlane
from tideline.control_plane.model import TrackingKind
from tideline.errors import RefusedError, UnreachableError, UsageError
from tideline.kafka import topic_identity
from tideline.kafka.topic_identity import TopicIdentity
from tideline.migration.identity import Verdict, check_name, forget


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits."""
    monkeypatch.setattr(topic_identity, "CAUGHT_UP_S", 0.1)
    monkeypatch.setattr(topic_identity, "BETWEEN_LOOKS_S", 0.0)


class Bench:
    def __init__(self, kafka: FakeKafka, identity: TopicIdentity) -> None:
        self.kafka, self.identity = kafka, identity
        self.plane = MemoryControlPlane(lambda: 1_000_000)

    async def track(self, name: str, topic_id: UUID | None) -> None:
        kind = TrackingKind.BORN_DISKLESS if topic_id is None else TrackingKind.MIGRATED
        await self.plane.begin_tracking(name, topic_id, kind, 1, "CreateTime", 1)

    async def verdict(self, name: str = "orders") -> Verdict:
        return (await check_name(self.plane, self.identity, name)).verdict

    async def forget(self, topic_id: UUID, reason: str = "nobody needs it") -> Any:
        return await forget(self.plane, self.identity, "orders", topic_id, "ann", reason)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with fake_kafka() as kafka, kafka.client() as cluster:
        yield Bench(kafka, TopicIdentity(cluster))


async def test_a_name_is_said_to_mean_what_kafka_has(bench: Bench) -> None:
    assert await bench.verdict() is Verdict.NOT_TRACKED
    old = bench.kafka.controller.create("orders")
    await bench.track("orders", old)
    assert await bench.verdict() is Verdict.SAME
    bench.kafka.controller.delete("orders")
    bench.kafka.controller.create("orders")
    found = await check_name(bench.plane, bench.identity, "orders")
    assert (found.verdict, found.tracked_id) == (Verdict.GONE, old)
    assert f"tideline topic forget orders --id {old}" in found.next_step
    bench.kafka.nodes[2].frozen_at = 1
    assert await bench.verdict() is Verdict.UNKNOWN
    await bench.track("new", None)
    assert await bench.verdict("new") is Verdict.UNBORN


async def test_forgetting_is_recorded_with_who_and_why(bench: Bench) -> None:
    old = bench.kafka.controller.create("orders")
    await bench.track("orders", old)
    bench.kafka.controller.delete("orders")
    done = await bench.forget(old)
    assert (done.by, done.why.startswith("nobody needs it (brokers 1, 2, 3")) == ("ann", True)
    (tombstone,) = await bench.plane.deleted_topics(60_000, 10)
    assert (tombstone.topic_id, tombstone.deleted_by) == (old, "ann")


async def test_forgetting_is_refused_where_something_can_be_kept(bench: Bench) -> None:
    old = bench.kafka.controller.create("orders")
    await bench.track("orders", old)
    with pytest.raises(RefusedError, match="its records can be kept"):
        await bench.forget(old)
    bench.kafka.controller.delete("orders")
    bench.kafka.nodes[1].frozen_at = 2
    with pytest.raises(UnreachableError, match="Nothing is forgotten on a partial answer"):
        await bench.forget(old)
    bench.kafka.nodes[1].frozen_at = None
    with pytest.raises(RefusedError, match="is tracked with topic id"):
        await bench.forget(uuid4())
    with pytest.raises(UsageError, match="--reason is empty"):
        await bench.forget(old, " ")
    assert await bench.plane.deleted_topics(60_000, 10) == []


def test_the_commands_answer_people_and_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = MemoryControlPlane(lambda: 1_000_000)
    topic_id = uuid4()
    begin = plane.begin_tracking("orders", topic_id, TrackingKind.MIGRATED, 1, "CreateTime", 1)
    asyncio.run(begin)  # type: ignore[arg-type]

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Any, Any]]:
        async with fake_kafka() as kafka, kafka.client() as cluster:
            yield plane, cluster

    monkeypatch.setattr(topic, "_looking", opened)
    monkeypatch.setattr(topic, "changing_plane", opened)
    runner = CliRunner()
    checked = runner.invoke(app, ["topic", "check", "orders", "-o", "json"])
    assert json.loads(checked.stdout)["verdict"] == "gone"
    assert "gone" in runner.invoke(app, ["topic", "check", "orders"]).stdout
    bad = runner.invoke(app, ["topic", "forget", "orders", "--id", "?", "--reason", "x"])
    assert isinstance(bad.exception, UsageError)
    said = runner.invoke(
        app,
        ["topic", "forget", "orders", "--id", str(topic_id), "--reason", "x", "--by", "ann"],
    )
    assert f"Topic orders ({topic_id}) is forgotten: ann, x (" in said.stdout
