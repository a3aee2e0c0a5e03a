"""PUT, GET and lists of objects, and PUT of parts, without boto3, which costs more than ten times
as much of CPU.

boto3 stays what decides: how a bucket is addressed, signed for and reached is read off a call that
it has made ready and that is not sent, so that its settings, variables and files hold here too. A
bucket that it reaches in another way than by Signature Version 4 over a connection without a proxy
is left to it, and so is one whose answers say that it lies elsewhere. Errors are its own, and are
tried again when it would (its mode "standard", without the quota of that mode).
"""

from __future__ import annotations

import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from botocore.credentials import Credentials, RefreshableCredentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    ResponseStreamingError,
)
from botocore.exceptions import ConnectionError as NoConnection
from botocore.httpsession import get_cert_path
from botocore.parsers import create_parser
from botocore.session import Session
from botocore.utils import get_environ_proxies

from tideline.object_store.connections import Connection, Connections, Head, Server
from tideline.object_store.listing import MAX_PAGE, Asked, Page, page_of, plain
from tideline.object_store.signature import Body, Signer, content_md5, escaped, size

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

T = TypeVar("T")
_PROBE = "k"
_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""SHA-256 of nothing, in hexadecimal."""
_SCOPE = re.compile(r"AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/([^/]+)/s3/aws4_request, ")
_MADE_READY = frozenset(
    {
        "amz-sdk-invocation-id", "amz-sdk-request", "authorization", "host", "user-agent",
        "x-amz-content-sha256", "x-amz-date", "x-amz-security-token",
    }
)  # fmt: skip
"""Headers of a plain GET that boto3 has made ready; another one is a feature that is not known. A
``host`` of its own it has where awscrt signs."""
_ELSEWHERE = frozenset(
    {
        "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect",
        "TemporaryRedirect",
    }
)  # fmt: skip
"""Codes that make boto3 look for the region of a bucket (``S3RegionRedirectorv2``)."""
_THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded", "EC2ThrottledException", "LimitExceededException",
        "PriorRequestNotComplete", "ProvisionedThroughputExceededException",
        "RequestLimitExceeded", "RequestThrottled", "RequestThrottledException", "SlowDown",
        "Throttling", "ThrottledException", "ThrottlingException", "TooManyRequestsException",
        "TransactionInProgressException",
    }
)  # fmt: skip
_TRANSIENT = frozenset({"RequestTimeout", "RequestTimeoutException", "PriorRequestNotComplete"})
_TRANSIENT_STATUS = frozenset({500, 502, 503, 504})
_TRIED_AGAIN = (NoConnection, HTTPClientError, IncompleteReadError)
_BACKOFF_S, _THROTTLED_BACKOFF_S, _LONGEST_BACKOFF_S = 0.05, 1.0, 20.0
STORED, GOT = frozenset({200, 204}), frozenset({200, 206})
SUCCESS = STORED | GOT
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_NAMESPACE = re.compile(rb'\sxmlns="[^"]*"')
MAX_ERROR = 256 * 1024
"""bytes of the body of an answer that is not what was asked for"""


def must_be_asked(asked: str | None, size: int | None, head: Head) -> None:
    """``asked``: the ``Range`` of a GET; ``size``: bytes of it, if they are known. Raises
    ``ResponseStreamingError`` for an answer of success that says that it is another one."""
    first, _, last = ("0-" if asked is None else asked.removeprefix("bytes=")).partition("-")
    told = head.headers.get("content-range")
    if head.status != 206:
        # All of the object. Of another size it is refused by that.
        if first == "0" or head.length not in (None, size):
            return
    elif told is None:
        if not head.headers.get("content-type", "").startswith("multipart/"):
            return
    elif told.startswith(f"bytes {first}-{last}/") and last:
        return
    elif (found := _RANGE.fullmatch(told)) is not None and found[1] == first:
        end = int(found[2]) + 1
        # Short of what was asked for, the object has to end there.
        if found[3] in ("*", str(end)) and (not last or end <= int(last)):
            return
    raise ResponseStreamingError(error=f"{asked} was asked for, not {head.status} {told}")


def is_stored(status: int, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether an answer to PutObject or UploadPart says that the bytes are stored: S3 tells their
    tag, and sends no body. Anything else may be a proxy's page, or a late error of the store; then
    the outcome is unknown. ``headers`` by names in lower case."""
    return status in STORED and not body and bool(headers.get("etag"))


def not_stored(status: int, headers: Mapping[str, str], body: bytes) -> str:
    """An answer of success that is none, in words."""
    kind, tag = headers.get("content-type"), headers.get("etag")
    return (
        f"{status} with {len(body)} bytes of {kind or 'no type'} and {'a' if tag else 'no'} tag: a "
        "store says with a tag and no bytes that an object is stored, so something before it "
        "answers, or it does not speak S3"
    )


def _names_an_error(body: bytes) -> bool:
    try:
        return plain(ElementTree.fromstring(body).tag) == "Error"
    except ElementTree.ParseError:
        return False


class LeftToBoto3(Exception):
    """This call is none of those that are made directly."""


class _Caught(Exception):
    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        super().__init__(url)
        self.url, self.headers = url, headers


@dataclass(frozen=True, slots=True)
class Bucket:
    """How one bucket is reached."""

    server: Server
    path: str
    """Before the key of an object, escaped."""
    region: str
    agent: str


@dataclass(frozen=True, slots=True)
class _Call:
    """``operation``: S3's name for it; ``asked``: headers of its own."""

    operation: str
    method: str
    bucket: str
    key: str
    asked: Mapping[str, str]
    body: Body = b""
    query: str = ""
    """Escaped, in the order of its names."""


class _Probe:
    """Catches a call of one thread that boto3 has made ready, and lets pass what others call."""

    def __init__(self, client: S3Client) -> None:
        self._client = client
        self._here = threading.local()
        client.meta.events.register("before-send.s3.GetObject", self._before_send)

    def _before_send(self, request: Any, **_: object) -> None:
        if getattr(self._here, "probing", False):
            raise _Caught(request.url, {k.lower(): _text(v) for k, v in request.headers.items()})

    def made_ready(self, bucket: str) -> _Caught:
        """A GET of an object of ``bucket``. Raises what boto3 raises."""
        self._here.probing = True
        try:
            self._client.get_object(Bucket=bucket, Key=_PROBE)
        except _Caught as caught:
            return caught
        finally:
            self._here.probing = False
        raise LeftToBoto3("boto3 has not asked before it sent")


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


class DirectCalls:
    """Safe to share between threads. Raises exceptions of botocore, or :class:`LeftToBoto3`."""

    def __init__(
        self,
        client: S3Client,
        credentials: Credentials,
        *,
        authorities: str | None,
        attempts: int,
        connect_timeout_s: float,
        read_timeout_s: float,
        connections: int,
    ) -> None:
        """``authorities``: a PEM file; ``None``: those that botocore trusts by itself."""
        self._probe = _Probe(client)
        self._credentials = credentials
        self._attempts = attempts
        self.timeouts = {
            "connect_timeout_s": connect_timeout_s,
            "read_timeout_s": read_timeout_s,
        }
        self.kept = connections
        self._given_authorities = authorities
        self._parser: Any = create_parser("rest-xml")
        self._shapes = {
            name: client.meta.service_model.operation_model(name).output_shape
            for name in ("GetObject", "PutObject", "UploadPart", "ListObjectsV2")
        }
        self._lock = threading.Lock()
        self._buckets: dict[str, Bucket | None] = {}
        self._signers: dict[str, Signer] = {}
        self._servers: dict[Server, Connections] = {}

    def close(self) -> None:
        with self._lock:
            for connections in self._servers.values():
                connections.close()

    def put(self, bucket: str, key: str, body: bytes, *, new: bool) -> None:
        """``new``: with ``If-None-Match: *``."""
        asked = {"if-none-match": "*"} if new else {}

        def whole(connection: Connection, head: Head) -> None:
            told = connection.body(head, MAX_ERROR)
            self.must_be_stored(bucket, head, told)
            self._finish(connection, head, told)

        self._again(_Call("PutObject", "PUT", bucket, key, asked, body), whole)

    def put_part(self, bucket: str, key: str, upload: str, number: int, body: Body) -> str:
        """The part's tag."""
        query = f"partNumber={number}&uploadId={quote(upload, safe='~')}"

        def tag(connection: Connection, head: Head) -> str:
            told = connection.body(head, MAX_ERROR)
            self.must_be_stored(bucket, head, told, "UploadPart")
            self._finish(connection, head, told)
            return head.headers["etag"]

        return self._again(_Call("UploadPart", "PUT", bucket, key, {}, body, query), tag)

    def get(self, bucket: str, key: str, asked: str | None, size: int | None) -> tuple[bytes, int]:
        """The body that came, and how many bytes the answer told. ``asked``: the ``Range``;
        ``size``: bytes of it, if they are known: of a body that is longer one more is read."""
        call = _Call("GetObject", "GET", bucket, key, {} if asked is None else {"range": asked})
        connection, head = self._again(call, lambda connection, head: (connection, head))
        # From here on nothing is tried again, as by boto3, whose body is a stream.
        try:
            must_be_asked(asked, size, head)
            body = connection.body(head, size)
        except BaseException:
            connection.close()
            raise
        self._finish(connection, head, body)
        return body, len(body) if head.length is None else head.length

    def list(self, bucket: str, asked: Asked) -> Page:
        """One page."""

        def read(connection: Connection, head: Head) -> Page:
            body = connection.body(head, MAX_PAGE)
            if head.status != 200 or len(body) > MAX_PAGE:
                raise ResponseStreamingError(error=f"no page: {head.status}, {len(body)} bytes")
            if body.rstrip().endswith(b"</Error>"):
                self.refused("ListObjectsV2", bucket, replace(head, status=500), body)
            page = page_of(body, asked)
            self._finish(connection, head, body)
            return page

        return self._again(_Call("ListObjectsV2", "GET", bucket, "", {}, query=asked.query()), read)

    def _again(self, call: _Call, take: Callable[[Connection, Head], T]) -> T:
        """What ``take`` makes of an answer of success, within the attempts."""
        where = self.reached(call.bucket)
        if where is None:
            raise LeftToBoto3
        attempt = 0
        while True:
            try:
                return self._once(call, where, take)
            except (BotoCoreError, ClientError) as error:
                scale = _backoff_scale_s(error)
                attempt += 1
                if scale is None or attempt >= self._attempts:
                    raise
            time.sleep(random.random() * min(scale * 2.0 ** (attempt - 1), _LONGEST_BACKOFF_S))

    def _once(self, call: _Call, where: Bucket, take: Callable[[Connection, Head], T]) -> T:
        sent = self.request(call.method, where, call.key, call.asked, call.body, call.query)
        connection = self._servers[where.server].take()
        try:
            head = connection.ask(sent, call.body)
            if head.status in (GOT if call.method == "GET" else STORED):
                return take(connection, head)
            told = connection.body(head, MAX_ERROR)
        except BaseException:
            connection.close()
            raise
        self._finish(connection, head, told)
        self.refused(call.operation, call.bucket, head, told)

    def request(
        self,
        method: str,
        where: Bucket,
        key: str,
        asked: Mapping[str, str],
        body: Body,
        query: str = "",
    ) -> bytes:
        """All of a call before its body. Without a key it is one of the bucket, which is asked by a
        query."""
        if not key and not query:
            raise LeftToBoto3
        if method == "PUT":
            asked = {"content-md5": content_md5(body), **asked}
        path = f"{where.path}{escaped(key)}" if key else where.path.rstrip("/") or "/"
        headers = self._signers[where.region].headers(
            method, path, {"host": where.server.address, **asked}, body,
            self._credentials.get_frozen_credentials(), time.time(), query,
        )  # fmt: skip
        lines = [f"{method} {path}{'?' if query else ''}{query} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += ["accept-encoding: identity", f"user-agent: {where.agent}"]
        if method == "PUT":
            lines.append(f"content-length: {size(body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def reached_at_once(self, bucket: str) -> Bucket | None:
        """How ``bucket`` is reached, where that and the keys are known and one attempt is all: then
        a call waits for nothing but its answer."""
        keys = self._credentials
        if self._attempts > 1 or (
            isinstance(keys, RefreshableCredentials) and keys.refresh_needed()
        ):
            return None
        return self._buckets.get(bucket)

    def leaves_to_boto3(self, bucket: str) -> bool:
        """Whether it is known that ``bucket`` is reached by boto3 alone."""
        return bucket in self._buckets and self._buckets[bucket] is None

    def context(self, server: Server) -> ssl.SSLContext:
        """What a connection to an https ``server`` is protected by. It reads files when they have
        changed."""
        return self._servers[server].context()

    def _finish(self, connection: Connection, head: Head, body: bytes) -> None:
        if connection.usable_after(head, body):
            self._servers[connection.server].give(connection)
        else:
            connection.close()

    def must_be_stored(
        self, bucket: str, head: Head, body: bytes, operation: str = "PutObject"
    ) -> None:
        """Raise what an answer to a PUT means, if not that it is stored."""
        if head.status not in STORED:
            self.refused(operation, bucket, head, body)
        if _names_an_error(body):
            self.refused(operation, bucket, replace(head, status=500), body)
        if not is_stored(head.status, head.headers, body):
            raise ResponseStreamingError(error=not_stored(head.status, head.headers, body))

    def refused(self, operation: str, bucket: str, head: Head, body: bytes) -> NoReturn:
        """Raise what an answer means that is not what was asked for."""
        # botocore finds no error in an element of S3's own namespace.
        plainly = _NAMESPACE.sub(b"", body, count=1)
        answer = {"status_code": head.status, "headers": head.headers, "body": plainly}
        parsed = self._parser.parse(answer, self._shapes[operation])
        code = parsed.get("Error", {}).get("Code")
        if 300 <= head.status < 400 or code in _ELSEWHERE:
            self._buckets[bucket] = None
            raise LeftToBoto3
        raise ClientError(parsed, operation)

    def reached(self, bucket: str) -> Bucket | None:
        """How ``bucket`` is; ``None``: by boto3 alone."""
        try:
            return self._buckets[bucket]
        except KeyError:
            pass
        found = self._found(self._probe.made_ready(bucket))
        with self._lock:
            if found is not None:
                self._signers.setdefault(found.region, Signer(found.region))
                if found.server not in self._servers:
                    self._servers[found.server] = Connections(
                        found.server,
                        **self.timeouts,
                        kept=self.kept,
                        authorities=self._authorities,
                    )
            return self._buckets.setdefault(bucket, found)

    @staticmethod
    def _found(ready: _Caught) -> Bucket | None:
        url, headers = urlsplit(ready.url), ready.headers
        scope = _SCOPE.match(headers.get("authorization", ""))
        if (
            scope is None
            or url.query
            or url.username is not None
            or url.hostname is None
            or not url.path.endswith(_PROBE)
            or not headers.keys() <= _MADE_READY
            or headers.get("x-amz-content-sha256") != _EMPTY
            or get_environ_proxies(ready.url).get(url.scheme)
        ):
            return None
        usual = {"http": 80, "https": 443}[url.scheme]
        port = url.port or usual
        name = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
        server = Server(url.scheme, url.hostname, port, name if port == usual else f"{name}:{port}")
        return Bucket(
            server, url.path.removesuffix(_PROBE), scope[1], headers.get("user-agent", "")
        )

    def _authorities(self) -> str:
        given = self._given_authorities or Session().get_config_variable("ca_bundle")
        return str(given or get_cert_path(True))


def _backoff_scale_s(error: BotoCoreError | ClientError) -> float | None:
    """Of the pause before the next attempt; ``None``: there is none."""
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _THROTTLED or status == 429:
            return _THROTTLED_BACKOFF_S
        return _BACKOFF_S if code in _TRANSIENT or status in _TRANSIENT_STATUS else None
    return _BACKOFF_S if isinstance(error, _TRIED_AGAIN) else None
