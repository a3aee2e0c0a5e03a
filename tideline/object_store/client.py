"""S3: one client for every process, synchronous, and one way to read its errors.

boto3 and what goes with it, a fifth of a second of a core, are loaded by the first call: most
commands make none.

Every call ends within a bound; a store that is away is :class:`ObjectStoreUnavailable`, never an
empty listing.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from tideline.domain.foreign_text import in_one_line
from tideline.errors import TidelineError, UnreachableError
from tideline.object_store.listing import Asked, Page, names_a_tag
from tideline.object_store.listing import ObjectEntry as ObjectEntry
from tideline.object_store.signature import Body, content_md5, pieces, size
from tideline.settings import ObjectStoreSettings

if TYPE_CHECKING:
    from botocore.credentials import Credentials
    from mypy_boto3_s3.client import S3Client

    from tideline.object_store.direct import DirectCalls

CONNECTIONS = 16
DELETE_AT_ONCE = 1_000
"""Most keys that one DeleteObjects takes."""
MOST_OF_A_MESSAGE = 300
"""Characters of what a store says beside an error code."""
_UNKNOWN_CALLS = frozenset({"MethodNotAllowed", "NotImplemented"})
_TRANSIENT_CODES = frozenset(
    {"InternalError", "ServiceUnavailable", "SlowDown", "RequestTimeout", "Throttling", "503"}
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallBounds:
    """A call ends within ``attempts`` times its timeouts, and their backoff."""

    read_timeout_s: float
    attempts: int
    connect_timeout_s: float = 2.0


JOB = CallBounds(read_timeout_s=20, attempts=4)
"""A listing of a thousand keys, or a piece of 8 MiB, under load. With backoff the attempts bridge a
restart of a gateway of S3; a longer absence fails the job."""
WORKER = CallBounds(read_timeout_s=10, attempts=4)
GATEWAY = CallBounds(read_timeout_s=5, attempts=1)
"""An 8 MiB object takes well under a second; a caller that retries wants to know early."""


class ObjectStoreUnavailable(UnreachableError):
    """No answer, a timeout, throttling or a 5xx: trying again may help."""


class ObjectStoreRefused(TidelineError):
    """The store answered and said no (credentials, bucket, bad request): an operator must act."""


class ObjectCallUnknown(ObjectStoreRefused):
    """The store has no such call."""


class ObjectTruncated(ObjectStoreUnavailable):
    """The object ends before the range that was asked for: trying again helps if it was the way."""


class ObjectMissing(ObjectStoreRefused):
    """There is no such object."""


class ObjectTooShort(ObjectStoreRefused):
    """The object ends before the range that was asked for begins."""


class ObjectExists(ObjectStoreRefused):
    """The key is taken (``If-None-Match: *``). After a put of unknown outcome: it was ours."""


_MAKING = threading.Lock()
"""boto3 makes one client at a time."""


class ObjectStoreClient:
    """Lists, reads, writes and deletes objects of any bucket. Safe to share between threads.

    An instance may be pickled: it travels to an executor as its settings and connects there. Every
    method raises :class:`ObjectStoreUnavailable` (the outcome is unknown, trying again may help)
    or :class:`ObjectStoreRefused` (bucket, credentials, bad request).
    """

    def __init__(
        self,
        settings: ObjectStoreSettings,
        *,
        bounds: CallBounds = JOB,
        connections: int = CONNECTIONS,
        direct: bool = True,
    ) -> None:
        """``direct``: objects are put and got without boto3 where that can be; a comparison of the
        two says no."""
        self._settings, self._bounds, self._connections = settings, bounds, connections
        self._direct_wanted = direct

    deletes_singly = False
    """The store has been found to have no DeleteObjects."""

    def __getstate__(self) -> dict[str, object]:
        return {
            "_settings": self._settings,
            "_bounds": self._bounds,
            "_connections": self._connections,
            "_direct_wanted": self._direct_wanted,
        }

    @cached_property
    def _client(self) -> S3Client:
        import boto3
        from botocore.config import Config

        settings, bounds = self._settings, self._bounds
        access, secret = settings.s3_access_key, settings.s3_secret_key
        with _MAKING:
            client: S3Client = boto3.client(
                "s3",
                endpoint_url=settings.s3_endpoint,
                region_name=settings.s3_region,
                verify=str(settings.s3_ca_file) if settings.s3_ca_file else None,
                aws_access_key_id=access.get_secret_value() if access else None,
                aws_secret_access_key=secret.get_secret_value() if secret else None,
                config=Config(
                    connect_timeout=bounds.connect_timeout_s,
                    read_timeout=bounds.read_timeout_s,
                    retries={"total_max_attempts": bounds.attempts, "mode": "standard"},
                    max_pool_connections=self._connections,
                    s3={"addressing_style": "path"} if settings.s3_endpoint else {},
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )
        client.meta.events.register("before-call.s3.DeleteObjects", _with_content_md5)
        for operation in ("PutObject", "UploadPart"):
            client.meta.events.register(f"before-parse.s3.{operation}", _unless_stored)
        for operation in ("CopyObject", "UploadPartCopy", "CompleteMultipartUpload"):
            client.meta.events.register(f"before-parse.s3.{operation}", _unless_whole)
        return client

    @property
    def direct_calls(self) -> DirectCalls | None:
        """What lists, GET and PUT are made by, once one was; ``None``: boto3, or nothing yet."""
        calls: DirectCalls | None = self.__dict__.get("_direct")
        return calls

    def leaves_to_boto3(self, bucket: str) -> bool:
        """Whether it is known that objects of ``bucket`` are put and got by boto3, as it is from
        the first call on that does so. Asks nobody."""
        if "_direct" not in self.__dict__:
            return False
        return self._direct is None or self._direct.leaves_to_boto3(bucket)

    @cached_property
    def _direct(self) -> DirectCalls | None:
        import boto3
        from botocore.credentials import Credentials

        from tideline.object_store.direct import DirectCalls

        client, settings, bounds = self._client, self._settings, self._bounds
        access, secret = settings.s3_access_key, settings.s3_secret_key
        credentials: Credentials | None = None
        if access and secret:
            credentials = Credentials(access.get_secret_value(), secret.get_secret_value())
        elif boto3.DEFAULT_SESSION:
            # It made the client, so that both renew the same ones.
            credentials = boto3.DEFAULT_SESSION.get_credentials()
        if credentials is None or not self._direct_wanted:
            return None
        return DirectCalls(
            client,
            credentials,
            authorities=str(settings.s3_ca_file) if settings.s3_ca_file else None,
            attempts=bounds.attempts,
            connect_timeout_s=bounds.connect_timeout_s,
            read_timeout_s=bounds.read_timeout_s,
            connections=self._connections,
        )

    def connect(self) -> None:
        """Make the client now, which takes a moment, and not at the first call."""
        _ = self._client

    def close(self) -> None:
        """End the connections; a later call opens new ones."""
        if (direct := self.__dict__.pop("_direct", None)) is not None:
            direct.close()
        if (client := self.__dict__.pop("_client", None)) is not None:
            client.close()

    def _made(self, directly: Callable[[DirectCalls], T], by_boto3: Callable[[], T]) -> T:
        """A call: directly where it can be, else by boto3."""
        if (direct := self._direct) is not None:
            from tideline.object_store.direct import LeftToBoto3

            with suppress(LeftToBoto3):
                return directly(direct)
        return by_boto3()

    def list_objects(
        self, bucket: str, prefix: str, start_after: str | None = None
    ) -> Iterator[ObjectEntry]:
        """Objects under ``prefix`` in the order of their keys, from past ``start_after`` on."""
        for page in self._pages(bucket, Asked(prefix, start_after or None)):
            yield from page.entries

    def list_prefixes(self, bucket: str, prefix: str) -> Iterator[str]:
        """The "directories" right under ``prefix``, each with its slash at the end."""
        for page in self._pages(bucket, Asked(prefix, delimiter="/")):
            yield from page.prefixes

    def _pages(self, bucket: str, asked: Asked) -> Iterator[Page]:
        where = f"bucket {bucket}: list {asked.prefix!r}"
        while True:
            page = self._call(where, partial(self._page, bucket, asked))
            yield page
            if page.further is None:
                return
            asked = replace(asked, token=page.further)

    def _page(self, bucket: str, asked: Asked) -> Page:
        return self._made(
            lambda direct: direct.list(bucket, asked), lambda: self._page_by_boto3(bucket, asked)
        )

    def _page_by_boto3(self, bucket: str, asked: Asked) -> Page:
        options: dict[str, Any] = {
            name: value
            for name, value in (
                ("StartAfter", asked.start_after),
                ("Delimiter", asked.delimiter),
                ("ContinuationToken", asked.token),
            )
            if value is not None
        }
        found = self._client.list_objects_v2(Bucket=bucket, Prefix=asked.prefix, **options)
        if not found.keys() & {"Contents", "IsTruncated", "Name"}:
            from botocore.exceptions import ResponseStreamingError

            raise ResponseStreamingError(error="the answer is no ListBucketResult")
        further = found.get("NextContinuationToken") if found.get("IsTruncated") else None
        if found.get("IsTruncated") and further in (None, asked.token):
            from botocore.exceptions import ResponseStreamingError

            raise ResponseStreamingError(error="there is more, but not how to go on")
        return Page(
            [
                ObjectEntry(one["Key"], one["Size"], one["LastModified"], one.get("ETag", ""))
                for one in found.get("Contents", ())
            ],
            [one["Prefix"] for one in found.get("CommonPrefixes", ())],
            further,
        )

    def get(
        self, bucket: str, key: str, start: int | None = None, size: int | None = None
    ) -> bytes:
        """The object, or ``size`` bytes of it from ``start`` on (without ``size``: to its end).

        Also raises :class:`ObjectMissing`, and :class:`ObjectTruncated` for a body that is short.
        """
        where, asked = get_of(bucket, key, start, size)
        return whole(where, size, *self._call(where, lambda: self._got(bucket, key, asked, size)))

    def _got(self, bucket: str, key: str, asked: str | None, size: int | None) -> tuple[bytes, int]:
        """The body, and its length as the answer told it. ``asked``: a range of ``size`` bytes."""

        def by_boto3() -> tuple[bytes, int]:
            options: dict[str, Any] = {} if asked is None else {"Range": asked}
            answer = self._client.get_object(Bucket=bucket, Key=key, **options)
            body = answer["Body"].read()
            return body, answer.get("ContentLength", len(body))

        return self._made(lambda direct: direct.get(bucket, key, asked, size), by_boto3)

    def put(self, bucket: str, key: str, body: bytes, *, new: bool = False) -> None:
        """Write ``body`` under ``key``, over what is there. ``new``: only if the key is free, else
        raises :class:`ObjectExists`."""
        where = put_of(bucket, key, body)
        self._call(where, lambda: self._put(bucket, key, body, new))

    def _put(self, bucket: str, key: str, body: bytes, new: bool) -> None:
        def by_boto3() -> None:
            options: dict[str, Any] = {"IfNoneMatch": "*"} if new else {}
            self._client.put_object(
                Bucket=bucket, Key=key, Body=body, ContentMD5=content_md5(body), **options
            )

        self._made(lambda direct: direct.put(bucket, key, body, new=new), by_boto3)

    def presigned_put(self, bucket: str, key: str) -> str:
        """A URL under which the object may be put for a minute. Asks the store nothing."""
        return self._call(
            f"bucket {bucket}: sign {key}",
            lambda: self._client.generate_presigned_url(
                "put_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=60
            ),
        )

    def begin_parts(self, bucket: str, key: str) -> str:
        """Begin an object that comes in parts; nobody sees it before :meth:`complete_parts`. The id
        of the upload. One that nobody completes or aborts costs space until the bucket's lifecycle
        rule ends it."""
        answer = self._answered(
            "UploadId",
            f"bucket {bucket}: begin {key}",
            lambda: self._client.create_multipart_upload(Bucket=bucket, Key=key),
        )
        return str(answer["UploadId"])

    def put_part(self, bucket: str, key: str, upload: str, number: int, body: Body) -> str:
        """Write part ``number`` (from 1 on; at least 5 MiB, but for the last) and return its tag.
        Over what is there: it may be repeated."""
        where = f"bucket {bucket}: part {number} of {key} ({size(body)} bytes)"
        return self._call(where, lambda: self._put_part(bucket, key, upload, number, body))

    def _put_part(self, bucket: str, key: str, upload: str, number: int, body: Body) -> str:
        def by_boto3() -> str:
            answer = self._client.upload_part(
                Bucket=bucket,
                Key=key,
                UploadId=upload,
                PartNumber=number,
                Body=b"".join(pieces(body)),
                ContentMD5=content_md5(body),
            )
            return answer["ETag"]

        return self._made(
            lambda direct: direct.put_part(bucket, key, upload, number, body), by_boto3
        )

    def complete_parts(self, bucket: str, key: str, upload: str, tags: Sequence[str]) -> None:
        """The object is its parts 1 to n, of these tags; it appears at once. Repeated after an
        unknown outcome it may raise :class:`ObjectStoreRefused`: look for the object then."""
        parts: Any = [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(tags, 1)]
        self._answered(
            "ETag",
            f"bucket {bucket}: complete {key} of {len(tags)} parts",
            lambda: self._client.complete_multipart_upload(
                Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}
            ),
        )

    def abort_parts(self, bucket: str, key: str, upload: str) -> None:
        """Forget the parts."""
        self._call(
            f"bucket {bucket}: abort {key}",
            lambda: self._client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload),
        )

    def size(self, bucket: str, key: str) -> int:
        """Bytes of the object. Also raises :class:`ObjectMissing`."""
        return int(self._head(bucket, key)["ContentLength"])

    def keeps_versions(self, bucket: str, key: str) -> bool:
        """Whether the bucket keeps what is deleted or put over, as HEAD of an object tells. Also
        raises :class:`ObjectMissing`."""
        version: str = self._head(bucket, key).get("VersionId", "null")
        return version != "null"

    def _head(self, bucket: str, key: str) -> Any:
        where = f"bucket {bucket}: head {key}"
        return self._answered(
            "ETag", where, lambda: self._client.head_object(Bucket=bucket, Key=key)
        )

    def copy(self, bucket: str, key: str, to_bucket: str, to_key: str) -> None:
        """Copy within the store, over what is there; no byte comes here. In parts when the object
        is large. Also raises :class:`ObjectMissing`."""
        from boto3.s3.transfer import TransferConfig

        config = TransferConfig(max_concurrency=min(4, self._connections))
        self._call(
            f"bucket {bucket}: copy {key} to {to_key} of bucket {to_bucket}",
            lambda: self._client.copy(
                {"Bucket": bucket, "Key": key}, to_bucket, to_key, Config=config
            ),
        )

    def delete(self, bucket: str, keys: Iterable[str]) -> None:
        """Delete objects; one that is gone already counts as deleted. When it raises, some of
        ``keys`` may be deleted: repeat it with all of them. A store without DeleteObjects is asked
        for one after the other, and so are keys of which the answer does not say what became."""
        remaining = iter(keys)
        while some := list(itertools.islice(remaining, DELETE_AT_ONCE)):
            left: Collection[str] = some
            if not self.deletes_singly:
                try:
                    left = self._delete_together(bucket, some)
                except ObjectCallUnknown:
                    self.deletes_singly = True
            for key in left:
                self._delete_one(bucket, key)

    def _delete_together(self, bucket: str, keys: Sequence[str]) -> set[str]:
        """Those of which the answer says nothing."""
        where = f"bucket {bucket}: delete {len(keys)} objects from {keys[0]} on"
        wanted: Any = {"Objects": [{"Key": key} for key in keys], "Quiet": False}
        answer: Any = self._call(
            where, lambda: self._client.delete_objects(Bucket=bucket, Delete=wanted)
        )
        left = set(keys).difference(one.get("Key") for one in answer.get("Deleted", ()))
        for error in answer.get("Errors", ()):
            if error.get("Code") != "NoSuchKey":
                named = f"bucket {bucket}: delete {error.get('Key')}"
                raise _refusal(error.get("Code", ""), 0, named, error.get("Message", ""))
            left.discard(error.get("Key"))
        return left

    def _delete_one(self, bucket: str, key: str) -> None:
        where = f"bucket {bucket}: delete {key}"
        try:
            answer = self._call(where, lambda: self._client.delete_object(Bucket=bucket, Key=key))
        except ObjectMissing:
            return
        if (status := answer["ResponseMetadata"]["HTTPStatusCode"]) != 204:
            raise ObjectStoreUnavailable(f"{where}: {status} does not say that it is deleted")

    def check(self, bucket: str) -> None:
        """Return when ``bucket`` can be reached and is there."""
        try:
            self._call(f"bucket {bucket}: head", lambda: self._client.head_bucket(Bucket=bucket))
        except ObjectMissing:
            raise ObjectStoreRefused(f"there is no bucket {bucket}: create it") from None

    def _answered(self, name: str, where: str, call: Callable[[], Any]) -> Any:
        """The answer to a call, which says ``name``, as S3 always does. One of success without it,
        as a proxy's page is one, leaves open what became of the call."""
        answer = self._call(where, call)
        if not answer.get(name):
            raise ObjectStoreUnavailable(f"{where}: answered without {name}, so not as S3 does")
        return answer

    def _call(self, where: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            if not _of_the_store(error):
                raise
            raise translated(error, where) from error


def _of_the_store(error: Exception) -> bool:
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    return isinstance(error, Boto3Error | BotoCoreError | ClientError | OSError)


def _with_content_md5(params: dict[str, Any], **_: object) -> None:
    """In place of the CRC-32 of botocore, which stores at hand do not know."""
    params["headers"]["Content-MD5"] = content_md5(params["body"])
    params.get("context", {}).pop("checksum", None)


def _unless_stored(response_dict: dict[str, Any], **_: object) -> None:
    """An answer of success that is none counts as an error of the store, and is tried again."""
    from tideline.object_store.direct import is_stored

    status, body = response_dict["status_code"], response_dict["body"]
    headers = {name.lower(): value for name, value in response_dict["headers"].items()}
    if status < 300 and not is_stored(status, headers, body):
        response_dict["status_code"] = 500


def _unless_whole(response_dict: dict[str, Any], **_: object) -> None:
    """As :func:`_unless_stored`, of a call whose answer has the tag in its body. Stores begin such
    an answer before they know how it ends: Ceph's ends without a tag when a copy has failed."""
    if response_dict["status_code"] < 300 and not names_a_tag(response_dict["body"]):
        response_dict["status_code"] = 500


def put_of(bucket: str, key: str, body: bytes) -> str:
    """A PUT in words."""
    return f"bucket {bucket}: put {key} ({len(body)} bytes)"


def get_of(bucket: str, key: str, start: int | None, size: int | None) -> tuple[str, str | None]:
    """A GET in words, and its ``Range``; ``None``: all of the object."""
    where = f"bucket {bucket}: get {key}"
    if start is None and size is None:
        return where, None
    first = start or 0
    return (
        f"{where} [{first}, {'' if size is None else first + size})",
        f"bytes={first}-{'' if size is None else first + size - 1}",
    )


def whole(where: str, size: int | None, body: bytes, told: int) -> bytes:
    """``body`` when it has its ``size`` (``None``: what the answer ``told``). Raises
    :class:`ObjectTruncated`."""
    wanted = told if size is None else size
    if (came := len(body) if told == wanted else told) != wanted:
        raise ObjectTruncated(f"{where}: {came} bytes came, not {wanted}")
    return body


def translated(error: Exception, where: str) -> ObjectStoreUnavailable | ObjectStoreRefused:
    """An error of boto3 as one of ours. ``where`` says bucket, call and key. What boto3 refuses by
    itself, for want of credentials for example, is no store that is away."""
    from boto3.exceptions import Boto3Error
    from botocore import exceptions as boto
    from botocore.exceptions import ClientError

    if isinstance(error, Boto3Error) and isinstance(error.__context__, ClientError):
        error = error.__context__
    away = (
        OSError, Boto3Error, boto.ConnectionError, boto.HTTPClientError, boto.IncompleteReadError,
        boto.ChecksumError, boto.FlexibleChecksumError,
        boto.CredentialRetrievalError, boto.MetadataRetrievalError, boto.TokenRetrievalError,
    )  # fmt: skip
    if isinstance(error, away):
        return ObjectStoreUnavailable(f"{where}: {error}")
    if not isinstance(error, ClientError):
        return ObjectStoreRefused(f"{where}: {error}; check the settings and the credentials")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    told = error.response.get("Error", {})
    return _refusal(told.get("Code", ""), status, where, told.get("Message", ""))


def _refusal(
    code: str, status: int, where: str, message: str
) -> ObjectStoreUnavailable | ObjectStoreRefused:
    """An error code and HTTP status of S3 (0: none was given) as one of our errors; ``message`` is
    the store's own, from the wire."""
    if status == 412 or code == "PreconditionFailed":
        return ObjectExists(f"{where}: the key is taken")
    said = f"{code or status}{f' ({in_one_line(message, MOST_OF_A_MESSAGE)})' if message else ''}"
    if status in (405, 501) or code in _UNKNOWN_CALLS:
        return ObjectCallUnknown(f"{where}: the store does not do this: {said}")
    if status >= 500 or status in (409, 429) or code in _TRANSIENT_CODES:
        return ObjectStoreUnavailable(f"{where}: {said}")
    if code in ("NoSuchKey", "404"):
        return ObjectMissing(f"{where}: there is no such object")
    if status == 416 or code == "InvalidRange":
        return ObjectTooShort(f"{where}: refused with {said}: the object ends before it begins")
    return ObjectStoreRefused(
        f"{where}: refused with {said}; check the bucket, its rules and the credentials"
    )
