"""``/metrics`` for Prometheus and ``/health`` for whoever restarts the worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from tideline.errors import UsageError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


@dataclass
class Health:
    """What the worker does at present; written by one thread, read by others."""

    serving: bool = False
    waits_for: str = "starting"
    versions: dict[str, str] = field(default_factory=dict)

    def waiting(self, why: str) -> None:
        """Not serving, for this reason."""
        self.serving, self.waits_for = False, why

    def ready(self) -> None:
        """Workflows and activities are being served."""
        self.serving, self.waits_for = True, ""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Probes are not news."""


def serve(address: tuple[str, int] | None, health: Health) -> Callable[[], None]:
    """Serve in a thread on ``address`` (host, port). Returns what stops it.

    Raises :class:`UsageError` when the address cannot be bound.
    """
    if address is None:
        return lambda: None
    metrics = make_wsgi_app()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/health":
            page: Iterable[bytes] = metrics(environ, start_response)
            return page
        status = "200 OK" if health.serving else "503 Service Unavailable"
        start_response(status, [("Content-Type", "application/json")])
        body = {"serving": health.serving, "waits_for": health.waits_for, **health.versions}
        return [json.dumps(body).encode()]

    host, port = address
    try:
        server = make_server(host, port, app, _Server, _Silent)
    except OSError as error:
        raise UsageError(
            f"TIDELINE_METRICS_ADDRESS: cannot listen on {host}:{port} ({error.strerror}); "
            "choose a free port"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()

    return stop
