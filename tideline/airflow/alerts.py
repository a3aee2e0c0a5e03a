"""What happens when a run misses its deadline or a task has failed for good."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import structlog

from tideline.settings import AirflowSettings, load

log = structlog.get_logger()

POST_TIMEOUT_S = 10.0
MAX_TEXT = 2_000


def deadline_missed(context: Mapping[str, Any] | None = None, *, limit_ms: int, **_: Any) -> None:
    """Called by Airflow's executor when a run takes longer than ``limit_ms``."""
    run = (context or {}).get("dag_run") or {}
    dag = _field(run, "dag_id")
    limit_s = limit_ms / 1000
    run_id = _field(run, "dag_run_id")
    tell(
        "run_is_late",
        f"{dag}, run {run_id}: not done after {limit_s:g} s; tasks and logs are in the UI",
    )


def task_failed(context: Mapping[str, Any]) -> None:
    """Called when a task has failed for good; its message is the task's own."""
    task = context.get("task_instance")
    where = f"{_field(task, 'dag_id')}.{_field(task, 'task_id')}"
    tell("task_has_failed", f"{where}, run {context.get('run_id')}: {context.get('exception')}")


def tell(event: str, text: str) -> None:
    """Log it, and post it where ``TIDELINE_AIRFLOW_ALERT_URL`` says. An alert that cannot be
    posted is logged, never raised."""
    text = text[:MAX_TEXT]
    log.error(event, text=text)
    secret = load(AirflowSettings).airflow_alert_url
    if secret is None:
        return
    url = secret.get_secret_value()
    request = urllib.request.Request(
        url,
        data=json.dumps({"event": event, "text": text}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=POST_TIMEOUT_S):
            return
    except OSError as error:
        # Whoever has the URL of a chat's webhook may post there.
        log.error("alert_not_posted", why=str(error), host=urlsplit(url).netloc)


def _field(holder: Any, name: str) -> str:
    value = holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
    return str(value) if value is not None else "?"
