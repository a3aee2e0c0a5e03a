"""WAL objects in any S3, through boto3.

What always holds: an object is written once and never changed (``If-None-Match: *``), every call
ends within a bound, and no more calls run than the pool has threads.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import boto3
import botocore.exceptions
from botocore.config import Config

from tideline.object_store.errors import (
    ObjectExists,
    ObjectMissing,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
)
from tideline.settings import ObjectStoreSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_s3.client import S3Client

CONNECT_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 5.0
"""An 8 MiB object takes well under a second; a caller that retries wants to know early."""

_TRANSIENT_CODES = frozenset(
    {"InternalError", "ServiceUnavailable", "SlowDown", "RequestTimeout", "Throttling", "503"}
)
T = TypeVar("T")


class ObjectStore(Protocol):
    """What the writer and the reader need of an object store."""

    async def put(self, key: str, body: bytes) -> None:
        """Store ``body`` under a new key. A key that already holds an object is taken as a put
        of ours whose answer was lost, because keys are random and registered to one gateway.

        Raises :class:`ObjectStoreUnavailable` (outcome unknown) or :class:`ObjectStoreRefused`.
        """

    async def get(self, key: str, start: int, size: int) -> bytes:
        """``size`` bytes from ``start``. Raises :class:`ObjectMissing`,
        :class:`ObjectStoreUnavailable` (also when the body is short) or
        :class:`ObjectStoreRefused`."""


class S3ObjectStore:
    """An :class:`ObjectStore` on S3; calls run in a bounded thread pool."""

    def __init__(self, settings: ObjectStoreSettings, *, threads: int = 16) -> None:
        self._bucket = settings.s3_bucket
        access, secret = settings.s3_access_key, settings.s3_secret_key
        self._client: S3Client = boto3.client(
            "s3",
            endpoint_url=settings.s3_endpoint,
            region_name=settings.s3_region,
            aws_access_key_id=access.get_secret_value() if access else None,
            aws_secret_access_key=secret.get_secret_value() if secret else None,
            config=Config(
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=READ_TIMEOUT_S,
                retries={"total_max_attempts": 1},
                max_pool_connections=threads,
                s3={"addressing_style": "path"} if settings.s3_endpoint else {},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="s3")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def put(self, key: str, body: bytes) -> None:
        try:
            await self._run(partial(self._put, key, body))
        except ObjectExists:
            return

    async def get(self, key: str, start: int, size: int) -> bytes:
        return await self._run(partial(self._get, key, start, size))

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _put(self, key: str, body: bytes) -> None:
        try:
            self._client.put_object(Bucket=self._bucket, Key=key, Body=body, IfNoneMatch="*")
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
            raise self._translate(error, f"put {key} ({len(body)} bytes)") from error

    def _get(self, key: str, start: int, size: int) -> bytes:
        try:
            answer = self._client.get_object(
                Bucket=self._bucket, Key=key, Range=f"bytes={start}-{start + size - 1}"
            )
            body = answer["Body"].read()
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
            raise self._translate(error, f"get {key} [{start}, {start + size})") from error
        except OSError as error:
            raise ObjectStoreUnavailable(f"get {key}: the body broke off: {error}") from error
        if len(body) != size:
            raise ObjectStoreUnavailable(
                f"get {key}: {len(body)} bytes came instead of {size} from offset {start}"
            )
        return body

    def _translate(self, error: Exception, what: str) -> Exception:
        where = f"bucket {self._bucket}: {what}"
        if not isinstance(error, botocore.exceptions.ClientError):
            return ObjectStoreUnavailable(f"{where}: {error}")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = error.response.get("Error", {}).get("Code", "")
        if status == 412 or code == "PreconditionFailed":
            return ObjectExists(f"{where}: the key is taken")
        if status >= 500 or status in (409, 429) or code in _TRANSIENT_CODES:
            return ObjectStoreUnavailable(f"{where}: {code or status}")
        if code in ("NoSuchKey", "404"):
            return ObjectMissing(f"{where}: there is no such object")
        return ObjectStoreRefused(
            f"{where}: refused with {code or status}; check the bucket and the credentials"
        )
