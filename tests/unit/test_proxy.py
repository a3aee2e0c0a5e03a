"""The proxy that real runs put between parts does what its tests say that it does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.proxy import Proxy
from tests.support.waiting import HANGS_S


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that answers what it is sent."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while piece := connection.recv(4096):
                    connection.sendall(piece)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


def connected(proxy: Proxy) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", proxy.port))
    connection.settimeout(HANGS_S)
    return connection


def answers(connection: socket.socket, sent: bytes) -> bool:
    connection.sendall(sent)
    return connection.recv(4096) == sent


def says_nothing(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        return connection.recv(4096) is None
    except TimeoutError:
        return True
    finally:
        connection.settimeout(HANGS_S)


def test_what_is_sent_passes_both_ways(echo: int) -> None:
    with Proxy("127.0.0.1", echo) as proxy, connected(proxy) as connection:
        assert answers(connection, b"one")


@pytest.mark.parametrize("way", [{"to_client": False}, {"to_server": False}, {}], ids=str)
def test_while_cut_nothing_is_heard_and_afterwards_it_goes_on(
    echo: int, way: dict[str, bool]
) -> None:
    with Proxy("127.0.0.1", echo) as proxy, connected(proxy) as connection:
        assert answers(connection, b"one")
        with proxy.cut(**way):
            connection.sendall(b"two")
            assert says_nothing(connection)
        assert connection.recv(4096) == b"two"


def test_who_connects_while_cut_is_accepted_and_starves(echo: int) -> None:
    with Proxy("127.0.0.1", echo) as proxy:
        with proxy.cut():
            connection = connected(proxy)
            connection.sendall(b"one")
            assert says_nothing(connection)
        assert connection.recv(4096) == b"one"
        connection.close()


def test_a_slow_way_takes_its_time_in_both_directions(echo: int) -> None:
    with Proxy("127.0.0.1", echo) as proxy, connected(proxy) as connection:
        began = time.monotonic()
        with proxy.slow(0.1):
            assert answers(connection, b"one")
        assert time.monotonic() - began >= 0.2


def test_a_half_open_connection_tells_its_client_nothing(echo: int) -> None:
    with Proxy("127.0.0.1", echo) as proxy, connected(proxy) as connection:
        assert answers(connection, b"one")
        assert proxy.half_open() == 1
        assert says_nothing(connection)


def test_what_was_held_back_is_lost_with_its_connection(echo: int) -> None:
    with Proxy("127.0.0.1", echo) as proxy, connected(proxy) as connection:
        assert answers(connection, b"one")
        with proxy.cut(to_server=False):
            connection.sendall(b"two")
            assert says_nothing(connection)
            assert proxy.end() == 1
        assert connection.recv(4096) == b"", "the connection ends, nothing came"
        with connected(proxy) as another:
            assert answers(another, b"three")


def test_a_kept_end_lets_the_last_bytes_pass_and_tells_nobody_of_the_end() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Proxy("127.0.0.1", listener.getsockname()[1]) as proxy,
        proxy.ends_kept(),
    ):
        connection = connected(proxy)
        server, _ = listener.accept()
        server.sendall(b"farewell")
        server.close()
        assert connection.recv(4096) == b"farewell"
        assert says_nothing(connection)
        assert proxy.kept == 1
