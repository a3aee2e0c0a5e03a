"""The address of a gateway is its own also while it takes nobody."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from tests.ports import free_port
from tests.unit.gateway.fakes import until
from tideline.gateway.transport.listener import Listener
from tideline.stack.ports import is_free


class Accepted:
    """Keeps every socket, as a gateway does that refuses whoever comes later."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []

    def adopt(self, accepted: socket.socket, address: object) -> None:
        self.sockets.append(accepted)


@contextmanager
def somebody_else(port: int) -> Iterator[socket.socket]:
    """Listens as a server of Java does, or another gateway."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        yield other


@pytest.fixture
def accepted() -> Iterator[Accepted]:
    made = Accepted()
    yield made
    for each in made.sockets:
        each.close()


@pytest.fixture
async def listener(accepted: Accepted) -> AsyncIterator[Listener]:
    made = Listener("127.0.0.1", free_port(), lambda: accepted, note=lambda listening: None)
    yield made
    made.close()


def is_held(port: int) -> bool:
    """Nobody else can have it, nor would a stack take it for free."""
    try:
        with somebody_else(port):
            return False
    except OSError as error:
        return error.errno == errno.EADDRINUSE and not is_free(port)


async def test_nobody_else_gets_an_address_that_is_held(listener: Listener) -> None:
    _, port = listener.address
    await listener.bind()
    assert is_held(port)
    await listener.listen()
    assert is_held(port)


async def test_nobody_else_gets_it_while_clients_of_before_are_served(
    listener: Listener, accepted: Accepted
) -> None:
    await listener.listen()
    for turn in (1, 2, 3):
        _, writer = await asyncio.open_connection(*listener.address)
        await until(lambda turn=turn: len(accepted.sockets) == turn)  # type: ignore[misc]
        listener.refuse()
        assert is_held(listener.address[1])
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*listener.address)
        await listener.listen()
        writer.close()


async def test_it_is_taken_again_when_whoever_has_it_is_gone(listener: Listener) -> None:
    _, port = listener.address
    with somebody_else(port):
        with pytest.raises(OSError, match="in use"):
            await listener.listen()
        assert not listener.listening
    await listener.listen()
    assert listener.listening


async def test_it_is_let_go_of_when_it_cannot_be_listened_to(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    await listener.bind()

    def no_descriptors(*args: object) -> None:
        raise OSError(errno.EMFILE, "no descriptors")

    with monkeypatch.context() as patched:
        patched.setattr("tideline.gateway.transport.listener.Acceptor", no_descriptors)
        with pytest.raises(OSError, match="no descriptors"):
            await listener.listen()
    assert not listener.listening
    await listener.listen()
    assert listener.listening
