"""A button at the task: its workflow in Temporal's UI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink
from airflow.sdk.execution_time.xcom import XCom

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import TaskInstanceKey

WORKFLOW_URL = "temporal_workflow_url"
"""XCom of the address; there from the moment the workflow is started or found."""


class TemporalWorkflowLink(BaseOperatorLink):
    """Empty where the connection names no UI."""

    name = "Temporal UI"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return XCom.get_value(ti_key=ti_key, key=WORKFLOW_URL) or ""


def keep_link(context: Context, url: str | None) -> None:
    """For the button, while the task waits and after it."""
    if url:
        context["ti"].xcom_push(key=WORKFLOW_URL, value=url)
