"""Tasks that run a job, and what they tell the assets that they update."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowSkipException

from tideline.airflow.jobs import TidelineJobOperator
from tideline.airflow.results import doubts, told
from tideline.airflow.spark_link import SparkUiLink
from tideline.airflow.wiring import COVERAGE_COMPLETE

if TYPE_CHECKING:
    from airflow.sdk import Context


def job(name: str, *, pool: str, timeout_ms: int, **more: Any) -> TidelineJobOperator:
    """The task ``name``, which runs the job of that name and tells its assets what it found. A try
    that takes longer than ``timeout_ms`` is ended and counts as failed."""
    made = TidelineJobOperator(
        task_id=name,
        job=name,
        pool=pool,
        execution_timeout=timedelta(milliseconds=timeout_ms),
        post_execute=tell_assets,
        **more,
    )
    made.operator_extra_links = (SparkUiLink(),)
    return made


def tell_assets(context: Context, result: Mapping[str, Any] | None = None) -> None:
    """After a task: each of its assets' events gets run id and counts as ``extra``."""
    for asset in context["task"].outlets:
        context["outlet_events"][asset].extra = told(result or {})


def complete() -> None:
    """Updates :data:`COVERAGE_COMPLETE`, or is skipped when something is in doubt."""
    context = get_current_context()
    found: dict[str, Any] = context["ti"].xcom_pull(task_ids="coverage") or {}
    if found_wrong := doubts(found):
        raise AirflowSkipException(f"not complete: {found_wrong}; no planned wave starts")
    context["outlet_events"][COVERAGE_COMPLETE].extra = told(found)
