"""What stores that speak S3 do in their own way (docs/object-stores.md): each by a store that does
it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Callable, Iterator

import pytest

from tests.unit.object_store.scripted_server import STORED, ScriptedServer, answer, error
from tests.unit.object_store.test_get_and_put import ONCE, settings
from tideline.object_store.client import (
    ObjectStoreClient,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
)

PAGE = answer(200, b"<html>Sign in first</html>", "Content-Type: text/html")


@pytest.fixture
def client(s3: ScriptedServer, direct: bool) -> Iterator[ObjectStoreClient]:
    made = ObjectStoreClient(settings(s3.url), bounds=ONCE, direct=direct)
    with contextlib.closing(made):
        yield made


def deleted(*keys: str, errors: str = "") -> bytes:
    """The answer to DeleteObjects."""
    named = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
    return answer(200, f"<DeleteResult>{named}{errors}</DeleteResult>".encode())


def test_what_is_stored_has_an_md5_as_object_lock_wants_it_and_no_other_checksum(
    s3: ScriptedServer, client: ObjectStoreClient
) -> None:
    s3.plays([STORED], [STORED], [STORED], [deleted("k")])
    client.put("wal", "k", b"records")
    client.put("wal", "k", b"", new=True)
    client.put_part("wal", "k", "u", 1, (b"rec", memoryview(b"ords")))
    client.delete("wal", ["k"])
    for call in s3.calls:
        digest = hashlib.md5(call.body, usedforsecurity=False).digest()
        assert call.headers["content-md5"] == base64.b64encode(digest).decode()
        assert not [name for name in call.headers if "checksum" in name or "trailer" in name]


@pytest.mark.parametrize(
    "refused", [error(501, "NotImplemented"), error(405, "MethodNotAllowed"), answer(501)]
)
def test_where_there_is_no_deletion_of_many_each_is_deleted_alone(
    s3: ScriptedServer, client: ObjectStoreClient, refused: bytes
) -> None:
    s3.plays([refused], [answer(204)])
    client.delete("wal", ["a", "b"])
    client.delete("wal", ["c"])
    assert [(call.method, call.target.partition("?")[0]) for call in s3.calls] == [
        ("POST", "/wal"),
        *(("DELETE", f"/wal/{key}") for key in "abc"),
    ]


def test_of_what_the_answer_does_not_name_each_is_deleted_alone(
    s3: ScriptedServer, client: ObjectStoreClient
) -> None:
    gone = "<Error><Key>c</Key><Code>NoSuchKey</Code></Error>"
    s3.plays([deleted("a", errors=gone)], [error(404, "NoSuchKey")])
    client.delete("wal", ["a", "b", "c"])
    assert [call.target.partition("?")[0] for call in s3.calls] == ["/wal", "/wal/b"]


def test_one_of_many_that_may_not_be_deleted_is_named_with_the_reason(
    s3: ScriptedServer, client: ObjectStoreClient
) -> None:
    locked = (
        "<Error><Key>b</Key><Code>AccessDenied</Code><Message>under retention</Message></Error>"
    )
    s3.plays([deleted("a", errors=locked)])
    with pytest.raises(ObjectStoreRefused, match=r"delete b: .*AccessDenied \(under retention\)"):
        client.delete("wal", ["a", "b"])


CALLS: dict[str, Callable[[ObjectStoreClient], object]] = {
    "PutObject": lambda client: client.put("wal", "k", b"x"),
    "UploadPart": lambda client: client.put_part("wal", "k", "u", 1, b"x"),
    "CreateMultipartUpload": lambda client: client.begin_parts("wal", "k"),
    "CompleteMultipartUpload": lambda client: client.complete_parts("wal", "k", "u", ["t"]),
    "HeadObject": lambda client: client.size("wal", "k"),
    "DeleteObjects": lambda client: client.delete("wal", ["k"]),
    "ListObjectsV2": lambda client: list(client.list_objects("wal", "")),
}


HEAD = b'HTTP/1.1 200 X\r\nContent-Length: 3\r\nETag: "t"\r\n\r\n'
COPIED = b'<CopyObjectResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">%s</CopyObjectResult>'


@pytest.mark.parametrize(
    "told",
    [
        PAGE,
        answer(200),
        answer(200, COPIED % b"<Progress>1</Progress>"),
        answer(
            200, b'<Error xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Code>x</Code></Error>'
        ),
    ],
)
def test_a_copy_is_made_by_no_other_answer_than_its_tag(
    s3: ScriptedServer, client: ObjectStoreClient, told: bytes
) -> None:
    """The last but one is Ceph's of a copy that failed after its answer had begun."""
    s3.plays([HEAD], [told])
    with pytest.raises(ObjectStoreUnavailable, match="copy k to there"):
        client.copy("wal", "k", "wal", "there")


def test_a_copy_with_a_tag_is_made(s3: ScriptedServer, client: ObjectStoreClient) -> None:
    s3.plays([HEAD], [answer(200, COPIED % b"<ETag>&quot;t&quot;</ETag>")])
    client.copy("wal", "k", "wal", "there")


@pytest.mark.parametrize("name", CALLS)
def test_a_proxys_page_is_no_success_of_any_call(
    s3: ScriptedServer, client: ObjectStoreClient, name: str
) -> None:
    head = b"HTTP/1.1 200 X\r\nContent-Length: 26\r\nContent-Type: text/html\r\n\r\n"
    s3.plays([head if name == "HeadObject" else PAGE])
    with pytest.raises(ObjectStoreUnavailable):
        CALLS[name](client)


def test_a_refusal_repeats_what_the_store_says_escaped_and_bounded(
    s3: ScriptedServer, client: ObjectStoreClient
) -> None:
    s3.plays([error(400, "InvalidRequest", "this bucket&#10;takes nothing " + "x" * 1_000)])
    with pytest.raises(ObjectStoreRefused) as told:
        client.put("wal", "k", b"x")
    assert r"refused with InvalidRequest (this bucket\ntakes nothing xxx" in str(told.value)
    assert "more characters)); check the bucket" in str(told.value)
    assert len(str(told.value)) < 500
