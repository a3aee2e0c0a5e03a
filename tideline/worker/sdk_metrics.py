"""Metrics of Temporal's SDK, on the worker's own page: its core tells them by an HTTP server of its
own, which listens on a loopback address.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from http.client import HTTPException
from urllib.request import urlopen

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from temporalio.runtime import PrometheusConfig, Runtime

from tideline.errors import UsageError
from tideline.worker.logs import runtime

ANSWER_S = 1.0
PORTS_TRIED = 5
"""Of port 0: somebody else may take the one that was free."""


class SdkMetrics(Collector):
    """What the core tells at ``address``; nothing while it does not answer."""

    def __init__(self, address: str) -> None:
        self._address = address

    def describe(self) -> Iterable[Metric]:
        """Of names that another collector has there is none."""
        return ()

    def collect(self) -> Iterable[Metric]:
        try:
            with urlopen(f"http://{self._address}/metrics", timeout=ANSWER_S) as answer:
                text = answer.read().decode()
        except (OSError, HTTPException):
            return ()
        return list(text_string_to_metric_families(text))


def with_metrics(address: tuple[str, int]) -> tuple[Runtime, SdkMetrics]:
    """A runtime that keeps metrics at ``address``, in seconds; port 0: a free one. Raises
    :class:`UsageError` when it cannot listen there."""
    tries = PORTS_TRIED if address[1] == 0 else 1
    while True:
        tries -= 1
        try:
            return _listening(_with_port(address))
        except (OSError, ValueError) as error:
            if not tries:
                raise UsageError(
                    f"TIDELINE_TEMPORAL_METRICS_ADDRESS: cannot listen on {address[0]}:"
                    f"{address[1]} ({error}); choose a free port of a loopback address, or 0"
                ) from error


def _listening(where: str) -> tuple[Runtime, SdkMetrics]:
    kept = PrometheusConfig(
        bind_address=where,
        counters_total_suffix=True,
        unit_suffix=True,
        durations_as_seconds=True,
    )
    return runtime(kept), SdkMetrics(where)


def _with_port(address: tuple[str, int]) -> str:
    """The core does not say which one it was given."""
    host, port = address
    if not port:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
            free.bind((host, 0))
            port = free.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
