"""The harness: the clock of the server that all tests of a process share goes on after each of
them, however it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity, workflow
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from temporalio.workflow import ActivityCancellationType, ParentClosePolicy

from tests.contract.workflows.skipping import settled
from tests.support.waiting import eventually, within
from tests.temporal_build import BUILD

A_DAY = timedelta(days=1)


@workflow.defn(name="Day", sandboxed=False)
class Day:
    """Waits for a day, or for a word."""

    def __init__(self) -> None:
        self.told = False

    @workflow.run
    async def run(self) -> None:
        with suppress(TimeoutError):
            await workflow.wait_condition(lambda: self.told, timeout=A_DAY)

    @workflow.signal
    def tell(self) -> None:
        self.told = True


@workflow.defn(name="Acting", sandboxed=False)
class Acting:
    """Waits for an activity, and for no answer of it when it is cancelled."""

    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(
            "act",
            start_to_close_timeout=A_DAY,
            cancellation_type=ActivityCancellationType.ABANDON,
        )


@workflow.defn(name="Parent", sandboxed=False)
class Parent:
    """Leaves its child behind."""

    @workflow.run
    async def run(self, child: str) -> None:
        policy = ParentClosePolicy.ABANDON
        await workflow.start_child_workflow("Day", id=child, parent_close_policy=policy)


class Place:
    """A worker, and the names that are of one test."""

    def __init__(self, client: Client) -> None:
        self.client, self.name = client, f"skipping-{uuid4().hex[:8]}"
        self.acts, self.may_end = asyncio.Event(), asyncio.Event()

    @activity.defn(name="act")
    async def act(self) -> None:
        self.acts.set()
        await self.may_end.wait()

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        async with Worker(
            self.client,
            task_queue=self.name,
            workflows=[Day, Acting, Parent],
            activities=[self.act],
            workflow_runner=UnsandboxedWorkflowRunner(),
            deployment_config=BUILD,
        ):
            yield

    async def start(self, kind: str, *given: Any) -> WorkflowHandle[Any, Any]:
        return await self.client.start_workflow(
            kind, args=given, id=f"{kind}-{self.name}", task_queue=self.name
        )

    async def acting(self) -> WorkflowHandle[Any, Any]:
        handle = await self.start("Acting")
        await within("the activity to begin", self.acts.wait())
        return handle


async def terminated(place: Place) -> None:
    async with place.worker():
        await (await place.acting()).terminate()
        place.may_end.set()


async def cancelled(place: Place) -> None:
    async with place.worker():
        handle = await place.acting()
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await within("the workflow to be cancelled", handle.result())
        place.may_end.set()


async def without_its_worker(place: Place) -> None:
    """Its activity is under way, and is to be begun again, or has been, for nobody."""
    async with place.worker():
        await place.acting()


async def never_begun(place: Place) -> None:
    await place.start("Day")


async def left_behind(place: Place) -> None:
    async with place.worker():
        child = f"child-{place.name}"
        parent = await place.start("Parent", child)

        async def alone() -> bool:
            """Whoever awaited the parent's result would let the child's day pass."""
            return (await parent.describe()).status == WorkflowExecutionStatus.COMPLETED

        await eventually("the parent to end", alone)
        handle = place.client.get_workflow_handle(child)
        await handle.signal("tell")
        await within("the child", handle.result())


async def waiting(place: Place) -> None:
    """Nothing is under way in it."""
    async with place.worker():
        await _waits(await place.start("Day"))


async def well(place: Place) -> None:
    async with place.worker():
        await within("a day", (await place.start("Day")).result())


async def _waits(day: WorkflowHandle[Any, Any]) -> None:
    async def has_its_timer() -> bool:
        events = (await day.fetch_history()).events
        return any(event.HasField("timer_started_event_attributes") for event in events)

    await eventually("the day to begin", has_its_timer)


@pytest.mark.parametrize(
    ("ends", "is_forgotten"),
    [
        (terminated, True),
        (cancelled, True),
        (without_its_worker, None),
        (never_begun, True),
        (left_behind, True),
        (waiting, False),
        (well, False),
    ],
)
async def test_after_any_end_the_next_test_skips_a_day_when_it_waits_and_not_before(
    skipping: WorkflowEnvironment,
    ends: Callable[[Place], Awaitable[None]],
    is_forgotten: bool | None,
) -> None:
    """What the server forgets it may remember one day (temporalio/sdk-java#1138): then there is
    nothing left for ``settled`` to do."""
    await ends(Place(skipping.client))
    forgotten = await settled(skipping) > 0
    assert is_forgotten in (forgotten, None)
    place = Place(skipping.client)
    async with place.worker():
        day = await place.start("Day")
        await _waits(day)
        before = await skipping.get_current_time()
        passed = await skipping.get_current_time() - before
        assert passed < A_DAY / 2, "it was let go of too often"
        await within("a day to pass", day.result(), 20)
        assert await skipping.get_current_time() - before >= A_DAY
