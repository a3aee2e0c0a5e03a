"""Activity calls: how each is run, what a failed one means, and trying until one succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError
from temporalio.exceptions import TimeoutError as NoAnswerInTime

with workflow.unsafe.imports_passed_through():
    from tideline.domain import failures
    from tideline.domain.messages import TopicActivity, waits_queue
    from tideline.domain.waits import Waits, waits_after

NOT_RETRIED_BY_TEMPORAL = [*failures.NON_RETRYABLE, failures.WAITING]
"""The workflow decides what follows these. A wait is repeated by the workflow, too, because only
the workflow can show its reason."""

PATIENT = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=5),
    maximum_attempts=6,
    non_retryable_error_types=NOT_RETRIED_BY_TEMPORAL,
)
"""About ten seconds of an unreachable part; then the workflow shows it and goes on trying."""


class CallFailed(Exception):
    """An activity failed for good. ``kind`` is one of ``tideline.domain.failures``, or the class of
    an unexpected error; ``waits``: for what, if it is tried again."""

    def __init__(self, kind: str, message: str, waits: Waits = Waits.OTHER) -> None:
        super().__init__(message)
        self.kind, self.message, self.waits = kind, message, waits


class Interrupted(Exception):
    """Something more urgent came up: the activity was cancelled, its outcome does not matter."""


@dataclass(frozen=True, slots=True)
class Call:
    """How one activity is run."""

    name: str
    result: type | None = None
    waits: bool = False
    """It may take long, so it must not occupy a slot that a write pause needs."""
    start_to_close: timedelta = timedelta(seconds=20)
    """One attempt. How many there are is the retry policy's."""
    heartbeat: timedelta | None = None
    retry: RetryPolicy = field(default_factory=lambda: PATIENT)
    beyond_hold: timedelta | None = None
    """Of the write pause: all attempts together end with the quiesce's hold, this much later.
    It runs as a local activity: each round trip to Temporal would be paid by every producer. What
    that gives up (progress that survives the worker) the control plane makes good: a repeated
    phase takes a newer generation, and B0 is persisted once."""

    in_process: timedelta | None = None
    """One try, so long, as a local activity: it costs no round trip to Temporal. For what mostly
    succeeds at once and may be repeated."""

    @property
    def parks_producers(self) -> bool:
        """When it fails for good, producers are let go first, and the attempt starts anew with a
        new generation; any other call is shown and tried again."""
        return self.beyond_hold is not None


ONCE = RetryPolicy(maximum_attempts=1)


TRIED_FOR = timedelta(seconds=2)
"""Longer than an activity looks when it is tried in process; much shorter than a workflow task."""


def tried_in_process(call: Call, bound: timedelta = TRIED_FOR) -> Call:
    """The same, once and at once; what fails or has to wait is then called as it is."""
    return replace(call, in_process=bound)


LONG_HISTORY = 4_000
"""Events after which a workflow that waits continues as new."""


def history_is_long() -> bool:
    """It is time to continue as new."""
    info = workflow.info()
    return info.get_current_history_length() > LONG_HISTORY or info.is_continue_as_new_suggested()


def quick(name: TopicActivity, result: type | None = None) -> Call:
    """A few round trips to Postgres or Kafka."""
    return Call(name, result)


def slow(name: str, result: type | None = None, seconds: float = 60) -> Call:
    """It waits, or looks at much; it heartbeats."""
    return Call(
        name,
        result,
        waits=True,
        start_to_close=timedelta(seconds=seconds),
        heartbeat=timedelta(seconds=15),
    )


def not_interrupted() -> bool:
    """For a call that nothing interrupts."""
    return False


async def perform(call: Call, given: Any, interrupted: Callable[[], bool] = not_interrupted) -> Any:
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
    """``given`` is a ``PhaseInput`` if the call belongs to the write pause."""
    if call.beyond_hold is not None:
        bound = timedelta(milliseconds=given.options.quiesce_hold_ms) + call.beyond_hold
        return workflow.start_local_activity(
            str(call.name),
            given,
            result_type=call.result,
            start_to_close_timeout=bound,
            schedule_to_close_timeout=bound,
            retry_policy=call.retry,
        )
    if call.in_process is not None:
        return workflow.start_local_activity(
            str(call.name),
            given,
            result_type=call.result,
            start_to_close_timeout=call.in_process,
            schedule_to_close_timeout=call.in_process,
            retry_policy=ONCE,
        )
    queue = workflow.info().task_queue
    return workflow.start_activity(
        str(call.name),
        given,
        result_type=call.result,
        task_queue=waits_queue(queue) if call.waits else queue,
        start_to_close_timeout=call.start_to_close,
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
            kind, message = cause.type or type(cause).__name__, cause.message
        case NoAnswerInTime() as cause:
            why = "is a worker running?"
            if isinstance(cause.cause, ApplicationError):
                why = f"the last attempt said: {cause.cause.message}"
            kind, message = failures.TIMED_OUT, f"{call.name}: no answer in time; {why}"
        case other:
            kind, message = type(other).__name__, str(other or error)
    return CallFailed(kind, message, waits_after(call.name, kind))


class RetryUntilSuccess:
    """The calls of one workflow that are tried until they succeed. ``report`` gets the reason why
    one has not yet and its kind, and an empty one when it has. ``must_continue``: asked after each
    failed try whether it is time for a new run."""

    def __init__(
        self,
        report: Callable[[str, Waits], None],
        must_continue: Callable[[], bool] = not_interrupted,
    ) -> None:
        self._report, self._must_continue = report, must_continue
        self._at_once = False

    def retry_now(self) -> None:
        """Try at once what is being waited for."""
        self._at_once = True

    async def call(
        self,
        call: Call,
        given: Any,
        interrupted: Callable[[], bool] = not_interrupted,
        reraise: Collection[str] = (),
    ) -> Any:
        """The result of ``call``. Raises :class:`CallFailed` only for a kind in ``reraise``, and
        :class:`Interrupted` when ``interrupted()`` comes to hold, or a new run is due."""
        tries = 0
        while True:
            try:
                result = await perform(call, given, interrupted)
            except CallFailed as failure:
                if failure.kind in reraise:
                    raise
                tries += 1
                self._report(failure.message, failure.waits)
                await self.wait_before_retry(tries, interrupted)
                if self._must_continue():
                    raise Interrupted from failure
            else:
                if tries:
                    self._report("", Waits.NOTHING)
                return result

    async def wait_before_retry(self, failed: int, interrupted: Callable[[], bool]) -> None:
        """0.5 s after the first failure, doubled up to 15 s; an interruption or
        :meth:`retry_now` cuts it short."""
        self._at_once = False
        bound = timedelta(seconds=min(15.0, 0.5 * 2 ** min(failed - 1, 10)))
        try:
            await workflow.wait_condition(lambda: self._at_once or interrupted(), timeout=bound)
        except TimeoutError:
            return
