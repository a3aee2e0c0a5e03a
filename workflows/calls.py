"""One activity call that can be interrupted, and what a failed one means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, TimeoutError

with workflow.unsafe.imports_passed_through():
    from tideline.domain.messages import TopicActivity, waits_queue
    from workflows.phases import PATIENT

TIMED_OUT = "TimedOut"
"""Kind of a failure: no attempt answered in time, perhaps because no worker runs."""


class CallFailed(Exception):
    """An activity failed for good. ``kind`` is one of ``tideline.domain.failures``, or
    :data:`TIMED_OUT`, or the class of an unexpected error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message


class Interrupted(Exception):
    """Something more urgent came up: the activity was cancelled, its outcome does not matter."""


@dataclass(frozen=True, slots=True)
class Call:
    """How one activity is run."""

    name: str
    waits: bool = False
    """It may take long, so it must not occupy a slot that a write pause needs."""
    local: bool = False
    """Run beside the workflow, without a round trip to Temporal before and after it."""
    start_to_close: timedelta = timedelta(seconds=20)
    schedule_to_close: timedelta | None = None
    heartbeat: timedelta | None = None
    retry: RetryPolicy = field(default_factory=lambda: PATIENT)
    result: type | None = None


def quick(name: TopicActivity, result: type | None = None) -> Call:
    """A few round trips to Postgres or Kafka."""
    return Call(name, result=result)


def slow(name: TopicActivity, result: type | None = None, seconds: float = 60) -> Call:
    """It waits, or looks at much; it heartbeats."""
    return Call(
        name,
        waits=True,
        start_to_close=timedelta(seconds=seconds),
        heartbeat=timedelta(seconds=15),
        result=result,
    )


async def perform(call: Call, given: Any, interrupted: Callable[[], bool]) -> Any:
    """Run ``call`` to its end. Raises :class:`CallFailed`, or :class:`Interrupted` as soon as
    ``interrupted()`` holds; the activity is then cancelled and not waited for."""
    handle = _begin(call, given)
    try:
        await workflow.wait_condition(lambda: handle.done() or interrupted())
    except asyncio.CancelledError:
        _give_up(handle)
        raise
    if not handle.done():
        _give_up(handle)
        raise Interrupted
    try:
        return await handle
    except FailureError as error:
        raise failed(call, error) from error


def _begin(call: Call, given: Any) -> asyncio.Task[Any]:
    if call.local:
        return workflow.start_local_activity(
            str(call.name),
            given,
            result_type=call.result,
            start_to_close_timeout=call.start_to_close,
            schedule_to_close_timeout=call.schedule_to_close,
            retry_policy=call.retry,
        )
    queue = workflow.info().task_queue
    return workflow.start_activity(
        str(call.name),
        given,
        result_type=call.result,
        task_queue=waits_queue(queue) if call.waits else queue,
        start_to_close_timeout=call.start_to_close,
        schedule_to_close_timeout=call.schedule_to_close,
        heartbeat_timeout=call.heartbeat,
        retry_policy=call.retry,
    )


def _give_up(handle: asyncio.Task[Any]) -> None:
    """Cancel the activity; whatever becomes of it does not matter any more."""
    handle.cancel()
    handle.add_done_callback(lambda done: done.cancelled() or done.exception())


def failed(call: Call, error: FailureError) -> CallFailed:
    """The activity's own words, without Temporal's wrapping: a local activity's error comes as it
    is, another's inside an ``ActivityError``."""
    match error.cause if isinstance(error, ActivityError) else error:
        case ApplicationError() as cause:
            return CallFailed(cause.type or type(cause).__name__, cause.message)
        case TimeoutError() as cause:
            why = "is a worker running?"
            if isinstance(cause.cause, ApplicationError):
                why = f"the last attempt said: {cause.cause.message}"
            return CallFailed(TIMED_OUT, f"{call.name}: no answer in time; {why}")
        case other:
            return CallFailed(type(other).__name__, str(other or error))
