"""Requests that gateways wrote become workflows, each exactly one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from tideline.control_plane.model import MigrationRequest
from tideline.domain.messages import TopicMigrationInput, TopicRef
from tideline.domain.options import Durability
from tideline.errors import UnreachableError
from tideline.worker.requests import RequestDispatcher


@dataclass
class Store:
    pending: list[MigrationRequest] = field(default_factory=list)
    taken: list[UUID] = field(default_factory=list)
    notified: asyncio.Event = field(default_factory=asyncio.Event)

    async def pending_requests(self) -> list[MigrationRequest]:
        return [r for r in self.pending if r.topic_id not in self.taken]

    async def request_taken(self, topic_id: UUID) -> None:
        self.taken.append(topic_id)

    async def listen(self, channels: Sequence[str]) -> AsyncIterator[tuple[str, str]]:
        while True:
            await self.notified.wait()
            self.notified.clear()
            yield channels[0], "orders"


@dataclass
class Kafka:
    ids: dict[str, UUID] = field(default_factory=dict)

    async def current_id(self, topic: str) -> UUID | None:
        return self.ids.get(topic)


@dataclass
class Workflows:
    started: list[tuple[TopicRef, TopicMigrationInput]] = field(default_factory=list)
    away_for: set[str] = field(default_factory=set)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, ref: TopicRef, given: TopicMigrationInput) -> None:
        if ref.topic in self.away_for:
            raise UnreachableError("Temporal is away")
        self.started.append((ref, given))
        self.news.set()


def request(topic: str, **options: object) -> MigrationRequest:
    return MigrationRequest(topic, uuid4(), "User:alice", dict(options), datetime.now(UTC))


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def kafka() -> Kafka:
    return Kafka()


@pytest.fixture
def workflows() -> Workflows:
    return Workflows()


@pytest.fixture
def dispatcher(store: Store, kafka: Kafka, workflows: Workflows) -> RequestDispatcher:
    return RequestDispatcher(store, workflows.start, kafka.current_id)


async def test_a_request_starts_the_workflow_that_belongs_to_its_topic_id(
    store: Store, kafka: Kafka, workflows: Workflows, dispatcher: RequestDispatcher
) -> None:
    asked = request("orders", durability="tiered")
    store.pending, kafka.ids = [asked], {"orders": asked.topic_id}
    await dispatcher.take_all()
    [(ref, given)] = workflows.started
    assert ref.workflow_id.startswith("tideline/topic/orders/")
    assert given.options.durability is Durability.TIERED
    assert given.requested_by == "User:alice"
    assert store.taken == [asked.topic_id]


async def test_a_request_stays_until_temporal_answers_and_holds_up_no_other(
    store: Store, kafka: Kafka, workflows: Workflows, dispatcher: RequestDispatcher
) -> None:
    first, second = request("first"), request("second")
    store.pending = [first, second]
    kafka.ids = {"first": first.topic_id, "second": second.topic_id}
    workflows.away_for = {"first"}
    await dispatcher.take_all()
    assert store.taken == [second.topic_id]
    workflows.away_for = set()
    await dispatcher.take_all()
    assert store.taken == [second.topic_id, first.topic_id]


@pytest.mark.parametrize("now", [None, uuid4()], ids=["deleted", "created again"])
async def test_a_request_for_a_topic_that_is_gone_is_dropped(
    store: Store,
    kafka: Kafka,
    workflows: Workflows,
    dispatcher: RequestDispatcher,
    now: UUID | None,
) -> None:
    asked = request("orders")
    store.pending = [asked]
    if now is not None:
        kafka.ids = {"orders": now}
    await dispatcher.take_all()
    assert workflows.started == []
    assert store.taken == [asked.topic_id]


async def test_a_request_with_wrong_options_is_dropped(
    store: Store, kafka: Kafka, workflows: Workflows, dispatcher: RequestDispatcher
) -> None:
    asked = request("orders", durability="maybe")
    store.pending, kafka.ids = [asked], {"orders": asked.topic_id}
    await dispatcher.take_all()
    assert workflows.started == []
    assert store.taken == [asked.topic_id]


async def test_a_notification_is_followed_at_once(
    store: Store, kafka: Kafka, workflows: Workflows, dispatcher: RequestDispatcher
) -> None:
    running = asyncio.create_task(dispatcher.run())
    await asyncio.sleep(0)
    asked = request("orders")
    store.pending, kafka.ids = [asked], {"orders": asked.topic_id}
    store.notified.set()
    await asyncio.wait_for(workflows.news.wait(), 1)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
