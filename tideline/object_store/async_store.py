"""The object store as gateways use it: WAL objects, and the merged segments beside them.

What always holds: an object is written once and never changed (``If-None-Match: *``), every call
ends within a bound, and no more calls run than the pool has threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Protocol, Self, TypeVar

from tideline.object_store.client import GATEWAY, ObjectExists, ObjectStoreClient
from tideline.settings import ObjectStoreSettings

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
        :class:`ObjectStoreUnavailable` (a body that is short: ``ObjectTruncated``) or
        :class:`ObjectStoreRefused`."""


class S3ObjectStore:
    """An :class:`ObjectStore` on S3; calls run in a bounded thread pool."""

    def __init__(self, settings: ObjectStoreSettings, *, threads: int = 16) -> None:
        self._bucket, self._tiered_bucket = settings.s3_bucket, settings.s3_tiered_bucket
        self._client = ObjectStoreClient(settings, bounds=GATEWAY, connections=threads)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="s3")

    async def __aenter__(self) -> Self:
        self._client.connect()
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
            await self._run(partial(self._client.put, self._bucket, key, body, new=True))
        except ObjectExists:
            return

    async def get(self, key: str, start: int, size: int, *, tiered: bool = False) -> bytes:
        bucket = self._tiered_bucket if tiered else self._bucket
        return await self._run(partial(self._client.get, bucket, key, start, size))

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
