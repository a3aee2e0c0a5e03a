"""Small calls on the event loop: each fault means what it means in a thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.waiting import set_within
from tests.unit.object_store.scripted_server import (
    STORED,
    ScriptedServer,
    Step,
    answer,
    close,
    error,
    reset,
    scripted_server,
    stall,
    trickle,
)
from tests.unit.object_store.test_get_and_put import ANSWERS, ONCE, QUICK, settings
from tideline.domain.security import ClientAuth
from tideline.kafka.tls import TlsFiles
from tideline.object_store import (
    ObjectMissing,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
    ObjectTruncated,
)
from tideline.object_store.async_store import S3ObjectStore
from tideline.object_store.client import CallBounds
from tideline.object_store.loop_calls import SMALL_GET, SMALL_PUT, unchunked
from tideline.stack.certificates import Authority

PUT_OK = [STORED]


@asynccontextmanager
async def opened(
    server: ScriptedServer, bounds: CallBounds = ONCE, threads: int = 16, **more: object
) -> AsyncIterator[S3ObjectStore]:
    """One whose thread has made the first call, and makes no other."""
    given = settings(server.url, s3_bucket="wal", s3_tiered_bucket="wal", **more)
    async with S3ObjectStore(given, bounds=bounds, threads=threads) as store:
        direct = store._client._direct
        assert direct is not None
        assert direct.reached("wal") is not None

        async def no_thread(_: Callable[[], object]) -> object:
            raise AssertionError("it went to a thread")

        store._run = no_thread  # type: ignore[method-assign,assignment]
        yield store


async def test_what_was_put_was_sent_and_what_comes_is_got(s3: ScriptedServer) -> None:
    async with opened(s3) as store:
        s3.plays(PUT_OK)
        await store.put("ü/a b", b"x" * SMALL_PUT)
        (call,) = s3.calls
        assert (call.method, call.target) == ("PUT", "/wal/%C3%BC/a%20b")
        assert (call.body, call.headers["if-none-match"]) == (b"x" * SMALL_PUT, "*")
        body = bytes(range(256)) * (SMALL_GET // 256)
        s3.plays([answer(206, body)])
        assert await store.get("k", 3, SMALL_GET) == body
        assert s3.calls[0].headers["range"] == f"bytes=3-{SMALL_GET + 2}"
        assert s3.connections == 1


async def test_an_answer_may_come_byte_by_byte(s3: ScriptedServer) -> None:
    s3.plays([bytes([byte]) for byte in answer(206, b"abc")])
    async with opened(s3) as store:
        assert await store.get("k", 0, 3) == b"abc"


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("call", ["get", "put"])
async def test_an_answer_means_the_same(s3: ScriptedServer, call: str, name: str) -> None:
    steps, kind, text = ANSWERS[name]
    s3.plays(steps)
    async with opened(s3) as store:
        # The store's own put takes the key that is taken for its own.
        doing = store.get("a/k", 5, 10) if call == "get" else store._put("a/k", b"x" * 7)
        with pytest.raises(kind) as told:
            await doing
    assert type(told.value) is kind
    where = "get a/k [5, 15)" if call == "get" else "put a/k (7 bytes)"
    assert str(told.value).startswith(f"bucket wal: {where}: ")
    assert text in str(told.value)
    assert len(s3.calls) == 1


async def test_a_key_that_is_taken_is_ours(s3: ScriptedServer) -> None:
    s3.plays([error(412, "PreconditionFailed")])
    async with opened(s3) as store:
        await store.put("k", b"x")


@pytest.mark.parametrize(
    "steps",
    [
        [b"HTTP/1.1 200 OK\r\nContent-Le", close],
        [b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", close],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n", close],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na", close],
        [b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n", close],
        [b"HTTP/1.1 200 OK\r\na: " + b"b" * 70_000, stall],
        [b"HTTP/1.1 206 X\r\nContent-Length: 10\r\n\r\nabc", close],
        [b"HTTP/1.1 206 X\r\nContent-Length: 10\r\n\r\nabc", reset],
    ],
)
async def test_half_an_answer_is_none(s3: ScriptedServer, steps: list[Step]) -> None:
    s3.plays(steps)
    async with opened(s3) as store:
        with pytest.raises(ObjectStoreUnavailable):
            await store.put("k", b"x")
        with pytest.raises(ObjectStoreUnavailable):
            await store.get("k", 0, 10)


@pytest.mark.parametrize(
    ("sent", "came"), [(answer(206, b"abc"), 3), (answer(200, b"x" * 100_000), 100_000)]
)
async def test_a_body_of_another_size_is_no_such_range(
    s3: ScriptedServer, sent: bytes, came: int
) -> None:
    s3.plays([sent])
    async with opened(s3) as store:
        with pytest.raises(ObjectTruncated, match=f"{came} bytes came, not 10"):
            await store.get("k", 5, 10)


@pytest.mark.parametrize(
    "steps",
    [
        [stall],
        [b"HTTP/1.1 206 X\r\nContent-Length: 10\r\n\r\nabc", stall],
        [b"HTTP/1.1 200 ", trickle],
        [b"HTTP/1.1 200 X\r\nContent-Length: 999\r\n\r\n", trickle],
    ],
)
async def test_what_stalls_or_trickles_ends_in_time(s3: ScriptedServer, steps: list[Step]) -> None:
    s3.plays(steps)
    async with opened(s3, QUICK) as store:
        with pytest.raises(ObjectStoreUnavailable, match="Read timeout"):
            await store.get("k", 0, 999)
    set_within("the server to stall", s3.stalled)


async def test_nobody_listens(s3: ScriptedServer) -> None:
    with scripted_server() as gone:
        pass
    async with opened(gone) as store:
        with pytest.raises(ObjectStoreUnavailable, match="Could not connect"):
            await store.put("k", b"x")


async def test_connections_are_kept_past_refusals_and_not_past_what_is_in_doubt(
    s3: ScriptedServer,
) -> None:
    chunked = (
        b"HTTP/1.1 404 X\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n<Error\r\n1\r\n>\r\n0\r\n\r\n"
    )
    s3.plays(
        [answer(206, b"a")], [chunked], [answer(206, b"b") + answer(206, b"wrong")],
        [answer(206, b"c", "Connection: close")], [answer(206, b"d")],
    )  # fmt: skip
    async with opened(s3) as store:
        assert await store.get("k", 0, 1) == b"a"
        with pytest.raises(ObjectMissing):
            await store.get("k", 0, 1)
        for body in (b"b", b"c", b"d"):
            assert await store.get("k", 0, 1) == body
    assert [call.connection for call in s3.calls] == [1, 1, 1, 2, 3]


async def test_a_put_that_is_cancelled_ends_its_connection_and_frees_its_place(
    s3: ScriptedServer,
) -> None:
    s3.plays([stall], PUT_OK)
    async with opened(s3, threads=1) as store:
        first = asyncio.create_task(store.put("k", b"x"))
        await asyncio.to_thread(s3.stalled.wait)
        second = asyncio.create_task(store.put("l", b"y"))
        await asyncio.sleep(0)
        assert len(s3.calls) == 1
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        await second
    assert [call.connection for call in s3.calls] == [1, 2]


async def test_what_is_large_and_a_bucket_that_is_not_known_yet_go_to_a_thread(
    s3: ScriptedServer,
) -> None:
    asked: list[str] = []
    async with S3ObjectStore(settings(s3.url, s3_bucket="wal"), bounds=ONCE) as store:
        run = store._run

        async def noted(call: Callable[[], object]) -> object:
            asked.append("thread")
            return await run(call)

        store._run = noted  # type: ignore[method-assign,assignment]
        s3.plays(PUT_OK)
        await store.put("first", b"x")
        await store.put("second", b"x")
        assert asked == ["thread"]
        await store.put("large", b"x" * (SMALL_PUT + 1))
        s3.plays([answer(206, b"x" * (SMALL_GET + 1))])
        assert len(await store.get("large", 0, SMALL_GET + 1)) == SMALL_GET + 1
        assert asked == ["thread"] * 3


async def test_a_bucket_that_lies_elsewhere_is_boto3s(s3: ScriptedServer) -> None:
    s3.plays([answer(301)], [error(403, "AccessDenied")])
    async with S3ObjectStore(settings(s3.url, s3_bucket="wal"), bounds=ONCE) as store:
        direct = store._client._direct
        assert direct is not None
        direct.reached("wal")
        with pytest.raises(ObjectStoreRefused, match="AccessDenied"):
            await store.put("k", b"x")
    assert "amz-sdk-request" in s3.calls[1].headers


async def test_a_private_authority_is_believed_and_nobody_else(tmp_path: Path) -> None:
    authority = Authority.load_or_create(tmp_path / "ca")
    pair = authority.issue("s3", "127.0.0.1")
    context = TlsFiles(None, pair.certificate, pair.key).server_context(ClientAuth.NONE)
    another = Authority.load_or_create(tmp_path / "another").certificate
    with scripted_server(context) as server:
        server.plays([answer(206, b"abc")])
        async with opened(server, s3_ca_file=authority.certificate) as store:
            for _ in range(2):
                assert await store.get("k", 0, 3) == b"abc"
        for more in ({}, {"s3_ca_file": another}):
            async with opened(server, **more) as store:
                with pytest.raises(ObjectStoreUnavailable, match=r"(?i)certificate"):
                    await store.get("k", 0, 3)


def test_chunks_are_whole_or_none() -> None:
    sent = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
    assert [unchunked(sent[:end], 9) for end in range(len(sent))] == [None] * len(sent)
    assert unchunked(sent, 5) == (b"abcde", True)
    assert unchunked(sent + b"H", 5) == (b"abcde", False)
    assert unchunked(sent[:-2] + b"a: b\r\n\r\n", 5) == (b"abcde", True)
    for wrong in (b"x\r\n", b"\r\n", b"3\r\nabcd\r\n", b"-1\r\n", b"6\r\nabcdef\r\n"):
        with pytest.raises(ValueError, match="chunk"):
            unchunked(wrong, 5)


async def test_a_gateway_shows_whether_boto3_makes_its_calls(
    s3: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.plays(PUT_OK, PUT_OK)
    given = settings(s3.url, s3_bucket="wal", s3_tiered_bucket="segments")
    async with S3ObjectStore(given, bounds=ONCE) as store:
        assert store.is_direct()
        await store.put("k", b"x")
        assert store.is_direct()
    monkeypatch.setenv("HTTP_PROXY", s3.url)
    async with S3ObjectStore(given, bounds=ONCE) as store:
        await store.put("k", b"x")
        assert not store.is_direct()
