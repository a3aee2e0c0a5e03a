"""What a process tells over HTTP: ``/metrics`` for Prometheus, and how it stands for whoever
restarts it or waits for it."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from http.client import HTTPException
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.error import HTTPError
from urllib.parse import parse_qsl, quote
from urllib.request import urlopen
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import REGISTRY, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, gzip_accepted
from prometheus_client.registry import Collector

from tideline.errors import UnreachableError, UsageError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

K = TypeVar("K")
V = TypeVar("V")
Clock = Callable[[], float]
ANSWER_S = 10.0
KEPT_S = 1.0
"""How long what costs something is told again before it is made anew."""
MOST_KEPT = 16
SAMPLES_AT_ONCE = 100
"""Of a page of metrics: half a millisecond."""
MOST_CONNECTIONS = 16
CONNECTION_S = 30.0
"""A connection that lasts longer is ended, whatever it does."""
PLACE_S = 1.0
"""How long the newest connection waits for the place of the oldest."""
REFUSAL = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
Page = Callable[[Mapping[str, str]], tuple[bool, Mapping[str, object]]]
"""From the query: whether all is well (200, else 503), and what is said in JSON. Asked in a thread
of its own."""

# A second sample for each counter and histogram, which nobody asks for.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Kept(Generic[K, V]):
    """What ``make`` makes of each key, at most once in :data:`KEPT_S` and of :data:`MOST_KEPT` keys
    in that time. Who asks while one is being made waits for it, and is told the same."""

    def __init__(self, make: Callable[[K], V], clock: Clock = time.monotonic) -> None:
        self._make, self._clock = make, clock
        self._one_at_a_time = threading.Lock()
        self._kept: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """``None``: too many keys were asked for a moment ago."""
        with self._one_at_a_time:
            while self._kept and self._is_old(next(iter(self._kept.values()))[0]):
                self._kept.popitem(last=False)
            if (found := self._kept.get(key)) is not None:
                return found[1]
            if len(self._kept) >= MOST_KEPT:
                return None
            made = self._make(key)
            self._kept[key] = self._clock(), made
            return made

    def _is_old(self, since: float) -> bool:
        return self._clock() - since >= KEPT_S


class _One(Collector):
    """A registry of one family, for a library that renders whole registries."""

    def __init__(self, family: Any) -> None:
        self._family = family

    def collect(self) -> Iterable[Any]:
        return (self._family,)


def rendered(registry: Collector) -> bytes:
    """All metrics in Prometheus' text format. Piece by piece: between two of them whoever waits for
    the interpreter has it."""
    found = []
    for family in registry.collect():
        for start in range(0, max(len(family.samples), 1), SAMPLES_AT_ONCE):
            piece = copy(family)
            piece.samples = family.samples[start : start + SAMPLES_AT_ONCE]
            text = generate_latest(_One(piece))
            # What it is, and of which type, is said once.
            found.append(text.split(b"\n", 2)[2] if start else text)
            time.sleep(0)
    return b"".join(found)


class _Silent(WSGIRequestHandler):
    timeout = 10.0
    """Seconds that each part of a request may take to arrive, and an answer to be taken."""

    def log_message(self, format: str, *args: object) -> None:
        """Probes are not news."""


class Server(ThreadingMixIn, WSGIServer):
    """At most :data:`MOST_CONNECTIONS` at once, a thread for each. The newest one takes the place
    of the oldest, so that who holds connections open keeps no probe out; if that one is still at
    work after :data:`PLACE_S`, the newest is refused."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], clock: Clock = time.monotonic) -> None:
        super().__init__(address, _Silent)
        self._clock = clock
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}
        """Since when, the oldest first; without those that were cut off."""

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self._cut_off_the_oldest()
            if not self._places.acquire(timeout=PLACE_S):
                with suppress(OSError):
                    request.setblocking(False)
                    request.send(REFUSAL)
                self.shutdown_request(request)
                return
        with self._lock:
            self._open[request] = self._clock()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be started
            self._gone(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._gone(request)

    def service_actions(self) -> None:
        """Called twice a second, and after each connection."""
        until = self._clock() - CONNECTION_S
        with self._lock:
            late = [request for request, since in self._open.items() if since <= until]
        for request in late:
            self._cut_off(request)

    def _cut_off_the_oldest(self) -> None:
        with self._lock:
            oldest = next(iter(self._open), None)
        if oldest is not None:
            self._cut_off(oldest)

    def _cut_off(self, request: socket.socket) -> None:
        """Its thread, which waits for it, ends."""
        with self._lock:
            self._open.pop(request, None)
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def _gone(self, request: socket.socket) -> None:
        with self._lock:
            self._open.pop(request, None)
        self._places.release()


def application(
    pages: Mapping[str, Page], registry: Collector = REGISTRY, clock: Clock = time.monotonic
) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    """``pages`` by path; every other path is ``/metrics``."""
    metrics = Kept[None, bytes](lambda _: rendered(registry), clock)
    packed = Kept[None, bytes](lambda _: gzip.compress(metrics.get(None) or b"", 1), clock)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        page = pages.get(environ["PATH_INFO"])
        if page is None:
            packs = gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", ""))
            whole = (packed if packs else metrics).get(None) or b""
            headers = [("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)]
            start_response("200 OK", headers + [("Content-Encoding", "gzip")] * packs)
            return [whole]
        well, body = page(dict(parse_qsl(environ.get("QUERY_STRING", ""))))
        status = "200 OK" if well else "503 Service Unavailable"
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps(body).encode()]

    return app


def serve(address: tuple[str, int] | None, pages: Mapping[str, Page]) -> Callable[[], None]:
    """Serve ``pages`` and the process's metrics in a thread on ``address`` (host, port). Returns
    what stops it.

    Raises :class:`UsageError` when the address cannot be bound.
    """
    if address is None:
        return lambda: None
    host, port = address
    try:
        server = Server(address)
    except OSError as error:
        raise UsageError(
            f"TIDELINE_METRICS_ADDRESS: cannot listen on {host}:{port} ({error.strerror}); "
            "choose a free port"
        ) from error
    server.set_app(application(pages))
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
