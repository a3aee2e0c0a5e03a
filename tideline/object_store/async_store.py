"""The object store as gateways use it: WAL objects, and the merged segments beside them.

What always holds: an object is written once and never changed (``If-None-Match: *``), every call
ends within a bound, and no more calls run than the pool has threads. What is small is put and got
on the event loop; the first call of a bucket, what is large, and what boto3 must do, in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Protocol, Self, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from tideline.object_store.client import (
    GATEWAY,
    CallBounds,
    ObjectExists,
    ObjectStoreClient,
    get_of,
    put_of,
    translated,
    whole,
)
from tideline.object_store.direct import Bucket, LeftToBoto3
from tideline.object_store.loop_calls import SMALL_GET, SMALL_PUT, LoopCalls
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
    """An :class:`ObjectStore` on S3; so many calls run at once as there are ``threads``."""

    def __init__(
        self, settings: ObjectStoreSettings, *, threads: int = 16, bounds: CallBounds = GATEWAY
    ) -> None:
        self._bucket, self._tiered_bucket = settings.s3_bucket, settings.s3_tiered_bucket
        self._client = ObjectStoreClient(settings, bounds=bounds, connections=threads)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="s3")
        self._slots = asyncio.Semaphore(threads)
        self._on_loop: LoopCalls | None = None

    async def __aenter__(self) -> Self:
        self._client.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._on_loop is not None:
            self._on_loop.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def is_direct(self) -> bool:
        """Whether no call of either bucket was found to be boto3's."""
        buckets = (self._bucket, self._tiered_bucket)
        return not any(map(self._client.leaves_to_boto3, buckets))

    async def put(self, key: str, body: bytes) -> None:
        async with self._slots:
            try:
                await self._put(key, body)
            except ObjectExists:
                return

    async def _put(self, key: str, body: bytes) -> None:
        bucket = self._bucket
        if len(body) <= SMALL_PUT and (small := self._small(bucket)) is not None:
            calls, where = small
            try:
                return await calls.put(where, bucket, key, body, new=True)
            except LeftToBoto3:
                pass
            except (BotoCoreError, ClientError, OSError) as error:
                raise translated(error, put_of(bucket, key, body)) from error
        await self._run(partial(self._client.put, bucket, key, body, new=True))

    async def get(self, key: str, start: int, size: int, *, tiered: bool = False) -> bytes:
        async with self._slots:
            return await self._get(
                self._tiered_bucket if tiered else self._bucket, key, start, size
            )

    async def _get(self, bucket: str, key: str, start: int, size: int) -> bytes:
        if size <= SMALL_GET and (small := self._small(bucket)) is not None:
            calls, reached = small
            where, asked = get_of(bucket, key, start, size)
            assert asked is not None
            try:
                return whole(where, size, *await calls.get(reached, bucket, key, asked, size))
            except LeftToBoto3:
                pass
            except (BotoCoreError, ClientError, OSError) as error:
                raise translated(error, where) from error
        return await self._run(partial(self._client.get, bucket, key, start, size))

    def _small(self, bucket: str) -> tuple[LoopCalls, Bucket] | None:
        """What small calls of ``bucket`` are made by on the event loop; ``None``: by a thread."""
        direct = self._client.direct_calls
        if direct is None or (reached := direct.reached_at_once(bucket)) is None:
            return None
        if self._on_loop is None:
            self._on_loop = LoopCalls(direct)
        return self._on_loop, reached

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
