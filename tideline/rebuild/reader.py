"""Reads the footers of a bucket's WAL objects, many at once and in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tideline.domain.wal_footer import (
    TAIL_READ,
    Footer,
    FooterError,
    TailTooShort,
    decode_tail,
)
from tideline.domain.wal_streams import Streams
from tideline.object_store.client import ObjectEntry, ObjectMissing

PARALLEL = 16
"""Requests at once; twice as many answers wait at most to be taken in."""
WAL = "wal/"
META = "meta/"
T = TypeVar("T")


class Store(Protocol):
    """Of :class:`tideline.object_store.client.ObjectStoreClient` what is read with."""

    def list_objects(self, bucket: str, prefix: str) -> Iterator[ObjectEntry]: ...
    def get(
        self, bucket: str, key: str, start: int | None = None, size: int | None = None
    ) -> bytes: ...


@dataclass(slots=True)
class BucketReader:
    """The objects of one installation: ``prefix`` is empty, or ends with a slash.

    What the store raises ends the reading: from half a bucket nothing may be concluded.
    """

    store: Store
    bucket: str
    prefix: str
    parallel: int = PARALLEL

    def footers(self, streams: Streams, progress: Callable[[int], None] = lambda _: None) -> None:
        """Every WAL object that is listed goes into ``streams``, in the order of the keys; one that
        is deleted meanwhile does not. ``progress`` hears how many there are so far."""
        entries = self.store.list_objects(self.bucket, self.prefix + WAL)
        for number, (entry, found) in enumerate(self.endings(entries), 1):
            if isinstance(found, Footer):
                streams.add(entry.key, entry.size, found)
            elif found is not None:
                streams.add_unreadable(entry.key, entry.size, str(found))
            progress(number)

    def endings(
        self, entries: Iterable[ObjectEntry]
    ) -> Iterator[tuple[ObjectEntry, Footer | FooterError | None]]:
        """What each of these WAL objects ends with; ``None``: it is gone."""
        return self._each(entries, self._footer)

    def documents(self) -> Iterator[tuple[ObjectEntry, bytes]]:
        """Every metadata record that is listed, in the order of the keys."""
        entries = self.store.list_objects(self.bucket, self.prefix + META)
        for entry, body in self._each(entries, self._whole):
            if body is not None:
                yield entry, body

    def _each(
        self, entries: Iterable[ObjectEntry], read: Callable[[ObjectEntry], T]
    ) -> Iterator[tuple[ObjectEntry, T]]:
        with ThreadPoolExecutor(self.parallel, thread_name_prefix="rebuild-read") as threads:
            waiting: deque[tuple[ObjectEntry, Future[T]]] = deque()
            try:
                for entry in entries:
                    waiting.append((entry, threads.submit(read, entry)))
                    if len(waiting) >= 2 * self.parallel:
                        first, answer = waiting.popleft()
                        yield first, answer.result()
                while waiting:
                    first, answer = waiting.popleft()
                    yield first, answer.result()
            finally:
                for _, answer in waiting:
                    answer.cancel()

    def _footer(self, entry: ObjectEntry) -> Footer | FooterError | None:
        """``None``: the object is gone."""
        wanted = TAIL_READ
        while True:
            size = min(wanted, entry.size)
            try:
                tail = self._get(entry.key, entry.size - size, size)
                return None if tail is None else decode_tail(tail, entry.size)
            except TailTooShort as error:
                wanted = error.needed
            except FooterError as error:
                return error

    def _whole(self, entry: ObjectEntry) -> bytes | None:
        return self._get(entry.key, 0, entry.size)

    def _get(self, key: str, start: int, size: int) -> bytes | None:
        if size == 0:
            return b""
        try:
            return self.store.get(self.bucket, key, start, size)
        except ObjectMissing:
            return None
