"""Metrics cost nobody latency: rendered once a second, for few at once."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily

from tests.ports import free_port
from tests.support.waiting import HANGS_S, SOON_S, joined, lasts, set_within, until
from tideline import pages
from tideline.pages import CONNECTION_S, MOST_CONNECTIONS, MOST_KEPT, SAMPLES_AT_ONCE, Kept, Server


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Counted:
    """A registry that counts how often it is looked through, and waits there for the test."""

    def __init__(self) -> None:
        self.looks = 0
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def collect(self) -> Iterator[Any]:
        self.looks += 1
        self.begun.set()
        set_within("the test to let it go on", self.go_on)
        yield GaugeMetricFamily("looks", "so far", self.looks)


class Asked:
    """Without sockets."""

    def __init__(self, registry: Any, clock: Clock) -> None:
        self._app = pages.application({}, registry, clock)

    def __call__(self, path: str = "/metrics", **environ: str) -> bytes:
        status: list[str] = []
        told = self._app(
            {"PATH_INFO": path, "REQUEST_METHOD": "GET", **environ},
            lambda code, headers, *_: status.append(code),  # type: ignore[arg-type, return-value]
        )
        assert status == ["200 OK"]
        return b"".join(told)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_page_is_rendered_once_a_second_however_often_and_in_whatever_way_it_is_asked_for(
    clock: Clock,
) -> None:
    registry = Counted()
    ask = Asked(registry, clock)
    first = ask()
    for query in range(50):
        ask("/metrics", QUERY_STRING=f"name[]={query}", HTTP_ACCEPT=f"text/plain;version=1.{query}")
        ask(f"/{query}")
    assert registry.looks == 1
    assert gzip.decompress(ask(HTTP_ACCEPT_ENCODING="gzip")) == first
    assert registry.looks == 1
    clock.now += 0.9
    assert ask() == first
    clock.now += 0.1
    assert ask() != first
    assert registry.looks == 2


def test_many_who_ask_at_once_cause_one_rendering(clock: Clock) -> None:
    registry, told = Counted(), []
    ask = Asked(registry, clock)
    registry.go_on.clear()
    asking = [threading.Thread(target=lambda: told.append(ask())) for _ in range(8)]
    for thread in asking:
        thread.start()
    set_within("the first to begin", registry.begun)
    registry.go_on.set()
    for thread in asking:
        joined(thread)
    assert (registry.looks, len(told), len(set(told))) == (1, 8, 1)


def test_what_is_kept_of_many_keys_is_bounded_by_what_a_second_may_cost(clock: Clock) -> None:
    made: list[int] = []
    kept = Kept[int, int](lambda key: made.append(key) or key, clock)
    assert [kept.get(key) for key in range(MOST_KEPT)] == [*range(MOST_KEPT)]
    assert kept.get(MOST_KEPT) is None
    assert kept.get(3) == 3
    clock.now += 1
    assert kept.get(MOST_KEPT) == MOST_KEPT
    assert len(made) == MOST_KEPT + 1
    assert len(kept._kept) == 1


def test_piece_by_piece_the_page_is_the_librarys_own() -> None:
    registry = CollectorRegistry()
    requests = Counter("requests", "of clients", ["api"], registry=registry)
    Counter("others", "of which there are none", ["api"], registry=registry)
    for number in range(3 * SAMPLES_AT_ONCE):
        requests.labels(f"Fetch {number}").inc()
    Gauge("lateness", "of the loop", registry=registry).set(0.5)
    Histogram("seconds", "of handling", registry=registry).observe(3)
    assert pages.rendered(registry) == generate_latest(registry)
    assert b"_created" not in generate_latest(registry)
    assert b"_created" not in pages.rendered(REGISTRY)


# -- connections


class Served:
    """A server whose page waits for the test."""

    def __init__(self, clock: Clock) -> None:
        self.address = ("127.0.0.1", free_port())
        self.go_on, self.inside = threading.Event(), 0
        self.server = Server(self.address, clock)
        self.server.set_app(pages.application({"/slow": self._slow, "/health": self._fine}))
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def _fine(self, query: Any) -> Any:
        return True, {}

    def _slow(self, query: Any) -> Any:
        self.inside += 1
        set_within("the test to let it go on", self.go_on)
        return True, {}

    def connect(self, sends: bytes = b"") -> socket.socket:
        connection = socket.create_connection(self.address, HANGS_S)
        connection.sendall(sends)
        return connection

    def healthy(self) -> bool:
        url = f"http://{self.address[0]}:{self.address[1]}/health"
        with urlopen(url, timeout=HANGS_S) as answer:
            return bool(answer.status == 200)

    def close(self) -> None:
        self.go_on.set()
        self.server.shutdown()
        self.server.server_close()
        joined(self.thread)


@pytest.fixture
def served(clock: Clock) -> Iterator[Served]:
    made = Served(clock)
    yield made
    made.close()


def test_who_holds_connections_open_keeps_no_probe_out_and_takes_no_more_threads(
    served: Served,
) -> None:
    with ExitStack() as held:
        half = [held.enter_context(served.connect(b"GET /hea")) for _ in range(MOST_CONNECTIONS)]
        until("all to be open", lambda: len(served.server._open) == MOST_CONNECTIONS)
        for given_up in half[:3]:
            assert served.healthy()
            assert given_up.recv(1) == b"", "the oldest has made room"
        assert len(served.server._open) <= MOST_CONNECTIONS


def test_while_all_places_are_at_work_the_next_one_is_refused_and_not_kept(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PLACE_S", 0.05)
    with ExitStack() as held:
        for _ in range(MOST_CONNECTIONS):
            held.enter_context(served.connect(b"GET /slow HTTP/1.0\r\n\r\n"))
        until("all to be at work", lambda: served.inside == MOST_CONNECTIONS)
        for _ in range(3):
            late = held.enter_context(served.connect())
            answer = late.recv(1_000)
            assert answer.startswith(b"HTTP/1.0 503 ")
            assert late.recv(1) == b""
        assert served.inside == MOST_CONNECTIONS
        served.go_on.set()
        until("the places to be free", lambda: not served.server._open)
    assert served.healthy()


def test_a_connection_that_lasts_for_too_long_is_ended_whatever_it_sends(
    served: Served, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages._Silent, "timeout", HANGS_S)
    with served.connect(b"GET /hea") as slow:
        until("it to be open", lambda: len(served.server._open) == 1)
        slow.sendall(b"l")
        lasts("it to go on", lambda: served.server._open, 0.1)
        clock.now += CONNECTION_S
        until("it to be ended", lambda: not served.server._open, SOON_S)
        assert slow.recv(1) == b""
    until("its thread to end", lambda: served.server._places._value == MOST_CONNECTIONS)
