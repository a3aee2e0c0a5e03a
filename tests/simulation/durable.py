"""What a workflow asks of Temporal, answered by the simulation, so that the real workflows run.

A workflow lives in a process that nothing ends, as its history does: timers, conditions, signals
and retries are kept, attempts of activities run in whichever worker lives. An attempt that is given
up goes on unheard (a zombie); one whose worker was killed is missed after :data:`MISSED_S`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import patch

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.converter import PayloadConverter
from temporalio.exceptions import (
    ApplicationError,
    ChildWorkflowError,
    RetryState,
    TemporalError,
    TimeoutType,
    WorkflowAlreadyStartedError,
)
from temporalio.exceptions import TimeoutError as NoAnswerInTime

import activities.configs
import activities.topic
from tests.simulation.loop import WALL_START_S, Process
from tests.simulation.network import NetworkedLoop

MISSED_S = 3.0
"""A killed worker's attempt is missed: Temporal's heartbeat bound, shorter, as runs are."""
EVENTS_OF_AN_ACTIVITY = 3
Run = Callable[[Any, Any], Awaitable[Any]]
"""An activity over a worker's services."""

_current: ContextVar[Execution] = ContextVar("workflow execution")
_attempt_of: ContextVar[str | None] = ContextVar("run of an attempt", default=None)


class ContinuedAsNew(BaseException):
    def __init__(self, given: Any) -> None:
        super().__init__("continued as new")
        self.given = given


@dataclass
class Execution:
    """One workflow id, over all its runs."""

    id: str
    instance: Any
    run_id: str
    first_run_id: str
    """Of the runs that continued each other."""
    events: int = 0


class Temporal:
    """Workflows by id, and the worker that runs what they call."""

    def __init__(
        self,
        loop: NetworkedLoop,
        activities_: Mapping[str, Run],
        worker: Callable[[], tuple[Process, Any] | None],
        began: Callable[[str, Any], None],
        ended: Callable[[str, Any], None],
    ) -> None:
        """``worker``: the process that lives, and its services. ``began`` and ``ended`` hear of
        each attempt, and of each success."""
        self._loop, self._activities, self._worker = loop, activities_, worker
        self._began, self._ended = began, ended
        self.process = Process(loop, "temporal")
        self._conditions: list[tuple[Callable[[], bool], Context, asyncio.Future[None]]] = []
        self.executions: dict[str, Execution] = {}
        self._runs = 0
        self._longest = random.Random(f"history {loop.network.seed}").choice((30, 90, 4_000))
        loop.watch(self.process, self._look)

    # -- workflows

    async def execute(self, kind: type, given: Any, id: str) -> Any:
        """Start a workflow; its result, whatever runs it takes."""
        if id in self.executions:
            raise WorkflowAlreadyStartedError(id, kind.__name__)
        first = f"run-{self._runs + 1}"
        while True:
            self._runs += 1
            execution = Execution(id, None, f"run-{self._runs}", first)
            token = _current.set(execution)
            try:
                execution.instance = kind(given)
                self.executions[id] = execution
                return await execution.instance.run(given)
            except ContinuedAsNew as again:
                as_json = isinstance(given, RawValue)
                given = RawValue(_to_payload(again.given)) if as_json else again.given
            finally:
                del self.executions[id]
                _current.reset(token)

    def _look(self) -> None:
        waiting, self._conditions = self._conditions, []
        for holds, context, told in waiting:
            if told.done():
                continue
            if context.run(holds):
                told.set_result(None)
            else:
                self._conditions.append((holds, context, told))

    async def _wait_condition(
        self, holds: Callable[[], bool], *, timeout: timedelta | None = None, **_: Any
    ) -> None:
        told: asyncio.Future[None] = self._loop.create_future()
        self._conditions.append((holds, copy_context(), told))
        await asyncio.wait_for(told, None if timeout is None else timeout.total_seconds())

    def _info(self) -> Any:
        execution = _current.get()
        return SimpleNamespace(
            workflow_id=execution.id,
            run_id=execution.run_id,
            first_execution_run_id=execution.first_run_id,
            task_queue="simulated",
            get_current_history_length=lambda: execution.events,
            is_continue_as_new_suggested=lambda: execution.events > self._longest,
        )

    async def _start_child(self, kind: str, given: Any, *, id: str, **_: Any) -> Any:
        if id in self.executions:
            raise WorkflowAlreadyStartedError(id, kind)
        return asyncio.ensure_future(self._child(kind, given, id))

    async def _child(self, kind: str, given: Any, id: str) -> Any:
        try:
            return await self.execute(CHILDREN[kind], given, id)
        except Exception as error:
            raise ChildWorkflowError(
                str(error),
                namespace="simulated",
                workflow_id=id,
                run_id="",
                workflow_type=kind,
                initiated_event_id=0,
                started_event_id=0,
                retry_state=RetryState.NON_RETRYABLE_FAILURE,
            ) from error

    def _external(self, id: str) -> Any:
        async def signal(name: str, given: Any) -> None:
            await asyncio.sleep(0)
            found = self.executions.get(id)
            if found is None:
                raise TemporalError(f"no workflow {id} runs")
            token = _current.set(found)
            try:
                getattr(found.instance, str(name))(given)
            finally:
                _current.reset(token)

        return SimpleNamespace(signal=signal)

    async def update(self, id: str, name: str, given: Any) -> Any:
        """An operator's update of the workflow ``id``."""
        found = self.executions[id]
        token = _current.set(found)
        try:
            return await getattr(found.instance, name)(RawValue(_to_payload(given)))
        finally:
            _current.reset(token)

    # -- activities

    def _start_activity(self, name: str, given: Any, **how: Any) -> asyncio.Task[Any]:
        _current.get().events += EVENTS_OF_AN_ACTIVITY
        return asyncio.ensure_future(self._activity(str(name), given, **how))

    async def _activity(
        self,
        name: str,
        given: Any,
        *,
        start_to_close_timeout: timedelta,
        retry_policy: Any,
        schedule_to_close_timeout: timedelta | None = None,
        **_: Any,
    ) -> Any:
        ends = None
        if schedule_to_close_timeout is not None:
            ends = self._loop.time() + schedule_to_close_timeout.total_seconds()
        pause, tries = retry_policy.initial_interval.total_seconds(), 0
        while True:
            tries += 1
            failure: Exception
            try:
                async with (
                    asyncio.timeout_at(ends),
                    asyncio.timeout(start_to_close_timeout.total_seconds()),
                ):
                    return await self._attempt(name, given)
            except ApplicationError as error:
                final = retry_policy.non_retryable_error_types or ()
                if error.non_retryable or error.type in final:
                    raise
                failure = error
            except (TimeoutError, NoAnswerInTime):
                failure = _late(name)
            late = ends is not None and self._loop.time() + pause >= ends
            if late or tries == retry_policy.maximum_attempts:
                raise failure if not late else _late(name) from failure
            await asyncio.sleep(pause)
            limit = retry_policy.maximum_interval.total_seconds()
            pause = min(pause * retry_policy.backoff_coefficient, limit)

    async def _attempt(self, name: str, given: Any) -> Any:
        while (found := self._worker()) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        process, services = found
        run_id = _current.get().run_id
        answer: asyncio.Future[Any] = self._loop.create_future()
        network = self._loop.network

        async def run() -> None:
            _attempt_of.set(run_id)
            result: Any = None
            error: Exception | None = None
            try:
                result = await self._activities[name](services, given)
            except ApplicationError as raised:
                error = raised
            except Exception as raised:
                self._loop.call_exception_handler({"message": name, "exception": raised})
                error = ApplicationError(repr(raised), type=type(raised).__name__)
            network.send(process, self.process, lambda: settle(result, error))

        def settle(result: Any, error: Exception | None) -> None:
            if not answer.done():
                if error is None:
                    self._ended(name, given)
                    answer.set_result(result)
                else:
                    answer.set_exception(error)

        def missed() -> None:
            if not answer.done():
                answer.set_exception(_late(name))

        def killed() -> None:
            self._loop.call_later(MISSED_S, missed, context=self.process.context)

        def arrived() -> None:
            process.spawn(run(), name)

        process.on_kill.append(killed)
        self._began(name, given)
        network.send(self.process, process, arrived)
        return await answer

    # -- in place of temporalio.workflow

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Workflow code asks this one while it lasts."""
        answers: dict[str, Any] = {
            "wait_condition": self._wait_condition,
            "sleep": _sleep,
            "info": self._info,
            "time": lambda: WALL_START_S + self._loop.time(),
            "now": lambda: datetime.fromtimestamp(WALL_START_S + self._loop.time(), UTC),
            "all_handlers_finished": lambda: True,
            "set_current_details": lambda text: None,
            "upsert_search_attributes": lambda updates: None,
            "upsert_memo": lambda updates: None,
            "payload_converter": lambda: PayloadConverter.default,
            "start_activity": self._start_activity,
            "start_local_activity": self._start_activity,
            "start_child_workflow": self._start_child,
            "get_external_workflow_handle": self._external,
            "continue_as_new": _continue_as_new,
        }
        with ExitStack() as stack:
            for name, answer in answers.items():
                stack.enter_context(patch.object(workflow, name, answer))
            # Else it asks whether history is replayed, which only a worker of Temporal's knows.
            stack.enter_context(patch.object(workflow.logger, "log_during_replay", True))
            for module in (activities.topic, activities.configs):
                stack.enter_context(patch.object(module, "current_run", _attempt_of.get))
            yield


_to_payload = PayloadConverter.default.to_payload


def _continue_as_new(given: Any) -> NoReturn:
    raise ContinuedAsNew(given)


async def _sleep(lasts: timedelta | float) -> None:
    await asyncio.sleep(lasts.total_seconds() if isinstance(lasts, timedelta) else lasts)


def _late(name: str) -> NoAnswerInTime:
    return NoAnswerInTime(
        f"{name} did not answer", type=TimeoutType.START_TO_CLOSE, last_heartbeat_details=[]
    )


CHILDREN: dict[str, type] = {}
"""By a workflow's name: what a workflow may start."""
