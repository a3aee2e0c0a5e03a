"""GET and PUT, also of a part, mean the same whether boto3 makes the call or it is made directly:
of each fault."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from botocore.exceptions import BotoCoreError

from tests.support.waiting import SOON_S, Wait, set_within, until
from tests.unit.object_store.scripted_server import (
    STORED,
    ScriptedServer,
    Step,
    accepts_nobody,
    answer,
    close,
    error,
    reset,
    scripted_server,
    stall,
    trickle,
)
from tideline.domain.security import ClientAuth
from tideline.kafka.tls import TlsFiles
from tideline.object_store.client import (
    CallBounds,
    ObjectExists,
    ObjectMissing,
    ObjectStoreClient,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
    ObjectTooShort,
    ObjectTruncated,
)
from tideline.object_store.direct import Bucket
from tideline.settings import ObjectStoreSettings
from tideline.stack.certificates import Authority

ONCE = CallBounds(read_timeout_s=60, attempts=1)
QUICK = CallBounds(read_timeout_s=0.3, attempts=1, connect_timeout_s=0.3)
PUT_OK = [STORED]


def settings(url: str, **more: object) -> ObjectStoreSettings:
    keys = {"s3_access_key": "AK", "s3_secret_key": "SK"}
    return ObjectStoreSettings.model_validate({"s3_endpoint": url, **keys, **more})


Connect = Callable[..., ObjectStoreClient]


@pytest.fixture
def connected(direct: bool, _clients: dict[object, ObjectStoreClient]) -> Connect:
    def connect(url: str, bounds: CallBounds = ONCE, **more: object) -> ObjectStoreClient:
        name = (direct, url, bounds, *more.items())
        if name not in _clients:
            _clients[name] = ObjectStoreClient(settings(url, **more), bounds=bounds, direct=direct)
        return _clients[name]

    return connect


# -- what goes out


KEYS = [
    "a b",
    "a+b",
    "a%b",
    "a%20b",
    "ü/日本",
    "a=b",
    "a//b",
    "/a",
    "x/../y",
    "~",
    "a?b#c",
    'a"<&>',
]


@pytest.mark.parametrize("key", KEYS)
def test_both_ask_for_the_same_target(s3: ScriptedServer, connected: Connect, key: str) -> None:
    s3.plays(PUT_OK)
    connected(s3.url).put("wal", key, b"x")
    (call,) = s3.calls
    expected = {
        "a b": "a%20b", "a+b": "a%2Bb", "a%b": "a%25b", "a%20b": "a%2520b",
        "ü/日本": "%C3%BC/%E6%97%A5%E6%9C%AC", "a=b": "a%3Db", "a?b#c": "a%3Fb%23c",
        'a"<&>': "a%22%3C%26%3E",
    }.get(key, key)  # fmt: skip
    assert (call.method, call.target, call.body) == ("PUT", f"/wal/{expected}", b"x")


@pytest.mark.parametrize(
    ("start", "size", "asked"),
    [(None, None, None), (3, 4, "bytes=3-6"), (3, None, "bytes=3-"), (None, 4, "bytes=0-3")],
)
def test_ranges_are_asked_for_inclusively(
    s3: ScriptedServer, connected: Connect, start: int | None, size: int | None, asked: str | None
) -> None:
    s3.plays([answer(206, b"abcd")])
    assert connected(s3.url).get("wal", "k", start, size) == b"abcd"
    assert s3.calls[0].headers.get("range") == asked


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 3_000_000])
def test_bodies_of_any_size_go_out_and_come_back_whole(
    s3: ScriptedServer, connected: Connect, size: int
) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    client = connected(s3.url)
    s3.plays(PUT_OK)
    client.put("wal", "k", body)
    assert s3.calls[0].body == body
    assert s3.calls[0].headers["content-length"] == str(size)
    s3.plays([answer(200, body)])
    assert client.get("wal", "k") == body


@pytest.mark.parametrize("upload", ["2~a.b_c-d", "a/b+c=", "u u&x=1"])
def test_a_part_is_asked_for_by_its_number_and_upload_and_its_tag_comes_back(
    s3: ScriptedServer, connected: Connect, upload: str
) -> None:
    s3.plays([answer(200, b"", 'ETag: "t-3"')])
    assert connected(s3.url).put_part("wal", "a/k", upload, 3, bytearray(b"x" * 70_000)) == '"t-3"'
    (call,) = s3.calls
    path, _, query = call.target.partition("?")
    assert (call.method, path, call.body) == ("PUT", "/wal/a/k", b"x" * 70_000)
    assert parse_qs(query) == {"partNumber": ["3"], "uploadId": [upload]}


@pytest.mark.parametrize("length", [2, 40_000])
def test_a_part_that_lies_in_pieces_goes_out_as_one_that_does_not(
    s3: ScriptedServer, connected: Connect, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.0)
    pieces = (b"a" * length, bytearray(b"b" * length), memoryview(b"-cc-")[1:3], b"")
    client = connected(s3.url)
    s3.plays([answer(200, b"", 'ETag: "t"')])
    for body in (pieces, b"".join(pieces)):
        assert client.put_part("wal", "k", "u", 1, body) == '"t"'
    lying, whole = s3.calls
    assert lying.body == whole.body == b"a" * length + b"b" * length + b"cc"
    for name in ("content-length", "x-amz-content-sha256"):
        assert lying.headers[name] == whole.headers[name]


def test_only_a_new_key_is_asked_for_by_a_condition(s3: ScriptedServer, connected: Connect) -> None:
    s3.plays(PUT_OK)
    client = connected(s3.url)
    client.put("wal", "k", b"x")
    client.put("wal", "k", b"x", new=True)
    assert [call.headers.get("if-none-match") for call in s3.calls] == [None, "*"]


def test_the_token_of_keys_that_end_goes_along(
    s3: ScriptedServer, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "ACCESS_KEY_ID": "A",
        "SECRET_ACCESS_KEY": "B",
        "SESSION_TOKEN": "T",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    s3.plays(PUT_OK)
    client = ObjectStoreClient(
        ObjectStoreSettings.model_validate({"s3_endpoint": s3.url}), bounds=ONCE, direct=direct
    )
    client.put("wal", "k", b"x")
    client.close()
    (call,) = s3.calls
    assert call.headers["x-amz-security-token"] == "T"
    assert "Credential=A/" in call.headers["authorization"]
    assert "x-amz-security-token" in call.headers["authorization"]


def test_without_keys_it_is_said_that_there_are_none(
    direct: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    there_are_none = ObjectStoreSettings.model_validate({"s3_endpoint": "http://127.0.0.1:9"})
    with pytest.raises(ObjectStoreRefused, match="credentials"):
        ObjectStoreClient(there_are_none, bounds=ONCE, direct=direct).get("wal", "k")


# -- what comes back


ANSWERS: dict[str, tuple[list[Step], type[Exception], str]] = {
    "no such key": ([error(404, "NoSuchKey")], ObjectMissing, "there is no such object"),
    "404 without a body": ([answer(404)], ObjectMissing, "there is no such object"),
    "no such bucket": ([error(404, "NoSuchBucket")], ObjectStoreRefused, "NoSuchBucket"),
    "403": ([error(403, "SignatureDoesNotMatch")], ObjectStoreRefused, "SignatureDoesNotMatch"),
    "403 without a body": ([answer(403)], ObjectStoreRefused, "refused with 403"),
    "400": ([error(400, "InvalidRequest")], ObjectStoreRefused, "InvalidRequest"),
    "412": ([error(412, "PreconditionFailed")], ObjectExists, "the key is taken"),
    "416": ([error(416, "InvalidRange")], ObjectTooShort, "InvalidRange"),
    "409": ([error(409, "ConditionalRequestConflict")], ObjectStoreUnavailable, "Conflict"),
    "429": ([error(429, "TooManyRequests")], ObjectStoreUnavailable, "TooManyRequests"),
    "429 without a body": ([answer(429)], ObjectStoreUnavailable, "429"),
    "500": ([error(500, "InternalError")], ObjectStoreUnavailable, "InternalError"),
    "500 of a proxy": ([answer(502, b"<html>")], ObjectStoreUnavailable, "502"),
    "503": ([error(503, "SlowDown")], ObjectStoreUnavailable, "SlowDown"),
    "a slow body": ([error(400, "RequestTimeout")], ObjectStoreUnavailable, "RequestTimeout"),
    "nothing": ([close], ObjectStoreUnavailable, "closed"),
    "a reset": ([reset], ObjectStoreUnavailable, "closed"),
    "no HTTP": ([b"\x15\x03\x01\x00\x02\x02\x16\r\n\r\n", close], ObjectStoreUnavailable, ""),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("call", ["get", "put", "part"])
def test_an_answer_means_the_same(
    s3: ScriptedServer, connected: Connect, call: str, name: str
) -> None:
    steps, kind, text = ANSWERS[name]
    s3.plays(steps)
    client = connected(s3.url)
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: client.get("wal", "a/k", 5, 10),
        "put": lambda: client.put("wal", "a/k", b"x" * 7, new=True),
        "part": lambda: client.put_part("wal", "a/k", "u", 3, b"x" * 7),
    }
    where = {
        "get": "get a/k [5, 15)",
        "put": "put a/k (7 bytes)",
        "part": "part 3 of a/k (7 bytes)",
    }
    with pytest.raises(kind) as told:
        calls[call]()
    assert type(told.value) is kind
    assert str(told.value).startswith(f"bucket wal: {where[call]}: ")
    assert text in str(told.value)
    assert len(s3.calls) == 1


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"Content-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"b" * 70_000 + b"\r\nContent-Length: 0\r\n\r\n",
        b"\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_a_direct_put_does_not_take_half_an_answer_for_one(s3: ScriptedServer, sent: bytes) -> None:
    """boto3 takes the first one for an object that is stored."""
    s3.plays([sent, close])
    client = ObjectStoreClient(settings(s3.url), bounds=ONCE)
    with pytest.raises(ObjectStoreUnavailable):
        client.put("wal", "k", b"x")
    client.close()


def test_an_object_that_ends_within_the_range_is_short(
    s3: ScriptedServer, connected: Connect
) -> None:
    s3.plays([answer(206, b"abc")])
    with pytest.raises(ObjectTruncated, match="3 bytes came, not 10"):
        connected(s3.url).get("wal", "k", 5, 10)


def test_a_body_that_is_longer_than_the_range_is_no_such_range(
    s3: ScriptedServer, connected: Connect
) -> None:
    s3.plays([answer(200, b"x" * 100_000)])
    with pytest.raises(ObjectTruncated, match="100000 bytes came, not 10"):
        connected(s3.url).get("wal", "k", 5, 10)


@pytest.mark.parametrize("fault", [close, reset])
def test_a_body_that_breaks_off_is_unavailable_and_not_asked_for_again(
    s3: ScriptedServer, connected: Connect, fault: Step
) -> None:
    s3.plays([b"HTTP/1.1 206 X\r\nContent-Length: 10\r\n\r\nabc", fault])
    with pytest.raises(ObjectStoreUnavailable):
        connected(s3.url, CallBounds(read_timeout_s=60, attempts=3)).get("wal", "k", 5, 10)
    assert len(s3.calls) == 1


def test_headers_that_nobody_needs_change_nothing(s3: ScriptedServer, connected: Connect) -> None:
    wrong = ("x-amz-checksum-crc32: AAAAAA==", 'ETag: "0"', "Set-Cookie: a=b", "Set-Cookie: c=d")
    s3.plays([answer(200, b"abc", *wrong)])
    assert connected(s3.url).get("wal", "k") == b"abc"


def test_errors_may_come_in_chunks(s3: ScriptedServer, connected: Connect) -> None:
    xml = b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>"
    chunks = b"%x\r\n%s\r\n%x;name=1\r\n%s\r\n0\r\n\r\n" % (9, xml[:9], len(xml) - 9, xml[9:])
    s3.plays(
        [b"HTTP/1.1 404 X\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks], [answer(200, b"a")]
    )
    client = connected(s3.url)
    with pytest.raises(ObjectMissing):
        client.get("wal", "k")
    assert client.get("wal", "k") == b"a"
    assert {call.connection for call in s3.calls} == {1}


# -- time


def test_nobody_listens(connected: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    client = connected(f"http://127.0.0.1:{port}")
    with pytest.raises(ObjectStoreUnavailable, match="bucket wal: get k: Could not connect"):
        client.get("wal", "k")


def test_whoever_does_not_accept_is_unavailable_in_time(connected: Connect) -> None:
    with accepts_nobody("127.0.0.1", 0) as port:
        client = connected(f"http://127.0.0.1:{port}", QUICK)
        client.connect()
        wait = Wait("the end of the put", 5)
        with pytest.raises(ObjectStoreUnavailable, match="Connect timeout"):
            client.put("wal", "k", b"x")
        wait.check()


@pytest.mark.parametrize("call", ["get", "put"])
def test_an_answer_that_never_begins_ends_in_time(
    s3: ScriptedServer, connected: Connect, call: str
) -> None:
    s3.plays([stall])
    client = connected(s3.url, QUICK)
    with pytest.raises(ObjectStoreUnavailable, match="Read timeout"):
        client.get("wal", "k") if call == "get" else client.put("wal", "k", b"x")
    set_within("the server to stall", s3.stalled)


def test_a_body_that_stalls_ends_in_time(s3: ScriptedServer, connected: Connect) -> None:
    s3.plays([b"HTTP/1.1 206 X\r\nContent-Length: 10\r\n\r\nabc", stall])
    with pytest.raises(ObjectStoreUnavailable, match=r"(?i)time"):
        connected(s3.url, QUICK).get("wal", "k", 0, 10)
    set_within("the server to stall", s3.stalled)


@pytest.mark.parametrize(
    "before", [b"HTTP/1.1 200 ", b"HTTP/1.1 200 X\r\nContent-Length: 999\r\n\r\n"]
)
def test_a_byte_now_and_then_does_not_hold_a_direct_call(s3: ScriptedServer, before: bytes) -> None:
    """It does hold boto3's: there each read has the time anew."""
    s3.plays([before, trickle])
    client = ObjectStoreClient(settings(s3.url), bounds=QUICK)
    with pytest.raises(ObjectStoreUnavailable, match="Read timeout"):
        client.get("wal", "k")
    client.close()


TRIED_AGAIN: dict[str, list[Step]] = {
    "500": [error(500, "InternalError")],
    "502": [answer(502)],
    "503": [error(503, "ServiceUnavailable")],
    "a slow body": [error(400, "RequestTimeout")],
    "nothing": [close],
    "a reset": [reset],
}


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What this thread would have slept, in seconds, in order; others sleep as they do."""
    asked: list[float] = []
    sleep, own = time.sleep, threading.get_ident()  # noqa: TID251 - what the product calls

    def waits(seconds: float) -> None:
        asked.append(seconds) if threading.get_ident() == own else sleep(seconds)

    monkeypatch.setattr("time.sleep", waits)
    return asked


@pytest.mark.parametrize("name", TRIED_AGAIN)
@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.usefixtures("waited")
def test_so_many_attempts_are_made_as_the_bounds_say(
    s3: ScriptedServer, connected: Connect, name: str, attempts: int
) -> None:
    s3.plays(TRIED_AGAIN[name])
    client = connected(s3.url, CallBounds(read_timeout_s=60, attempts=attempts))
    with pytest.raises(ObjectStoreUnavailable):
        client.put("wal", "k", b"x")
    assert len(s3.calls) == attempts
    s3.plays(TRIED_AGAIN[name], PUT_OK)
    if attempts > 1:
        client.put("wal", "k", b"x")
        assert [call.body for call in s3.calls] == [b"x", b"x"]


@pytest.mark.parametrize("steps", [[error(503, "SlowDown")], [answer(429)]])
def test_throttling_is_waited_for(
    s3: ScriptedServer, connected: Connect, waited: list[float], steps: list[Step]
) -> None:
    s3.plays(steps)
    with pytest.raises(ObjectStoreUnavailable):
        connected(s3.url, CallBounds(read_timeout_s=60, attempts=4)).get("wal", "k")
    assert len(s3.calls) == 4
    pauses = [pause for pause in waited if pause > 0]
    assert len(pauses) == 3
    assert all(pause <= most for pause, most in zip(pauses, (1, 2, 4), strict=True))


@pytest.mark.parametrize(
    "steps",
    [[error(409, "ConditionalRequestConflict")], [error(403, "X")], [error(412, "X")]],
)
def test_other_refusals_are_not_tried_again(
    s3: ScriptedServer, connected: Connect, steps: list[Step]
) -> None:
    s3.plays(steps)
    with pytest.raises((ObjectStoreUnavailable, ObjectStoreRefused)):
        connected(s3.url, CallBounds(read_timeout_s=60, attempts=3)).put("wal", "k", b"", new=True)
    assert len(s3.calls) == 1


def test_a_put_whose_answer_was_lost_finds_its_own_object(
    s3: ScriptedServer, connected: Connect
) -> None:
    s3.plays([reset], [error(412, "PreconditionFailed")])
    with pytest.raises(ObjectExists):
        connected(s3.url, CallBounds(read_timeout_s=60, attempts=2)).put("w", "k", b"x", new=True)


# -- connections


def test_connections_are_kept_between_calls_also_past_refusals(
    s3: ScriptedServer, connected: Connect
) -> None:
    s3.plays([answer(200, b"a")], [error(404, "NoSuchKey")], PUT_OK, [answer(200, b"b")])
    client = connected(s3.url)
    assert client.get("wal", "k") == b"a"
    with pytest.raises(ObjectMissing):
        client.get("wal", "k")
    client.put("wal", "k", b"x")
    assert client.get("wal", "k") == b"b"
    assert {call.connection for call in s3.calls} == {1}


def test_one_that_the_server_has_ended_is_not_used(s3: ScriptedServer, connected: Connect) -> None:
    ended = threading.Event()

    def end(peer: object) -> None:
        close(peer)  # type: ignore[arg-type]
        ended.set()

    s3.plays([answer(200, b"a"), end], [answer(200, b"b")])
    client = connected(s3.url)
    assert client.get("wal", "k") == b"a"
    set_within("the end of the connection", ended)

    def is_served() -> bool:
        with suppress(ObjectStoreUnavailable):  # until the end of the connection has come here
            assert client.get("wal", "k") == b"b"
            return True
        return False

    until("another connection", is_served, SOON_S)
    assert s3.calls[-1].connection >= 2


def test_what_comes_behind_an_answer_is_not_taken_for_the_next_one(
    s3: ScriptedServer, connected: Connect
) -> None:
    s3.plays([answer(200, b"a") + answer(200, b"wrong")], [answer(200, b"b")])
    client = connected(s3.url)
    assert client.get("wal", "k") == b"a"
    assert client.get("wal", "k") == b"b"


def test_a_connection_that_the_answer_ends_is_not_kept(
    s3: ScriptedServer, connected: Connect
) -> None:
    s3.plays([answer(200, b"a", "Connection: close")])
    client = connected(s3.url)
    for _ in range(2):
        assert client.get("wal", "k") == b"a"
    assert [call.connection for call in s3.calls] == [1, 2]


def test_it_travels_as_its_settings_and_connects_where_it_arrives(
    s3: ScriptedServer, connected: Connect
) -> None:
    s3.plays([answer(200, b"a")])
    client = connected(s3.url)
    client.get("wal", "k")
    travelled = pickle.loads(pickle.dumps(client))
    assert travelled.get("wal", "k") == b"a"
    travelled.close()
    assert {call.connection for call in s3.calls} == {1, 2}


def test_a_closed_one_opens_again(s3: ScriptedServer, connected: Connect) -> None:
    s3.plays([answer(200, b"a")])
    client = connected(s3.url)
    client.get("wal", "k")
    client.close()
    assert client.get("wal", "k") == b"a"


def test_threads_share_it(s3: ScriptedServer, connected: Connect) -> None:
    s3.plays([answer(200, b"abcd")])
    client = connected(s3.url)
    client.connect()
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.extend(client.get("w", "k") for _ in range(20)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [b"abcd"] * 160


# -- where it goes


@pytest.fixture
def https(tmp_path: Path) -> Iterator[tuple[ScriptedServer, Path]]:
    authority = Authority.load_or_create(tmp_path / "ca")
    pair = authority.issue("s3", "127.0.0.1")
    context = TlsFiles(None, pair.certificate, pair.key).server_context(ClientAuth.NONE)
    with scripted_server(context) as server:
        yield server, authority.certificate


def test_a_private_authority_is_believed_and_nobody_else(
    https: tuple[ScriptedServer, Path], connected: Connect, tmp_path: Path
) -> None:
    server, ca = https
    server.plays([answer(200, b"abc")])
    assert connected(server.url, s3_ca_file=ca).get("wal", "k") == b"abc"
    another = Authority.load_or_create(tmp_path / "another").certificate
    for more in ({}, {"s3_ca_file": another}):
        with pytest.raises(ObjectStoreUnavailable, match=r"(?i)certificate"):
            connected(server.url, **more).get("wal", "k")


def test_a_certificate_for_another_name_is_refused(
    https: tuple[ScriptedServer, Path], connected: Connect
) -> None:
    server, ca = https
    server.plays([answer(200, b"abc")])
    url = server.url.replace("127.0.0.1", "127.0.0.2")
    with pytest.raises(ObjectStoreUnavailable):
        connected(url, s3_ca_file=ca).get("wal", "k")


def test_the_bundle_of_the_environment_is_believed(
    https: tuple[ScriptedServer, Path], connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, ca = https
    monkeypatch.setenv("AWS_CA_BUNDLE", str(ca))
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    server.plays([answer(200, b"abc")])
    assert connected(server.url).get("wal", "k") == b"abc"


class TestAddresses:
    """What boto3 would do decides, also where no server can be asked."""

    @pytest.mark.parametrize(
        ("bucket", "region", "server", "path"),
        [
            ("wal", "eu-central-1", "https://wal.s3.eu-central-1.amazonaws.com", "/"),
            ("wal.dots", "eu-central-1", "https://s3.eu-central-1.amazonaws.com", "/wal.dots/"),
            ("wal", "cn-north-1", "https://wal.s3.cn-north-1.amazonaws.com.cn", "/"),
        ],
    )
    def test_of_aws(self, bucket: str, region: str, server: str, path: str) -> None:
        found = reached(bucket, s3_endpoint=None, s3_region=region)
        assert found is not None
        assert (found.server.url, found.path, found.region) == (server, path, region)

    def test_of_another_server(self) -> None:
        found = reached("wal", s3_endpoint="https://S3.example:9000/under")
        assert found is not None
        assert (found.server.url, found.path) == ("https://s3.example:9000", "/under/wal/")

    def test_what_is_signed_or_sent_in_another_way_is_left_to_boto3(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        access_point = "arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap"
        with suppress(BotoCoreError):  # without its native library boto3 cannot either
            assert reached(access_point, s3_endpoint=None) is None
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
        assert reached("wal", s3_endpoint="https://s3.example") is None

    def test_a_signature_by_awscrt_names_the_host_and_changes_nothing(self) -> None:
        client = ObjectStoreClient(settings("http://x"), bounds=ONCE)
        client._client.meta.events.register_first("before-send.s3.GetObject", as_awscrt_signs)
        made = client._direct
        assert made is not None
        assert made.reached("wal") == reached("wal")


def as_awscrt_signs(request: Any, **_: object) -> None:
    request.headers["Host"] = "x"


def reached(bucket: str, **more: object) -> Bucket | None:
    made = ObjectStoreClient(settings("http://x", **more), bounds=ONCE)._direct
    assert made is not None
    return made.reached(bucket)


@pytest.mark.parametrize(
    "steps",
    [
        [answer(301, b"", "Location: http://127.0.0.1:9/")],
        [error(400, "AuthorizationHeaderMalformed")],
    ],
)
def test_a_bucket_that_lies_elsewhere_is_boto3s_from_then_on(
    s3: ScriptedServer, steps: list[Step]
) -> None:
    s3.plays(steps, [error(403, "AccessDenied")])
    client = ObjectStoreClient(settings(s3.url), bounds=ONCE)
    with pytest.raises(ObjectStoreRefused):
        client.put("wal", "k", b"x")
    s3.plays([answer(200, b"abc")])
    assert client.get("wal", "k") == b"abc"
    assert s3.calls[0].headers["amz-sdk-request"]
    client.close()
