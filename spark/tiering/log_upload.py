"""A ``.log`` that is uploaded while it is written, and appears at once or never."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Self

from spark.common.retry import retry
from spark.tiering.services import Store
from tideline.errors import TidelineError
from tideline.kafka.batches import Buffer
from tideline.object_store.client import ObjectMissing, ObjectStoreRefused
from tideline.object_store.signature import size

PART_BYTES = 8 * 1024 * 1024
"""Of every part but the last: some stores take parts of one size alone (Cloudflare R2). What is
smaller goes with one request. 2 GiB, the largest segment, are 256 parts."""
SENT_AS_IT_LIES = 32 * 1024
"""What comes in smaller pieces is put together first."""
PARTS_AT_ONCE = 2
"""Under way, beside the one that is being filled."""


class WrongLength(TidelineError):
    """A ``.log`` does not have the bytes that its segment is to be registered with."""


class LogUpload:
    """The sink of a segment's ``.log``: an object in parts of :data:`PART_BYTES`, of which
    :data:`PARTS_AT_ONCE` are on their way; a small one is put whole. It is there when
    :meth:`finish` returns. As a context manager it forgets the parts of one that was not finished;
    those of a killed process are left to the bucket's lifecycle rule."""

    def __init__(self, store: Store, bucket: str, key: str) -> None:
        self._store, self._bucket, self._key = store, bucket, key
        self._part: list[Buffer] = []
        self._part_size = 0
        self._small = bytearray()
        self._upload: str | None = None
        self._finished = False
        self._size = 0
        self._tags: list[str] = []
        self._under_way: deque[Future[str]] = deque()
        self._pool = ThreadPoolExecutor(PARTS_AT_ONCE, thread_name_prefix="log-part")
        self.requests = 0
        """That were answered; a request that was repeated counts once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self._upload is not None and not self._finished and not _killed(error):
            with suppress(TidelineError):
                self._store.abort_parts(self._bucket, self._key, self._upload)

    def write(self, some: Buffer) -> None:
        """Waits while enough is under way. Raises what the upload of an earlier part raised."""
        left = memoryview(some)
        while (lacks := PART_BYTES - self._part_size) <= len(left):
            # No longer than that: stores keep pieces of a size, and the rest would be one more.
            self._gather(left[:lacks])
            left = left[lacks:]
            self._send(self._gathered())
        self._gather(left)

    def _gather(self, some: Buffer) -> None:
        if some:
            self._part_size += len(some)
            if len(some) >= SENT_AS_IT_LIES:
                self._part.append(some)
            elif self._part and self._part[-1] is self._small:
                self._small += some
            else:
                self._small = bytearray(some)
                self._part.append(self._small)

    def _gathered(self) -> tuple[Buffer, ...]:
        body = tuple(self._part)
        self._part, self._part_size = [], 0
        return body

    def _send(self, body: tuple[Buffer, ...]) -> None:
        if self._upload is None:
            self._upload = retry(lambda: self._store.begin_parts(self._bucket, self._key))
            self.requests += 1
        while len(self._under_way) >= PARTS_AT_ONCE:
            self._tags.append(self._under_way.popleft().result())
        self._size += size(body)
        number = len(self._tags) + len(self._under_way) + 1
        self._under_way.append(self._pool.submit(self._put, self._upload, number, body))

    def _put(self, upload: str, number: int, body: tuple[Buffer, ...]) -> str:
        tag = retry(lambda: self._store.put_part(self._bucket, self._key, upload, number, body))
        self.requests += 1
        return tag

    def finish(self, log_bytes: int) -> None:
        """Make the object appear, with everything that was written. Raises :class:`WrongLength`
        unless that is ``log_bytes``."""
        written = self._size + self._part_size
        if written != log_bytes:
            raise WrongLength(
                f"{self._key}: {written} bytes were written, its segment has {log_bytes}: it is "
                "not uploaded; report it"
            )
        if self._upload is None:
            body = b"".join(self._gathered())
            retry(lambda: self._store.put(self._bucket, self._key, body))
        else:
            if self._part:
                self._send(self._gathered())
            self._tags += [future.result() for future in self._under_way]
            retry(lambda: self._complete(str(self._upload)))
        self.requests += 1
        self._finished = True

    def _complete(self, upload: str) -> None:
        try:
            self._store.complete_parts(self._bucket, self._key, upload, self._tags)
        except ObjectStoreRefused:
            # A repeated one is told that there is no such upload: the first has ended it.
            try:
                there = self._store.size(self._bucket, self._key)
            except ObjectMissing:
                there = -1
            if there != self._size:
                raise


def _killed(error: BaseException | None) -> bool:
    return error is not None and not isinstance(error, Exception)
