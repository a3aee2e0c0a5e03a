"""A listing means the same whether boto3 makes the call or it is made directly."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import parse_qs, quote_plus, urlsplit

import pytest

from tests.unit.object_store.scripted_server import (
    ScriptedServer,
    Step,
    answer,
    close,
    error,
    reset,
    stall,
)
from tideline.object_store.client import (
    CallBounds,
    ObjectEntry,
    ObjectStoreClient,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
)
from tideline.settings import ObjectStoreSettings

ONCE = CallBounds(read_timeout_s=60, attempts=1)
TWICE = CallBounds(read_timeout_s=60, attempts=2)
QUICK = CallBounds(read_timeout_s=0.3, attempts=1, connect_timeout_s=0.3)
MODIFIED = "2026-01-02T03:04:05.678Z"
AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


Connect = Callable[..., ObjectStoreClient]


def client_of(url: str, bounds: CallBounds, direct: bool) -> ObjectStoreClient:
    keys = {"s3_endpoint": url, "s3_access_key": "AK", "s3_secret_key": "SK"}
    settings = ObjectStoreSettings.model_validate(keys)
    return ObjectStoreClient(settings, bounds=bounds, direct=direct)


@pytest.fixture
def connected(direct: bool, _clients: dict[object, ObjectStoreClient]) -> Connect:
    def connect(url: str, bounds: CallBounds = ONCE) -> ObjectStoreClient:
        name = (direct, url, bounds)
        if name not in _clients:
            _clients[name] = client_of(url, bounds, direct)
        return _clients[name]

    return connect


def contents(key: str, size: int = 3, modified: str = MODIFIED, more: str = "") -> str:
    return (
        f"<Contents><Key>{key}</Key><LastModified>{modified}</LastModified>"
        f"<ETag>&#34;e&#34;</ETag><Size>{size}</Size>{more}</Contents>"
    )


def page(*parts: str, further: str | None = None, escaped: bool = True) -> bytes:
    more = "<IsTruncated>false</IsTruncated>"
    if further is not None:
        more = (
            "<IsTruncated>true</IsTruncated>"
            f"<NextContinuationToken>{further}</NextContinuationToken>"
        )
    form = "<EncodingType>url</EncodingType>" if escaped else ""
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>wal</Name>{form}{''.join(parts)}{more}</ListBucketResult>"
    )
    return answer(200, body.encode(), "Content-Type: application/xml")


def asked(target: str) -> tuple[str, dict[str, str]]:
    found = urlsplit(target)
    return found.path, {k: v[0] for k, v in parse_qs(found.query, keep_blank_values=True).items()}


# -- what goes out and what it says


@pytest.mark.parametrize("prefix", ["", "a/", "a b+c%20/", "ü/日本/", "x~y=z&w?#/"])
def test_both_ask_for_the_same_page(s3: ScriptedServer, connected: Connect, prefix: str) -> None:
    s3.plays([page()])
    assert list(connected(s3.url).list_objects("wal", prefix, f"{prefix}k")) == []
    (call,) = s3.calls
    path, query = asked(call.target)
    assert (call.method, path) == ("GET", "/wal")
    assert query == {
        "list-type": "2",
        "prefix": prefix,
        "encoding-type": "url",
        "start-after": f"{prefix}k",
    }


def test_objects_are_told_as_they_are(s3: ScriptedServer, connected: Connect) -> None:
    names = ["a/b c", "a/b+c", "a/b%20c", "a/ü", "a/日本"]
    owner = "<Owner><ID>x</ID></Owner><StorageClass>STANDARD</StorageClass>"
    s3.plays(
        [
            page(
                *(
                    contents(quote_plus(name, safe="/"), n, more=owner)
                    for n, name in enumerate(names)
                )
            )
        ]
    )
    found = list(connected(s3.url).list_objects("wal", "a/"))
    assert found == [ObjectEntry(name, n, AT, '"e"') for n, name in enumerate(names)]


def test_keys_that_are_not_escaped_are_taken_as_they_are(
    s3: ScriptedServer, connected: Connect
) -> None:
    s3.plays([page(contents("a/b%20c"), escaped=False)])
    (found,) = connected(s3.url).list_objects("wal", "a/")
    assert found.key == "a/b%20c"


@pytest.mark.parametrize(
    "modified", ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.000Z", "2026-01-02T05:04:05+02:00"]
)
def test_times_of_any_form_are_the_same_moment(
    s3: ScriptedServer, connected: Connect, modified: str
) -> None:
    s3.plays([page(contents("a/k", modified=modified))])
    (found,) = connected(s3.url).list_objects("wal", "a/")
    assert found.last_modified == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_pages_follow_each_other_by_their_tokens(s3: ScriptedServer, connected: Connect) -> None:
    pages = [page(contents("a/1"), further="t/1=="), page(further="t+2"), page(contents("a/2"))]
    s3.plays(*([one] for one in pages))
    found = [entry.key for entry in connected(s3.url).list_objects("wal", "a/", "a/0")]
    assert found == ["a/1", "a/2"]
    queries = [asked(call.target)[1] for call in s3.calls]
    assert [query.get("continuation-token") for query in queries] == [None, "t/1==", "t+2"]


def test_a_page_is_asked_for_when_it_is_needed(s3: ScriptedServer, connected: Connect) -> None:
    s3.plays([page(contents("a/1"), contents("a/2"), further="t")], [page(contents("a/3"))])
    listing = connected(s3.url).list_objects("wal", "a/")
    assert [next(listing).key, next(listing).key] == ["a/1", "a/2"]
    assert len(s3.calls) == 1
    assert next(listing).key == "a/3"


def test_prefixes_are_those_before_the_next_slash(s3: ScriptedServer, connected: Connect) -> None:
    common = "<CommonPrefixes><Prefix>a/b%20c/</Prefix></CommonPrefixes>"
    s3.plays([page(common, contents("a/k"))])
    assert list(connected(s3.url).list_prefixes("wal", "a/")) == ["a/b c/"]
    assert asked(s3.calls[0].target)[1]["delimiter"] == "/"


# -- what fails

ANSWERS: dict[str, tuple[list[Step], type[Exception], str]] = {
    "no such bucket": ([error(404, "NoSuchBucket")], ObjectStoreRefused, "NoSuchBucket"),
    "403": ([error(403, "AccessDenied")], ObjectStoreRefused, "AccessDenied"),
    "400": ([error(400, "InvalidArgument")], ObjectStoreRefused, "InvalidArgument"),
    "500": ([error(500, "InternalError")], ObjectStoreUnavailable, "InternalError"),
    "503": ([error(503, "SlowDown")], ObjectStoreUnavailable, "SlowDown"),
    "a 200 with an error": ([error(200, "InternalError")], ObjectStoreUnavailable, "InternalErr"),
    "nothing": ([close], ObjectStoreUnavailable, "closed"),
    "a reset": ([reset], ObjectStoreUnavailable, "closed"),
    "more without a token": ([page(further="")], ObjectStoreUnavailable, "how to go on"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_failure_means_the_same(s3: ScriptedServer, connected: Connect, name: str) -> None:
    steps, kind, text = ANSWERS[name]
    s3.plays(steps)
    with pytest.raises(kind, match=text) as raised:
        list(connected(s3.url).list_objects("wal", "a/"))
    assert "bucket wal: list 'a/'" in str(raised.value)


@pytest.mark.parametrize("name", ["500", "503", "nothing"])
def test_a_page_that_failed_is_asked_for_again(
    s3: ScriptedServer, connected: Connect, name: str
) -> None:
    s3.plays([page(contents("a/1"), further="t")], ANSWERS[name][0], [page(contents("a/2"))])
    found = [entry.key for entry in connected(s3.url, TWICE).list_objects("wal", "a/")]
    assert found == ["a/1", "a/2"]


def test_a_store_that_does_not_answer_is_away(s3: ScriptedServer, connected: Connect) -> None:
    s3.plays([stall])
    with pytest.raises(ObjectStoreUnavailable):
        list(connected(s3.url, QUICK).list_objects("wal", "a/"))


HOSTILE = {
    "nothing at all": answer(200),
    "no XML": answer(200, b"<html><body>proxy"),
    "XML that breaks off": answer(200, b"<ListBucketResult><Contents><Key>a/1</Key>"),
    "another answer": answer(200, b"<ListAllMyBucketsResult></ListAllMyBucketsResult>"),
    "an object without a size": page("<Contents><Key>a/1</Key></Contents>"),
    "a size that is none": page(contents("a/1").replace("<Size>3<", "<Size>x<")),
    "a time that is none": page(contents("a/1", modified="yesterday")),
    "another prefix": page(contents("b/1")),
    "a part of something": page(contents("a/1")).replace(b"200", b"206", 1),
    "a page without an end": b"HTTP/1.1 200 X\r\nContent-Length: 99999999\r\n\r\n" + b" " * 999,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_page_of_what_was_asked_for_is_no_empty_listing(
    s3: ScriptedServer, name: str
) -> None:
    s3.plays([HOSTILE[name], close])
    client = client_of(s3.url, ONCE, direct=True)
    with pytest.raises(ObjectStoreUnavailable):
        list(client.list_objects("wal", "a/"))
    client.close()


def test_a_token_that_leads_back_ends_the_listing_as_a_failure(
    s3: ScriptedServer, connected: Connect
) -> None:
    s3.plays([page(contents("a/1"), further="t")], [page(contents("a/2"), further="t")])
    with pytest.raises(ObjectStoreUnavailable, match="how to go on"):
        list(connected(s3.url).list_objects("wal", "a/"))
    assert len(s3.calls) == 2


def test_a_bucket_that_lies_elsewhere_is_listed_by_boto3(s3: ScriptedServer) -> None:
    moved = error(400, "IllegalLocationConstraintException")
    s3.plays([page(contents("a/1"), further="t")], [moved], [page(contents("a/2"))])
    client = client_of(s3.url, ONCE, direct=True)
    assert [entry.key for entry in client.list_objects("wal", "a/")] == ["a/1", "a/2"]
    assert asked(s3.calls[-1].target)[1]["continuation-token"] == "t"
    client.close()
