"""What Kafka did to a tracked topic becomes known, whatever the admin client does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from kio.schema.create_topics.v7 import request as make
from kio.schema.delete_topics.v6 import request as delete
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i16, i32

from tests.unit.gateway.fakes import until
from tests.unit.gateway.gateway_under_test import Gateway, gateway
from tests.unit.gateway.test_admin_handlers import (
    SECONDS,
    TRACKED_ID,
    AdminPlane,
    admin,
    ask,
    tracked,
)
from tests.unit.kafka.fake_cluster import FakeKafka, fake_kafka
from tideline.errors import UnreachableError
from tideline.gateway.admin import tellings, topics
from tideline.gateway.admin.tellings import Tellings
from tideline.kafka import topic_identity
from tideline.kafka.protocol import encode_request

DELETION = delete.DeleteTopicsRequest(
    topics=(delete.DeleteTopicState(name=TopicName("tracked"), topic_id=None),), timeout=SECONDS
)


def creation(name: str = "tracked") -> make.CreateTopicsRequest:
    return make.CreateTopicsRequest(
        topics=(
            make.CreatableTopic(
                name=TopicName(name),
                num_partitions=i32(1),
                replication_factor=i16(1),
                assignments=(),
                configs=(),
            ),
        ),
        timeout=SECONDS,
        validate_only=False,
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_identity, "CAUGHT_UP_S", 0.1)
    monkeypatch.setattr(topic_identity, "BETWEEN_LOOKS_S", 0.0)
    monkeypatch.setattr(topics, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(tellings, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(tellings, "ANSWER_WAITS_S", 0.2)


@dataclass
class Bench:
    kafka: FakeKafka
    plane: AdminPlane
    gateway: Gateway

    def told(self) -> list[Any]:
        return [call[:2] for call in self.plane.said]

    async def leave_after(self, request: Any, moment: Callable[[], object]) -> None:
        """Send it and go, as soon as ``moment`` has come."""
        client = await self.gateway.connect()
        await client.send(encode_request(request, 5, "someone"))
        await until(moment)
        client.writer.transport.abort()
        await until(lambda: not len(self.gateway.connections))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    view = tracked(0)
    plane = AdminPlane(view)
    told = Tellings()
    async with (
        fake_kafka(2) as kafka,
        gateway(kafka.brokers[1], admin(view, plane, told)) as under_test,
    ):
        kafka.controller.create("tracked", TRACKED_ID)
        yield Bench(kafka, plane, under_test)
        await told.close()


def held(bench: Bench, before: asyncio.Event, after: asyncio.Event) -> list[str]:
    """Kafka deletes when ``before`` is set and answers when ``after`` is."""
    seen: list[str] = []
    node = bench.kafka.nodes[0]

    async def slowly(request: Any) -> Any:
        seen.append("asked")
        await before.wait()
        answer = node._DeleteTopicsRequest(request)
        seen.append("deleted")
        await after.wait()
        return answer

    node.answers["DeleteTopicsRequest"] = slowly
    return seen


@pytest.mark.parametrize("leaves", ["before Kafka deletes", "before Kafka answers"])
async def test_a_deletion_is_told_although_the_admin_client_has_left(
    bench: Bench, leaves: str
) -> None:
    before, after = asyncio.Event(), asyncio.Event()
    seen = held(bench, before, after)
    if leaves == "before Kafka answers":
        before.set()
        await bench.leave_after(DELETION, lambda: "deleted" in seen)
    else:
        await bench.leave_after(DELETION, lambda: "asked" in seen)
        before.set()
    await until(lambda: bench.told() == [("delete_topic", TRACKED_ID)])
    after.set()


async def test_a_client_that_leaves_while_postgres_is_away_does_not_end_the_telling(
    bench: Bench,
) -> None:
    bench.plane.away = 3
    await bench.leave_after(DELETION, lambda: bench.plane.away < 3)
    await until(lambda: bench.told() == [("delete_topic", TRACKED_ID)])


async def test_a_broker_that_lags_does_not_bury_a_topic_that_another_deletion_missed(
    bench: Bench,
) -> None:
    """UNKNOWN_TOPIC_OR_PARTITION from one broker says nothing: the topic is asked for by id."""
    node = bench.kafka.nodes[0]
    node.answers["DeleteTopicsRequest"] = lambda request: _unknown(node, request)
    node.frozen_at, node.claims_to_follow = 1, True
    answer = await ask(bench.gateway, DELETION)
    assert answer.responses[0].error_code is ErrorCode.unknown_topic_or_partition
    await until(lambda: len([r for r in bench.kafka.nodes[1].asked if _by_id(r)]) >= 2)
    assert bench.told() == []


async def test_an_unknown_topic_that_no_broker_has_is_told(bench: Bench) -> None:
    bench.kafka.controller.delete("tracked")
    answer = await ask(bench.gateway, DELETION)
    assert answer.responses[0].error_code is ErrorCode.unknown_topic_or_partition
    await until(lambda: bench.told() == [("delete_topic", TRACKED_ID)])


async def test_a_dead_name_is_buried_before_another_topic_is_created_under_it(
    bench: Bench,
) -> None:
    """Deleted past the gateways: nobody has told it."""
    bench.kafka.controller.delete("tracked")
    made: list[Any] = []
    node = bench.kafka.nodes[0]

    def noting(request: Any) -> Any:
        made.extend(bench.told())
        return node._CreateTopicsRequest(request)

    node.answers["CreateTopicsRequest"] = noting
    answer = await ask(bench.gateway, creation())
    assert answer.topics[0].error_code is ErrorCode.none
    assert made == [("delete_topic", TRACKED_ID)]


@pytest.mark.parametrize("away", ["Postgres", "a broker"])
async def test_no_topic_is_created_while_it_cannot_be_established_that_the_old_one_is_gone(
    bench: Bench, away: str
) -> None:
    bench.kafka.controller.delete("tracked")
    if away == "Postgres":
        bench.plane.away = 1_000_000
    else:
        bench.kafka.nodes[1].frozen_at = 1
    answer = await ask(bench.gateway, creation())
    assert answer.topics[0].error_code is ErrorCode.request_timed_out
    assert "tideline topic check tracked" in answer.topics[0].error_message
    assert "tracked" not in bench.kafka.controller.topics


async def test_a_topic_that_lives_is_kafkas_to_refuse(bench: Bench) -> None:
    answer = await ask(bench.gateway, creation())
    assert answer.topics[0].error_code is ErrorCode.topic_already_exists
    assert bench.told() == []


async def test_what_has_no_room_to_be_told_is_counted_and_what_waits_says_why() -> None:
    tellings = Tellings(most=1)
    release = asyncio.Event()

    async def away() -> None:
        if not release.is_set():
            raise UnreachableError("Postgres is away")

    first = tellings.tell("one", away)
    assert tellings.tell("one", away) is first
    assert tellings.tell("two", away) is None
    await until(lambda: tellings.pending() == {"one": "Postgres is away"})
    release.set()
    assert first is not None
    await first
    assert tellings.pending() == {}
    await tellings.close()


def _unknown(node: Any, request: Any) -> Any:
    node.controller.topics, kept = {}, node.controller.topics
    try:
        return node._DeleteTopicsRequest(request)
    finally:
        node.controller.topics = kept


def _by_id(request: Any) -> bool:
    topics = getattr(request, "topics", None) or ()
    return type(request).__name__ == "MetadataRequest" and any(t.topic_id for t in topics)


async def test_no_more_than_so_much_goes_on_without_its_clients() -> None:
    told, held = Tellings(most_shielded=1), asyncio.Event()
    ended: list[str] = []

    async def work(name: str) -> None:
        await held.wait()
        ended.append(name)

    clients = [
        asyncio.ensure_future(told.whatever_the_client_does(work(name))) for name in ("a", "b")
    ]
    await asyncio.sleep(0)
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    held.set()
    await until(lambda: ended)
    assert ended == ["a"]
    await told.close()
