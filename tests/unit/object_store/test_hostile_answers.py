"""Answers that are none, or none of this call: no object is stored by them, and none is got."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

from tests.support.waiting import bounded, set_within
from tests.unit.object_store.scripted_server import (
    STORED,
    Peer,
    ScriptedServer,
    Step,
    accepts_nobody,
    answer,
    close,
    error,
    scripted_server,
    stall,
)
from tests.unit.object_store.test_get_and_put import ONCE, QUICK, settings
from tests.unit.object_store.test_small_calls import opened
from tideline.object_store import ObjectStoreRefused, ObjectStoreUnavailable
from tideline.object_store.client import ObjectStoreClient
from tideline.object_store.connections import Connection, Server
from tideline.object_store.loop_calls import LoopConnection

PUT_OK = [STORED]
SERVER = Server("http", "s3", 80, "s3")


@pytest.fixture
def s3() -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        yield server


def _error_in(status: int, body: bytes) -> list[Step]:
    return [answer(status, body)]


NOT_STORED: dict[str, tuple[list[Step], type[Exception]]] = {
    "an error within 200": (
        _error_in(200, b"<?xml version='1.0'?><Error><Code>InternalError</Code></Error>"),
        ObjectStoreUnavailable,
    ),
    "an error within 200, in S3's namespace": (
        _error_in(200, b"<Error xmlns='http://s3.amazonaws.com/doc/2006-03-01/'/>"),
        ObjectStoreUnavailable,
    ),
    "half an error within 200": (_error_in(200, b"<Error><Co"), ObjectStoreUnavailable),
    "a page within 200": (_error_in(200, b"Sign in first"), ObjectStoreUnavailable),
    "a page that is XML, with a tag": (
        [answer(200, b"<html>Sign in first</html>", 'ETag: "page"')],
        ObjectStoreUnavailable,
    ),
    "another result": (_error_in(200, b"<ListBucketResult/>"), ObjectStoreUnavailable),
    "200 without a tag": ([answer(200)], ObjectStoreUnavailable),
    "204 without a tag": ([answer(204)], ObjectStoreUnavailable),
    "a part of something": ([answer(206)], ObjectStoreRefused),
    "taken, not stored": ([answer(202)], ObjectStoreRefused),
}


@pytest.mark.parametrize("name", NOT_STORED)
async def test_a_put_is_stored_by_no_other_answer(s3: ScriptedServer, name: str) -> None:
    steps, kind = NOT_STORED[name]
    s3.plays(steps)
    async with opened(s3) as store:
        with pytest.raises(kind):
            await store.put("k", b"x")
    client = ObjectStoreClient(settings(s3.url), bounds=ONCE)
    with contextlib.closing(client), pytest.raises(kind):
        client.put("wal", "k", b"x", new=True)


@pytest.mark.parametrize("name", NOT_STORED)
def test_nor_does_boto3_take_another_answer_for_one(s3: ScriptedServer, name: str) -> None:
    s3.plays(NOT_STORED[name][0])
    client = ObjectStoreClient(settings(s3.url), bounds=ONCE, direct=False)
    with contextlib.closing(client):
        with pytest.raises(ObjectStoreUnavailable):
            client.put("wal", "k", b"x")
        with pytest.raises(ObjectStoreUnavailable):
            client.put_part("wal", "k", "u", 1, b"x")


@pytest.mark.parametrize("name", NOT_STORED)
def test_a_part_is_stored_by_no_other_answer(s3: ScriptedServer, name: str) -> None:
    steps, kind = NOT_STORED[name]
    s3.plays(steps)
    client = ObjectStoreClient(settings(s3.url), bounds=ONCE)
    with contextlib.closing(client), pytest.raises(kind):
        client.put_part("wal", "k", "u", 1, b"x")


@pytest.mark.parametrize(
    "sent",
    [
        answer(206, b"abc", "Content-Range: bytes 0-2/100"),
        answer(206, b"abc", "Content-Range: bytes 6-8/100"),
        answer(206, b"abc", "Content-Range: bytes 5-9/100"),
        answer(206, b"abc", "Content-Range: lines 5-7/100"),
        answer(206, b"abc", "Content-Type: multipart/byteranges; boundary=a"),
        answer(200, b"abc"),
    ],
)
async def test_another_range_of_the_same_size_is_not_taken(s3: ScriptedServer, sent: bytes) -> None:
    s3.plays([sent])
    async with opened(s3) as store:
        with pytest.raises(ObjectStoreUnavailable):
            await store.get("k", 5, 3)
    client = ObjectStoreClient(settings(s3.url), bounds=ONCE)
    with contextlib.closing(client), pytest.raises(ObjectStoreUnavailable):
        client.get("wal", "k", 5, 3)


async def test_the_range_that_was_asked_for_is_taken(s3: ScriptedServer) -> None:
    s3.plays([answer(206, b"abc", "Content-Range: bytes 5-7/*")])
    async with opened(s3) as store:
        assert await store.get("k", 5, 3) == b"abc"
    client = ObjectStoreClient(settings(s3.url), bounds=ONCE)
    with contextlib.closing(client):
        assert client.get("wal", "k", 5, 3) == b"abc"
        s3.plays([answer(206, b"abc", "Content-Range: bytes 5-7/8")])
        assert client.get("wal", "k", 5) == b"abc"
        s3.plays([answer(206, b"abc", "Content-Range: bytes 5-7/9")])
        with pytest.raises(ObjectStoreUnavailable):
            client.get("wal", "k", 5)
        s3.plays([answer(200, b"abc")])
        assert client.get("wal", "k", 0, 3) == b"abc"


# -- of a call that was not sent, and of another


def test_what_is_answered_before_it_is_sent_is_not_stored() -> None:
    here, there = socket.socketpair()
    there.sendall(STORED)
    there.close()
    connection = Connection(SERVER, here, 5)
    with contextlib.closing(connection), pytest.raises(ConnectionClosedError):
        connection.ask(b"PUT / HTTP/1.1\r\n\r\n", b"x")


async def test_what_is_answered_before_it_is_sent_is_not_stored_by_the_loop_either() -> None:
    here, there = socket.socketpair()
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: LoopConnection(SERVER, 5), sock=here)
    there.sendall(STORED)
    with there, pytest.raises(ConnectionClosedError):
        await connection.ask(b"x" * 50_000_000, 10)


async def test_what_nobody_asked_for_is_not_the_answer_of_the_next_put(
    s3: ScriptedServer,
) -> None:
    taken, said = threading.Event(), threading.Event()

    def once_more(peer: Peer) -> None:
        set_within("the first answer to be taken", taken)
        peer.socket.sendall(STORED)
        said.set()

    s3.plays([STORED, once_more], [error(503, "SlowDown")])
    async with opened(s3) as store:
        await store.put("k", b"x")
        taken.set()
        set_within("another answer", said)  # and the loop has not read it
        with pytest.raises(ObjectStoreUnavailable):
            await store.put("l", b"y")
    assert [call.connection for call in s3.calls] == [1, 2]


async def test_a_call_that_is_cancelled_as_it_ends_leaves_no_connection(
    s3: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, ended = LoopConnection._finish, []

    def cancelled_then(connection: LoopConnection, body: bytes, clean: bool) -> None:
        finish(connection, body, clean)
        ended.append(connection)
        putting.cancel()

    monkeypatch.setattr(LoopConnection, "_finish", cancelled_then)
    s3.plays(PUT_OK)
    async with opened(s3) as store:
        putting = asyncio.create_task(store.put("k", b"x"))
        with pytest.raises(asyncio.CancelledError):
            await putting
        assert [connection.usable for connection in ended] == [False]


# -- time


async def test_the_length_that_is_told_does_not_lengthen_the_wait(s3: ScriptedServer) -> None:
    s3.plays([b"HTTP/1.1 206 X\r\nContent-Length: 1000000000000\r\n\r\n", stall])
    async with opened(s3, QUICK) as store, bounded("the get to be given up"):
        with pytest.raises(ObjectStoreUnavailable, match="Read timeout"):
            await store.get("k", 0, 10)


def test_small_chunks_do_not_lengthen_the_wait(s3: ScriptedServer) -> None:
    def chunks(peer: Peer) -> None:
        with contextlib.suppress(OSError):
            for _ in range(60):
                peer.socket.sendall(b"1\r\na\r\n")
                if peer.server.over.wait(0.05):
                    return
            peer.socket.sendall(b"0\r\n\r\n")

    s3.plays([b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n", chunks, close])
    client = ObjectStoreClient(settings(s3.url), bounds=QUICK)
    with contextlib.closing(client), pytest.raises(ObjectStoreUnavailable, match="Read timeout"):
        client.get("wal", "k")


class _Slow(socket.socket):
    """Takes 16 KiB at a time, as TLS does, each after ``pause_s``."""

    now_s = 0.0
    pause_s = 0.0
    taken = 0

    def send(self, data: bytes, *_: int) -> int:  # type: ignore[override]
        _Slow.now_s += self.pause_s
        self.taken += len(data[:16_384])
        return len(data[:16_384])

    def sendall(self, data: bytes, *_: int) -> None:  # type: ignore[override]
        while data:
            data = data[self.send(data) :]


@pytest.mark.parametrize(("pause_s", "in_time"), [(0.05, True), (0.2, False)])
def test_a_body_goes_out_within_the_read_timeout_for_each_mib(
    monkeypatch: pytest.MonkeyPatch, pause_s: float, in_time: bool
) -> None:
    monkeypatch.setattr("tideline.object_store.connections.time.monotonic", lambda: _Slow.now_s)
    here, there = socket.socketpair()
    with there, _Slow(fileno=here.detach()) as slow:
        slow.pause_s = pause_s
        there.sendall(STORED)
        connection = Connection(SERVER, slow, 5)
        if in_time:
            connection.ask(b"PUT", b"x" * 4 * 1024 * 1024)
            assert slow.taken == 4 * 1024 * 1024 + 3
        else:
            with pytest.raises(ReadTimeoutError):
                connection.ask(b"PUT", b"x" * 4 * 1024 * 1024)


async def test_an_address_that_does_not_answer_does_not_hide_the_next_one(
    s3: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(s3.url.rsplit(":", 1)[1])
    s3.plays(PUT_OK)
    with accepts_nobody("127.0.0.2", port):
        look_up: Any = asyncio.get_running_loop().getaddrinfo

        async def both(host: str, *rest: object, **more: object) -> Any:
            if host != "localhost":
                return await look_up(host, *rest, **more)
            kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
            return [(*kind, (f"127.0.0.{end}", port)) for end in (2, 1)]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both)
        s3.url = f"http://localhost:{port}"
        async with opened(s3) as store, bounded("the other one", ONCE.connect_timeout_s):
            await store.put("k", b"x")
    assert len(s3.calls) == 1
