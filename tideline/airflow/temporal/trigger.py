"""Waits in the triggerer for the ends of workflows: no worker slot is held."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tideline.airflow.temporal.calls import readable, shared
from tideline.airflow.temporal.following import (
    Ended,
    Looked,
    WorkflowRun,
    event_of,
    follow_all,
    runs_of,
)
from tideline.airflow.temporal.hook import TemporalHook
from tideline.airflow.temporal.target import Target

if TYPE_CHECKING:
    from temporalio.client import WorkflowExecutionDescription, WorkflowHandle

WhenKilled = Literal["leave", "cancel", "terminate"]
PATIENCE_S = 60.0
SETTLED_AFTER_S = 3.0
"""Airflow (3.3) takes a task that resumes before its scheduler has seen the end of the part before
the wait for one that was killed, and tries it again: no wait is shorter than this."""


class TemporalWorkflowTrigger(BaseTrigger):
    """Fires once, when all of its workflows have ended, with a dictionary: ``status`` is ``ended``,
    ``failed`` (one of them did) or ``silent`` (Temporal is), ``message`` says why, ``workflows``
    has an entry for each, in order: ``workflow_id``, ``run_id``, ``status``, ``result``,
    ``message``.

    Any triggerer may go on with it; nothing happens to the workflows when one stops. All triggers
    of a triggerer share one connection, on which each workflow is one request a minute.
    """

    def __init__(
        self,
        workflows: Sequence[dict[str, str]],
        temporal_conn_id: str = TemporalHook.default_conn_name,
        patience_s: float = PATIENCE_S,
        when_killed: WhenKilled = "leave",
    ) -> None:
        """``workflows``: ``workflow_id`` and, unless the newest is meant, ``run_id`` of each;
        ``patience_s``: how long Temporal may be silent; ``when_killed``: what becomes of those that
        run when a person marks or clears the task."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.workflows = list(workflows)
        self.temporal_conn_id = temporal_conn_id
        self.patience_s = patience_s
        self.when_killed = when_killed
        self._told: dict[str, str] = {}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "workflows": self.workflows,
                "temporal_conn_id": self.temporal_conn_id,
                "patience_s": self.patience_s,
                "when_killed": self.when_killed,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        began = time.monotonic()
        payload = self.payload(await self.wait())
        await asyncio.sleep(SETTLED_AFTER_S - (time.monotonic() - began))
        yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def wait(self) -> list[Ended]:
        return await follow_all(
            await self.target(), runs_of(self.workflows), self.patience_s, self._looked
        )

    async def target(self) -> Target:
        return await TemporalHook(self.temporal_conn_id).atarget()

    def payload(self, found: Sequence[Ended]) -> dict[str, Any]:
        """What the task is told."""
        return event_of(found)

    def shown(self, description: WorkflowExecutionDescription) -> str:
        """One line for the task's log, written when it changes."""
        status = description.status
        return status.name.lower() if status is not None else ""

    def _looked(self, run: WorkflowRun) -> Looked:
        def looked(description: WorkflowExecutionDescription) -> None:
            where = self.shown(description)
            if where != self._told.get(run.workflow_id):
                self.log.info("%s: %s", run.workflow_id, where)
                self._told[run.workflow_id] = where

        return looked

    async def on_kill(self) -> None:
        if self.when_killed == "leave":
            return
        target = await self.target()
        client = await shared(target)
        for run in runs_of(self.workflows):
            with readable(target, run.workflow_id):
                await stop(run.handle(client), self.when_killed)


async def stop(handle: WorkflowHandle[Any, Any], how: WhenKilled) -> None:
    """Ask for its end, or end it."""
    if how == "cancel":
        await handle.cancel()
    elif how == "terminate":
        await handle.terminate(reason="the task of Airflow was killed")
