"""What a process tells over HTTP: ``/metrics`` for Prometheus, and how it stands for whoever
restarts it or waits for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from http.client import HTTPException
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import parse_qsl, quote
from urllib.request import urlopen
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from tideline.errors import UnreachableError, UsageError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

ANSWER_S = 10.0
Page = Callable[[Mapping[str, str]], tuple[bool, Mapping[str, object]]]
"""From the query: whether all is well (200, else 503), and what is said in JSON. Asked in a thread
of its own."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    timeout = 10.0
    """Seconds that a request may take to arrive."""

    def log_message(self, format: str, *args: object) -> None:
        """Probes are not news."""


def serve(address: tuple[str, int] | None, pages: Mapping[str, Page]) -> Callable[[], None]:
    """Serve ``pages`` by path in a thread on ``address`` (host, port); every other path is
    ``/metrics``. Returns what stops it.

    Raises :class:`UsageError` when the address cannot be bound.
    """
    if address is None:
        return lambda: None
    metrics = make_wsgi_app()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        page = pages.get(environ["PATH_INFO"])
        if page is None:
            told: Iterable[bytes] = metrics(environ, start_response)
            return told
        well, body = page(dict(parse_qsl(environ.get("QUERY_STRING", ""))))
        status = "200 OK" if well else "503 Service Unavailable"
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps(body).encode()]

    host, port = address
    try:
        server = make_server(host, port, app, _Server, _Silent)
    except OSError as error:
        raise UsageError(
            f"TIDELINE_METRICS_ADDRESS: cannot listen on {host}:{port} ({error.strerror}); "
            "choose a free port"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="pages", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()

    return stop


def read_state(address: str, topic: str | None = None) -> dict[str, Any]:
    """The page ``/state`` of the gateway whose pages are at ``address`` (host:port).

    Raises :class:`UnreachableError` when it does not answer, or says that it cannot tell.
    """
    query = "" if topic is None else f"?topic={quote(topic)}"
    try:
        with urlopen(f"http://{address}/state{query}", timeout=ANSWER_S) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found
    except HTTPError as refused:
        why = refused.read().decode(errors="replace")
        raise UnreachableError(f"the gateway at {address} cannot tell: {why}") from refused
    except (OSError, ValueError, HTTPException) as error:
        raise UnreachableError(
            f"no gateway answers at {address} ({error}): name its TIDELINE_METRICS_ADDRESS, as it "
            "is reached from here"
        ) from error
