"""Waits in the triggerer for the end of a topic's migration: no worker slot is held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tideline.background import spawn
from tideline.errors import TidelineError
from tideline.settings import AirflowSettings, load

ENDED, FAILED, SILENT = "ended", "failed", "silent"
SETTLED_AFTER_S = 3.0
"""Airflow (3.3) takes a task that resumes before its scheduler has seen the end of the part before
the wait for one that was killed, and tries it again: no wait is shorter than this."""


class TopicMigrationTrigger(BaseTrigger):
    """Fires once, with a dictionary: ``status`` is ``ended`` (and ``outcome`` the workflow's
    result), ``failed`` or ``silent`` (and ``message`` says why).

    Everything it needs is in its arguments and the settings of the process, so that any triggerer
    may go on with it. Nothing happens to the migration when a triggerer stops.
    """

    def __init__(
        self, workflow_id: str, run_id: str, topic: str, abort_when_killed: bool = False
    ) -> None:
        """``abort_when_killed``: a task that a person marks or clears asks for an abort, which wins
        only before B0; otherwise the migration goes on."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.workflow_id = workflow_id
        self.run_id = run_id
        self.topic = topic
        self.abort_when_killed = abort_when_killed

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "workflow_id": self.workflow_id,
                "run_id": self.run_id,
                "topic": self.topic,
                "abort_when_killed": self.abort_when_killed,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        settled = spawn(asyncio.sleep(SETTLED_AFTER_S), "settled")
        payload = await self._wait()
        await settled
        yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def _wait(self) -> dict[str, Any]:
        # Every task of a DAG file imports this module; the clients are needed here alone.
        from tideline.airflow import migrations
        from tideline.temporal import TemporalUnavailable

        last = ""

        def looked(where: str) -> None:
            nonlocal last
            if where != last:
                self.log.info("%s: %s", self.topic, where)
                last = where

        patience_s = load(AirflowSettings).airflow_temporal_patience_ms / 1000
        started = migrations.Started(self.workflow_id, self.run_id, None)
        try:
            outcome = await migrations.outcome(started, patience_s, looked)
        except TemporalUnavailable as error:
            return {"status": SILENT, "message": str(error)}
        except TidelineError as error:
            return {"status": FAILED, "message": str(error)}
        return {"status": ENDED, "outcome": asdict(outcome)}

    async def on_kill(self) -> None:
        from tideline.airflow import migrations

        if not self.abort_when_killed:
            self.log.info("%s: the migration goes on; it is %s", self.topic, self.workflow_id)
            return
        try:
            decision = await migrations.ask_for_abort(self.workflow_id)
        except TidelineError as error:
            self.log.warning("%s: the abort was not decided: %s", self.topic, error)
            return
        verdict = "is aborted" if decision.won else f"is not aborted: {decision.reason}"
        self.log.info("%s: the migration %s", self.topic, verdict)
