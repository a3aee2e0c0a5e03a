"""Requests that gateways wrote become workflows, each exactly one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import pytest

from tests.placed_plane import PlacedPlane
from tests.support.waiting import within
from tideline.control_plane.memory import MemoryControlPlane
from tideline.control_plane.model import (
    MigrationRequest,
    TopicStatus,
    TrackedPartition,
    TrackedTopic,
    TrackingKind,
)
from tideline.domain.messages import TopicMigrationInput, TopicOutcome, TopicRef
from tideline.domain.migration import MigrationState
from tideline.domain.options import Durability
from tideline.errors import UnreachableError
from tideline.temporal import MigrationFailed, NoSuchMigration, RunningTopic
from tideline.worker.requests import (
    FIRST_RETRY_MS,
    LONGEST_RETRY_MS,
    RequestDispatcher,
)


class Store(MemoryControlPlane):
    """The plane in memory, on a clock that the test moves."""

    def __init__(self) -> None:
        super().__init__(lambda: self.clock_ms)
        self.clock_ms = 1_700_000_000_000
        self.listening = asyncio.Event()

    def listen(
        self, channels: Sequence[str], on_listening: Callable[[], None] | None = None
    ) -> AsyncIterator[tuple[str, str]]:
        return super().listen(channels, self.listening.set)

    async def ask(self, topic: str, **options: object) -> UUID:
        """A gateway wrote a request for a topic with a new id."""
        self.clock_ms += 1
        topic_id = uuid4()
        await self.request_migration(topic, topic_id, "User:alice", options)
        return topic_id

    async def states(self) -> dict[str, str]:
        return {r.topic: r.state.value for r in await self.list_requests()}

    async def only(self) -> MigrationRequest:
        (found,) = await self.list_requests()
        return found


@dataclass
class Kafka:
    ids: dict[str, UUID] = field(default_factory=dict)

    async def current_id(self, topic: str) -> UUID | None:
        return self.ids.get(topic)


@dataclass
class Workflows:
    started: list[tuple[TopicRef, TopicMigrationInput]] = field(default_factory=list)
    away_for: set[str] = field(default_factory=set)
    ended: dict[str, TopicOutcome | Exception] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, ref: TopicRef, given: TopicMigrationInput) -> None:
        if ref.topic in self.away_for:
            raise UnreachableError("Temporal is away")
        self.started.append((ref, given))
        self.news.set()

    async def running(self) -> list[RunningTopic]:
        return [
            RunningTopic(ref.workflow_id, ref.topic, "", "")
            for ref, _ in self.started
            if ref.topic in self.listed
        ]

    async def outcome(self, ref: TopicRef) -> TopicOutcome | None:
        self.asked.append(ref.topic)
        if ref.topic in self.away_for:
            raise UnreachableError("Temporal is away")
        ended = self.ended.get(ref.topic)
        if isinstance(ended, Exception):
            raise ended
        return ended


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
    return RequestDispatcher(
        store, workflows.start, kafka.current_id, workflows.outcome, workflows.running
    )


async def test_a_request_starts_the_workflow_that_belongs_to_its_topic_id(
    store: Store, kafka: Kafka, workflows: Workflows, dispatcher: RequestDispatcher
) -> None:
    kafka.ids = {"orders": await store.ask("orders", durability="tiered")}
    await dispatcher.take_all()
    [(ref, given)] = workflows.started
    assert ref.workflow_id.startswith("tideline/topic/orders/")
    assert given.options.durability is Durability.TIERED
    assert given.requested_by == "User:alice"
    assert await store.states() == {"orders": "started"}


async def test_a_request_is_tried_again_until_temporal_answers_and_holds_up_no_other(
    store: Store, kafka: Kafka, workflows: Workflows, dispatcher: RequestDispatcher
) -> None:
    kafka.ids = {topic: await store.ask(topic) for topic in ("first", "second")}
    workflows.away_for = {"first"}
    await dispatcher.take_all()
    assert await store.states() == {"first": "retrying", "second": "started"}
    first = (await store.list_requests("first"))[0]
    assert (first.reason, first.tries) == ("Temporal is away", 1)
    assert first.next_try_at is not None
    await dispatcher.take_all()
    assert (await store.list_requests("first"))[0].tries == 1
    workflows.away_for = set()
    store.clock_ms += FIRST_RETRY_MS
    await dispatcher.take_all()
    assert await store.states() == {"first": "started", "second": "started"}


async def test_the_time_between_tries_grows_up_to_a_bound(
    store: Store, kafka: Kafka, workflows: Workflows, dispatcher: RequestDispatcher
) -> None:
    kafka.ids, workflows.away_for = {"orders": await store.ask("orders")}, {"orders"}
    waits = []
    for _ in range(10):
        await dispatcher.take_all()
        found = await store.only()
        assert found.next_try_at is not None
        waits.append(round(found.next_try_at.timestamp() * 1000) - store.clock_ms)
        store.clock_ms += waits[-1]
    assert waits[:3] == [3_000, 6_000, 12_000]
    assert waits[-1] == LONGEST_RETRY_MS


async def test_a_request_that_was_called_off_is_not_started(
    store: Store, kafka: Kafka, workflows: Workflows, dispatcher: RequestDispatcher
) -> None:
    topic_id = await store.ask("orders")
    kafka.ids, workflows.away_for = {"orders": topic_id}, {"orders"}
    await dispatcher.take_all()
    await store.call_off_request(topic_id, "ada", "not today")
    workflows.away_for = set()
    store.clock_ms += LONGEST_RETRY_MS
    await dispatcher.take_all()
    assert workflows.started == []
    assert await store.states() == {"orders": "called_off"}


@pytest.mark.parametrize("now", [None, uuid4()], ids=["deleted", "created again"])
async def test_a_request_for_a_topic_that_is_gone_is_kept_as_refused(
    store: Store,
    kafka: Kafka,
    workflows: Workflows,
    dispatcher: RequestDispatcher,
    now: UUID | None,
) -> None:
    await store.ask("orders")
    if now is not None:
        kafka.ids = {"orders": now}
    await dispatcher.take_all()
    assert workflows.started == []
    found = await store.only()
    assert (found.state, found.reason) == ("refused", "the topic was deleted or created again")


async def test_a_request_with_wrong_options_is_kept_as_refused_with_the_rule(
    store: Store, kafka: Kafka, workflows: Workflows, dispatcher: RequestDispatcher
) -> None:
    kafka.ids = {"orders": await store.ask("orders", durability="maybe")}
    await dispatcher.take_all()
    assert workflows.started == []
    found = await store.only()
    assert found.state == "refused"
    assert "choose among fsynced, replicated, tiered" in found.reason


@pytest.mark.parametrize(
    ("ended", "state", "reason"),
    [
        (None, "started", ""),
        (TopicOutcome("orders", "", "hybrid"), "done", ""),
        (TopicOutcome("orders", "", "aborted"), "done", "the migration was aborted"),
        (MigrationFailed("replica 2 is not in sync"), "refused", "replica 2 is not in sync"),
        (NoSuchMigration("none"), "done", "Temporal does not know its workflow any more"),
        (UnreachableError("away"), "started", ""),
    ],
)
async def test_what_became_of_a_started_migration_is_kept_with_its_request(
    store: Store,
    kafka: Kafka,
    workflows: Workflows,
    dispatcher: RequestDispatcher,
    ended: TopicOutcome | Exception | None,
    state: str,
    reason: str,
) -> None:
    """A preflight that refuses comes after the admin client has heard that all is well."""
    kafka.ids = {"orders": await store.ask("orders")}
    await dispatcher.take_all()
    if ended is not None:
        workflows.ended = {"orders": ended}
    await dispatcher.follow_all()
    found = await store.only()
    assert (found.state, found.reason) == (state, reason)


async def test_of_the_workflows_that_run_by_temporals_index_none_is_asked(
    store: Store, kafka: Kafka, workflows: Workflows, dispatcher: RequestDispatcher
) -> None:
    await dispatcher.follow_all()
    kafka.ids = {topic: await store.ask(topic) for topic in ("first", "second", "third")}
    await dispatcher.take_all()
    workflows.listed = {"first", "third"}
    # The index is late: this one runs no more.
    workflows.ended = {"third": TopicOutcome("third", "", "hybrid")}
    await dispatcher.follow_all()
    assert workflows.asked == ["second"]
    workflows.listed = {"first"}
    await dispatcher.follow_all()
    assert workflows.asked == ["second", "second", "third"]
    assert await store.states() == {"first": "started", "second": "started", "third": "done"}


async def test_a_migration_that_temporal_has_forgotten_is_started_again_until_it_is_over(
    store: Store, kafka: Kafka, workflows: Workflows, dispatcher: RequestDispatcher
) -> None:
    """Temporal was set up anew: nobody would drive the migration, and its request looked done."""
    topic_id = await store.ask("orders")
    kafka.ids = {"orders": topic_id}
    await dispatcher.take_all()
    await store.begin_tracking(
        "orders", topic_id, TrackingKind.MIGRATED, 1, "CreateTime", 1_000, None
    )
    workflows.ended = {"orders": NoSuchMigration("none")}
    await dispatcher.follow_all()
    found = await store.only()
    assert found.state == "retrying"
    assert "started again" in found.reason
    store.clock_ms += FIRST_RETRY_MS
    await dispatcher.take_all()
    assert len(workflows.started) == 2
    await store.abort_migration(topic_id)
    await dispatcher.follow_all()
    assert (await store.only()).state == "done"


@pytest.mark.parametrize(
    ("state", "ready", "forced", "ends"),
    [
        (MigrationState.MIGRATING, False, False, "retrying"),
        (MigrationState.HYBRID, False, False, "retrying"),
        (MigrationState.HYBRID, False, True, "done"),
        (MigrationState.HYBRID, True, False, "done"),
        (MigrationState.DISKLESS_ONLY, False, False, "done"),
    ],
)
async def test_only_what_is_left_to_do_is_started_again(
    kafka: Kafka, workflows: Workflows, state: MigrationState, ready: bool, forced: bool, ends: str
) -> None:
    plane = PlacedPlane(lambda: 1_700_000_000_000)
    topic_id = uuid4()
    await plane.request_migration("orders", topic_id, "ann", {})
    kafka.ids = {"orders": topic_id}
    dispatcher = RequestDispatcher(
        plane, workflows.start, kafka.current_id, workflows.outcome, workflows.running
    )
    await dispatcher.take_all()
    boundary = -1 if state is MigrationState.MIGRATING else 5
    row = TrackedPartition(topic_id, 0, state, 1, False, boundary, 1, ready=ready)
    plane.put(
        TrackedTopic(
            "orders", topic_id, TrackingKind.MIGRATED, TopicStatus.ACTIVE, "CreateTime", 1, {0: row}
        )
    )
    plane.topics.rows[0].completion_forced_by = "ann" if forced else None
    workflows.ended = {"orders": NoSuchMigration("none")}
    await dispatcher.follow_all()
    (found,) = await plane.list_requests()
    assert found.state == ends


async def test_a_notification_is_followed_at_once(
    store: Store, kafka: Kafka, workflows: Workflows, dispatcher: RequestDispatcher
) -> None:
    running = asyncio.create_task(dispatcher.run())
    await within("it to listen", store.listening.wait())
    kafka.ids = {"orders": await store.ask("orders")}
    await within("the workflow to hear of it", workflows.news.wait())
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
