"""Waits for workflows that were started elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException

from tideline.airflow.temporal.hook import TemporalHook
from tideline.airflow.temporal.link import TemporalWorkflowLink, keep_link
from tideline.airflow.temporal.operators import must_have_ended
from tideline.airflow.temporal.trigger import PATIENCE_S, TemporalWorkflowTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class TemporalWorkflowSensor(BaseSensorOperator):
    """Succeeds when all of its workflows have ended well; returns their results, in order. One that
    has failed, or that Temporal does not know, fails the task for good. Waits in the triggerer."""

    template_fields: Sequence[str] = ("workflow_ids",)
    operator_extra_links = (TemporalWorkflowLink(),)

    def __init__(
        self,
        *,
        workflow_ids: Sequence[str] | str,
        temporal_conn_id: str = TemporalHook.default_conn_name,
        patience_s: float = PATIENCE_S,
        **kwargs: Any,
    ) -> None:
        """``workflow_ids``: the newest run of each; ``patience_s``: how long Temporal may be
        silent; ``timeout`` of every sensor bounds the wait."""
        super().__init__(**kwargs)
        self.workflow_ids = workflow_ids
        self.temporal_conn_id = temporal_conn_id
        self.patience_s = patience_s

    def execute(self, context: Context) -> Any:
        ids = [self.workflow_ids] if isinstance(self.workflow_ids, str) else list(self.workflow_ids)
        if not ids:
            raise AirflowFailException("workflow_ids: none is given")
        target = TemporalHook(self.temporal_conn_id).target()
        keep_link(context, target.link(ids[0]))
        self.defer(
            trigger=TemporalWorkflowTrigger(
                [{"workflow_id": one} for one in ids], self.temporal_conn_id, self.patience_s
            ),
            method_name="ended",
            timeout=self.timeout,
        )

    def ended(self, context: Context, event: dict[str, Any]) -> list[Any]:
        """Called with what the trigger saw."""
        must_have_ended(event)
        return [one["result"] for one in event["workflows"]]
