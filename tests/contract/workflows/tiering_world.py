"""A topic whose tiered storage is switched, for the workflow alone: brokers, bucket, and script."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from tests.contract.workflows.world import TOPIC_ID, ended, fails
from tests.temporal_build import BUILD
from tideline.domain import failures
from tideline.domain.messages import (
    TopicActivity,
    TopicMigrationInput,
    TopicRef,
    waits_queue,
)
from tideline.domain.tiered_storage import LocalRetention, local_retention, state_of
from tideline.domain.tiered_storage_change import (
    TIERED_STORAGE_WORKFLOW,
    ConfigsToSet,
    DeletionLook,
    Proof,
    Remaining,
    Review,
    ReviewRequest,
    TieredStorageActivity,
    TieredStorageOutcome,
)
from workflows import calls
from workflows.tiered_storage_change import TieredStorageChange
from workflows.topic_migration import TopicMigration

ON: dict[str, str | None] = {"remote.storage.enable": "true", "local.retention.ms": "3600000"}


@dataclass
class TieringWorld:
    topic: str
    topic_id: UUID = TOPIC_ID
    configs: dict[str, str | None] = field(default_factory=lambda: dict(ON))
    left: Remaining = field(default_factory=Remaining)
    """In remote storage, of a topic that is off."""
    not_proven: int = 0
    """How often the proof is not given yet."""
    by_hand: list[LocalRetention] = field(default_factory=list)
    """Local retentions that somebody sets before a proof."""
    refused_releases: int = 0
    """How often Kafka refuses to have the user's local retention back."""
    done: list[str] = field(default_factory=list)
    script: dict[str, list[ApplicationError]] = field(default_factory=lambda: defaultdict(list))
    proving: asyncio.Event = field(default_factory=asyncio.Event)
    reviewing: asyncio.Event | None = None
    """Reviews end when it is set; ``None``: at once."""
    proven: asyncio.Event | None = None
    """The same of proofs."""
    sets: list[dict[str, str | None]] = field(default_factory=list)

    @property
    def queue(self) -> str:
        """Of its own, as that of :class:`World`."""
        return self.topic

    @property
    def ref(self) -> TopicRef:
        return TopicRef(self.topic, self.topic_id.hex, 1)

    def _enter(self, name: str) -> None:
        self.done.append(name)
        if self.script[name]:
            raise self.script[name].pop(0)

    @activity.defn(name=TopicActivity.RESOLVE_TOPIC)
    async def resolve(self, given: TopicMigrationInput) -> TopicRef:
        return self.ref

    @activity.defn(name=TieredStorageActivity.REVIEW)
    async def review(self, request: ReviewRequest) -> Review:
        self._enter("review")
        if self.reviewing is not None:
            await self.reviewing.wait()
        state = state_of(self.configs, anything_left=not self.left.nothing)
        return Review(state.value, local_retention(self.configs))

    @activity.defn(name=TieredStorageActivity.SET)
    async def set(self, wanted: ConfigsToSet) -> None:
        self._enter("set")
        if self.refused_releases and "remote.storage.enable" not in wanted.configs:
            self.refused_releases -= 1
            raise fails(failures.REFUSED, "Value must not be more than retention.ms")[0]
        self.sets.append(wanted.configs)
        for key, value in wanted.configs.items():
            self.configs[key] = value

    @activity.defn(name=TieredStorageActivity.PROVE)
    async def prove(self, ref: TopicRef) -> Proof:
        self._enter("prove")
        self.proving.set()
        if self.proven is not None:
            await self.proven.wait()
        if self.by_hand:
            users = self.by_hand.pop()
            self.configs |= users.configs()
            return Proof(users)
        if self.not_proven > 0:
            self.not_proven -= 1
            raise ApplicationError("offsets up to 99 are nowhere", type="Waiting")
        return Proof()

    @activity.defn(name=TieredStorageActivity.DELETE)
    async def delete(self, look: DeletionLook) -> Remaining:
        self._enter("collect" if look.collect else "look")
        collected = self.left.objects if look.collect else 0
        if look.collect:
            self.left = Remaining(self.left.segments)
        return Remaining(self.left.segments, self.left.objects, collected)

    async def only_reviews(self, handle: WorkflowHandle[Any, Any]) -> bool:
        """The history is long, no timer runs, and nothing is under way but the review of another
        target: whatever was to end for a new run has ended."""
        pending = (await handle.describe()).raw_description.pending_activities
        if [each.activity_type.name for each in pending] != [TieredStorageActivity.REVIEW]:
            return False
        history = await handle.fetch_history()
        kinds = Counter(EventType.Name(event.event_type) for event in history.events)
        timers = kinds["EVENT_TYPE_TIMER_STARTED"] == kinds["EVENT_TYPE_TIMER_FIRED"]
        return timers and len(history.events) > calls.LONG_HISTORY

    @asynccontextmanager
    async def worker(self, client: Client) -> AsyncIterator[None]:
        activities = [self.resolve, self.review, self.set, self.prove, self.delete]
        async with (
            Worker(
                client, task_queue=self.queue, workflows=[TieredStorageChange, TopicMigration],
                activities=activities, deployment_config=BUILD,
            ),
            Worker(
                client, task_queue=waits_queue(self.queue), activities=activities,
                deployment_config=BUILD,
            ),
        ):  # fmt: skip
            yield

    async def start(
        self, client: Client, target: str, workflow_id: str = "", **options: Any
    ) -> WorkflowHandle[Any, TieredStorageOutcome]:
        return await client.start_workflow(
            TIERED_STORAGE_WORKFLOW,
            {"topic": self.topic, "target": target, **options},
            id=workflow_id or self.ref.workflow_id,
            task_queue=self.queue,
            result_type=TieredStorageOutcome,
        )

    async def run(self, client: Client, target: str, **options: Any) -> TieredStorageOutcome:
        handle = await self.start(client, target, **options)
        return await ended(handle)
