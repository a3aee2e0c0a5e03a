"""An alert is one line that says which run; one that cannot be posted is logged, never raised."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from tideline.airflow.alerts import deadline_missed, task_failed
from tideline.errors import UsageError
from tideline.settings import AirflowSettings, load


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, str]]]:
    """What a receiver got."""
    received: list[dict[str, str]] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("TIDELINE_AIRFLOW_ALERT_URL", f"http://127.0.0.1:{server.server_port}/")
    yield received
    server.shutdown()
    server.server_close()


def test_a_late_run_is_named_with_its_limit(posted: list[dict[str, str]]) -> None:
    run = {"dag_id": "tideline_gc", "dag_run_id": "scheduled__1"}
    deadline_missed({"dag_run": run}, limit_ms=90_000)
    assert "tideline_gc, run scheduled__1: not done after 90 s" in posted[0]["text"]


def test_a_failed_task_is_told_in_its_own_words(posted: list[dict[str, str]]) -> None:
    task = SimpleNamespace(dag_id="tideline_gc", task_id="gc")
    task_failed({"task_instance": task, "run_id": "r", "exception": "gc: S3 at x: refused"})
    assert posted[0]["text"] == "tideline_gc.gc, run r: gc: S3 at x: refused"


def test_an_alert_that_cannot_be_posted_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the log does not learn where he could post himself."""
    monkeypatch.setenv("TIDELINE_AIRFLOW_ALERT_URL", "http://127.0.0.1:1/hooks/open-sesame")
    with capture_logs() as logs:
        task_failed({"run_id": "r", "exception": "why"})
    assert [entry["event"] for entry in logs] == ["task_has_failed", "alert_not_posted"]
    assert logs[-1]["host"] == "127.0.0.1:1"
    assert "open-sesame" not in str(logs)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "chat/hooks/open-sesame"])
def test_what_no_alert_can_be_posted_to_is_refused_when_the_dags_are_read(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELINE_AIRFLOW_ALERT_URL", url)
    with pytest.raises(UsageError, match="TIDELINE_AIRFLOW_ALERT_URL: this is no URL") as refused:
        load(AirflowSettings)
    assert url not in str(refused.value)
