"""What Temporal's SDK keeps is told on the worker's page, in seconds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prometheus_client import CollectorRegistry

from tests.ports import free_port
from tideline.errors import UsageError
from tideline.pages import rendered
from tideline.worker.sdk_metrics import SdkMetrics, with_metrics

TOLD = """# HELP temporal_workflow_task_execution_failed_total Failures
# TYPE temporal_workflow_task_execution_failed_total counter
temporal_workflow_task_execution_failed_total{failure_reason="WorkflowError"} 2
# HELP temporal_activity_schedule_to_start_latency_seconds Latency
# TYPE temporal_activity_schedule_to_start_latency_seconds histogram
temporal_activity_schedule_to_start_latency_seconds_bucket{le="5"} 1
temporal_activity_schedule_to_start_latency_seconds_bucket{le="+Inf"} 1
temporal_activity_schedule_to_start_latency_seconds_sum 0.25
temporal_activity_schedule_to_start_latency_seconds_count 1
"""


class Core(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(TOLD.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Core) as core:
        threading.Thread(target=core.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{core.server_port}"
        core.shutdown()


def page(address: str) -> list[str]:
    registry = CollectorRegistry()
    registry.register(SdkMetrics(address))
    return rendered(registry).decode().splitlines()


def test_what_the_core_tells_is_told_under_the_same_names(address: str) -> None:
    told = {line for line in page(address) if not line.startswith("#")}
    failed = "temporal_workflow_task_execution_failed_total"
    assert failed + '{failure_reason="WorkflowError"} 2.0' in told
    assert 'temporal_activity_schedule_to_start_latency_seconds_bucket{le="5"} 1.0' in told


def test_a_core_that_does_not_answer_takes_nothing_else_with_it() -> None:
    assert page(f"127.0.0.1:{free_port()}") == []


def test_a_runtime_listens_where_its_metrics_are_asked_for() -> None:
    native, metrics = with_metrics(("127.0.0.1", 0))
    assert list(metrics.collect()) == []
    _, port = metrics._address.split(":")
    with pytest.raises(UsageError, match="TIDELINE_TEMPORAL_METRICS_ADDRESS"):
        with_metrics(("127.0.0.1", int(port)))
    assert native is not None
