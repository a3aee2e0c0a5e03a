"""WAL objects, and the merged segments beside them, in any S3, through boto3.

What always holds: an object is written once and never changed (``If-None-Match: *``), every call
ends within a bound, and no more calls run than the pool has threads.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import botocore.exceptions

from tideline.object_store.client import (
    ObjectExists,
    ObjectStoreUnavailable,
    make_client,
    translate,
)
from tideline.settings import ObjectStoreSettings

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECT_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 5.0
"""An 8 MiB object takes well under a second; a caller that retries wants to know early."""

T = TypeVar("T")


class ObjectStore(Protocol):
    """What the writer and the reader need of an object store."""

    async def put(self, key: str, body: bytes) -> None:
        """Store ``body`` under a new key. A key that already holds an object is taken as a put
        of ours whose answer was lost, because keys are random and registered to one gateway.

        Raises :class:`ObjectStoreUnavailable` (outcome unknown) or :class:`ObjectStoreRefused`.
        """

    async def get(self, key: str, start: int, size: int, *, tiered: bool = False) -> bytes:
        """``size`` bytes (at least 1) from ``start``. ``tiered``: of an object in the bucket of the
        segments, not in that of WAL objects. Raises :class:`ObjectMissing`,
        :class:`ObjectStoreUnavailable` (also when the body is short) or
        :class:`ObjectStoreRefused`."""


class S3ObjectStore:
    """An :class:`ObjectStore` on S3; calls run in a bounded thread pool."""

    def __init__(self, settings: ObjectStoreSettings, *, threads: int = 16) -> None:
        self._bucket = settings.s3_bucket
        self._tiered_bucket = settings.s3_tiered_bucket
        self._client = make_client(
            settings,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            read_timeout_s=READ_TIMEOUT_S,
            attempts=1,
            connections=threads,
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

    async def get(self, key: str, start: int, size: int, *, tiered: bool = False) -> bytes:
        bucket = self._tiered_bucket if tiered else self._bucket
        return await self._run(partial(self._get, bucket, key, start, size))

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _put(self, key: str, body: bytes) -> None:
        try:
            self._client.put_object(Bucket=self._bucket, Key=key, Body=body, IfNoneMatch="*")
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
            where = f"bucket {self._bucket}: put {key} ({len(body)} bytes)"
            raise translate(error, where) from error

    def _get(self, bucket: str, key: str, start: int, size: int) -> bytes:
        try:
            answer = self._client.get_object(
                Bucket=bucket, Key=key, Range=f"bytes={start}-{start + size - 1}"
            )
            body = answer["Body"].read()
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
            where = f"bucket {bucket}: get {key} [{start}, {start + size})"
            raise translate(error, where) from error
        except OSError as error:
            raise ObjectStoreUnavailable(f"get {key}: the body broke off: {error}") from error
        if len(body) != size:
            raise ObjectStoreUnavailable(
                f"get {key}: {len(body)} bytes came instead of {size} from offset {start}"
            )
        return body
