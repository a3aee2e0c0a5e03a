"""Waits for the ends of workflows, over outages of Temporal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from tideline.airflow.temporal.calls import (
    CALL_TIMEOUT_S,
    TemporalSilent,
    cause_of,
    readable,
    shared,
)
from tideline.airflow.temporal.target import Target

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowExecutionDescription, WorkflowHandle

ENDED, FAILED, SILENT = "ended", "failed", "silent"
LONGEST_POLL_S = 60.0
"""A wait is asked anew after this, so that a server that hangs is noticed."""
AT_ONCE = 100
"""Workflows of one trigger that are waited for at once: all have to end, in whatever order."""
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 10.0)
"""Before a further try at a Temporal that is silent."""

Looked = Callable[["WorkflowExecutionDescription"], None]


@dataclass(frozen=True, slots=True)
class WorkflowRun:
    """One run of a workflow, and those that it continues as."""

    workflow_id: str
    run_id: str = ""
    """Empty: the newest."""

    def handle(self, client: Client) -> WorkflowHandle[Any, Any]:
        return client.get_workflow_handle(self.workflow_id, run_id=self.run_id or None)


@dataclass(frozen=True, slots=True)
class Ended:
    """How one ended."""

    workflow_id: str
    run_id: str
    status: str
    """:data:`ENDED`, :data:`FAILED`, or :data:`SILENT`: nobody knows."""
    result: Any = None
    """What it returned, as JSON has it."""
    message: str = ""
    """Why it has failed, or who is silent."""


async def follow(
    target: Target,
    run: WorkflowRun,
    patience_s: float,
    looked: Looked = lambda _: None,
) -> Ended:
    """Wait for the end of ``run``. ``looked`` is told what Temporal says of it, once a minute.
    Given up as :data:`SILENT` when Temporal has not answered for ``patience_s`` seconds."""
    from temporalio.client import WorkflowFailureError

    answered, tries = time.monotonic(), 0

    def ended(status: str, result: Any = None, message: str = "") -> Ended:
        return Ended(run.workflow_id, run.run_id, status, result, message)

    while True:
        try:
            with readable(target, run.workflow_id):
                handle = run.handle(await shared(target))
                looked(await handle.describe(rpc_timeout=timedelta(seconds=CALL_TIMEOUT_S)))
                # Each round begins with a short call: a silence is counted from the last answer.
                answered, tries = time.monotonic(), 0
                try:
                    async with asyncio.timeout(LONGEST_POLL_S):
                        return ended(ENDED, await handle.result())
                except TimeoutError:
                    continue
                except WorkflowFailureError as error:
                    return ended(FAILED, message=cause_of(error))
        except AirflowFailException as error:
            return ended(FAILED, message=str(error))
        except TemporalSilent as error:
            pause_s = PAUSES_S[min(tries, len(PAUSES_S) - 1)]
            tries += 1
            if time.monotonic() - answered + pause_s > patience_s:
                return ended(SILENT, message=str(error))
            await asyncio.sleep(pause_s)


async def follow_all(
    target: Target,
    runs: Sequence[WorkflowRun],
    patience_s: float,
    looked: Callable[[WorkflowRun], Looked] = lambda _: lambda _: None,
) -> list[Ended]:
    """The same of many, over one connection, in their order."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(run: WorkflowRun) -> Ended:
        async with places:
            return await follow(target, run, patience_s, looked(run))

    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(one(run)) for run in runs]
    return [wait.result() for wait in waits]


def event_of(found: Sequence[Ended]) -> dict[str, Any]:
    """For a task: the worst status, its messages, and every end."""
    statuses = {one.status for one in found}
    status = next((bad for bad in (SILENT, FAILED) if bad in statuses), ENDED)
    messages = [one.message for one in found if one.status == status and one.message]
    return {
        "status": status,
        "message": "; ".join(messages)[:2_000],
        "workflows": [asdict(one) for one in found],
    }


def runs_of(given: Sequence[Mapping[str, str]]) -> list[WorkflowRun]:
    """As a trigger serialises them."""
    return [WorkflowRun(one["workflow_id"], one.get("run_id") or "") for one in given]
