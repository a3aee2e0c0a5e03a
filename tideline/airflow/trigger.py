"""Waits in the triggerer for the end of a topic's migration: no worker slot is held."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tideline.airflow.temporal.following import ENDED, FAILED, SILENT, Ended
from tideline.airflow.temporal.trigger import TemporalWorkflowTrigger
from tideline.domain.messages import WAITING_MEMO, SearchAttribute
from tideline.errors import TidelineError
from tideline.settings import AirflowSettings, load

if TYPE_CHECKING:
    from temporalio.client import WorkflowExecutionDescription

    from tideline.airflow.temporal.target import Target

__all__ = ["ENDED", "FAILED", "LEFT", "SILENT", "TopicMigrationTrigger"]
LEFT = "left"
HAS_NO_PLACE = "validating"
"""Stage of a topic's workflow that waits for one, too."""
LOOKS_EVERY_S = 60.0
"""How often Temporal is asked where the migration stands, as long as it answers."""


class TopicMigrationTrigger(TemporalWorkflowTrigger):
    """Fires once, with a dictionary: ``status`` is ``ended`` (and ``outcome`` the workflow's
    result), ``failed``, ``silent`` or ``left`` (and ``message`` says why).

    Everything it needs is in its arguments and the settings of the process, so that any triggerer
    may go on with it. Nothing happens to the migration when a triggerer stops.
    """

    def __init__(
        self,
        workflow_id: str,
        run_id: str,
        topic: str,
        abort_when_killed: bool = False,
        leave_at: float | None = None,
    ) -> None:
        """``abort_when_killed``: a task that a person marks or clears asks for an abort, which wins
        only before B0; otherwise the migration goes on. ``leave_at``: from then on (seconds since
        the epoch) its end is not waited for, if it has one of the places of topics that migrate at
        once: one that waits for it holds nobody up, but is held up."""
        super().__init__([{"workflow_id": workflow_id, "run_id": run_id}])
        self.workflow_id = workflow_id
        self.run_id = run_id
        self.topic = topic
        self.abort_when_killed = abort_when_killed
        self.leave_at = leave_at

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "workflow_id": self.workflow_id,
                "run_id": self.run_id,
                "topic": self.topic,
                "abort_when_killed": self.abort_when_killed,
                "leave_at": self.leave_at,
            },
        )

    async def target(self) -> Target:
        # Every task of a DAG file imports this module; the clients are needed here alone.
        from tideline.airflow import migrations

        return migrations.target()

    async def wait(self) -> list[Ended]:
        self.patience_s = load(AirflowSettings).airflow_temporal_patience_ms / 1000
        try:
            return await self._ended_or_left()
        except TidelineError as error:
            return [Ended(self.workflow_id, self.run_id, FAILED, message=str(error))]

    async def _ended_or_left(self) -> list[Ended]:
        if self.leave_at is None:
            return await super().wait()
        ending = asyncio.ensure_future(super().wait())
        try:
            patience_s = max(0.0, self.leave_at - time.time())
            while True:
                done, _ = await asyncio.wait([ending], timeout=patience_s)
                if done:
                    return ending.result()
                where = self._told.get(self.workflow_id, "")
                if where and not where.startswith(HAS_NO_PLACE):
                    why = f"the migration goes on, and the wave without it. It is in {where}"
                    return [Ended(self.workflow_id, self.run_id, LEFT, message=why)]
                patience_s = LOOKS_EVERY_S
        finally:
            ending.cancel()

    def payload(self, found: Sequence[Ended]) -> dict[str, Any]:
        (one,) = found
        if one.status == ENDED:
            return {"status": ENDED, "outcome": one.result}
        why = "the migration has ended: " if one.status == FAILED else ""
        return {"status": one.status, "message": f"{why}{one.message}"}

    def shown(self, description: WorkflowExecutionDescription) -> str:
        facts = [str(v) for v in description.search_attributes.get(SearchAttribute.PHASE, ())]
        if payload := description.raw_info.memo.fields.get(WAITING_MEMO):
            facts.append(description.data_converter.payload_converter.from_payload(payload, str))
        return ": ".join(filter(None, facts))

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
