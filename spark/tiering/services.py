"""What an executor holds in its hands while it works: Postgres and the object store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol, TypeAlias

from spark.common.read_ahead import read_ahead
from spark.common.retry import retry
from spark.common.stores import shared_store
from tideline.control_plane.cataloged_jobs import CatalogedJobs, open_jobs
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.tiering_model import TieringScope
from tideline.object_store.byte_ranges import ByteRange
from tideline.object_store.client import ObjectEntry, ObjectTooShort, ObjectTruncated
from tideline.object_store.signature import Body
from tideline.settings import JobsSettings

FAILURE_BACKOFF_MS = 30_000
"""Before a failed file or partition is tried again; doubled with each failure in a row."""


class Store(Protocol):
    """The part of :class:`tideline.object_store.client.ObjectStoreClient` that tiering needs."""

    def get(
        self, bucket: str, key: str, start: int | None = None, size: int | None = None
    ) -> bytes: ...
    def put(self, bucket: str, key: str, body: bytes) -> None: ...
    def begin_parts(self, bucket: str, key: str) -> str: ...
    def put_part(self, bucket: str, key: str, upload: str, number: int, body: Body) -> str: ...
    def complete_parts(self, bucket: str, key: str, upload: str, tags: Sequence[str]) -> None: ...
    def abort_parts(self, bucket: str, key: str, upload: str) -> None: ...
    def size(self, bucket: str, key: str) -> int: ...
    def list_objects(
        self, bucket: str, prefix: str, start_after: str | None = None
    ) -> Iterator[ObjectEntry]: ...


@dataclass(frozen=True, slots=True)
class Services:
    """Open connections of one task."""

    plane: JobsControlPlane
    store: Store
    diskless_bucket: str
    """WAL objects."""
    tiered_bucket: str
    """Merged segments, beside the brokers' own."""
    park_after: int
    """Failures in a row after which one thing is left alone until an operator looks."""

    def read_range(self, part: ByteRange) -> bytes:
        """Bytes of a WAL object, by one request; fewer where the object is shorter."""
        return retry(lambda: self._read_range(part))

    def read_ranges(self, parts: Sequence[ByteRange]) -> Generator[bytes]:
        """As many at once as :func:`read_ahead` has."""
        return read_ahead(parts, self.read_range)

    def _read_range(self, part: ByteRange) -> bytes:
        bucket, key = self.diskless_bucket, part.key
        try:
            return self.store.get(bucket, key, part.start, part.size)
        except (ObjectTruncated, ObjectTooShort):
            # A body that was cut on its way comes again; an object that was cut concerns only the
            # partitions with a batch behind the cut, which are told by the batch that is not whole.
            end = self.store.size(bucket, key)
            if end >= part.end:
                raise
        left = end - part.start
        return self.store.get(bucket, key, part.start, left) if left > 0 else b""

    def read_object(self, key: str) -> bytes:
        """A whole WAL object."""
        return retry(lambda: self.store.get(self.diskless_bucket, key))

    def count_failure(self, scope: TieringScope, key: int, error: str) -> None:
        """Postgres waits with the next attempt, or parks it."""
        retry(
            lambda: self.plane.record_tiering_failure(
                scope, key, error, park_after=self.park_after, backoff_ms=FAILURE_BACKOFF_MS
            )
        )


OpenServices: TypeAlias = Callable[[], AbstractContextManager[Services]]
"""Picklable: travels to the executors, and opens there."""


@dataclass(frozen=True, slots=True)
class FromSettings:
    """:data:`OpenServices` of a deployment. Tasks that a Python worker runs one after the other
    share one connection to Postgres; it is closed where a task fails."""

    settings: JobsSettings
    application_name: str

    @contextmanager
    def __call__(self) -> Iterator[Services]:
        settings = self.settings
        with _connected(settings, self.application_name) as plane:
            yield Services(
                plane,
                shared_store(settings),
                settings.s3_bucket,
                settings.s3_tiered_bucket,
                settings.tiering_failures_before_parking,
            )


_idle: defaultdict[tuple[JobsSettings, str], SimpleQueue[CatalogedJobs]] = defaultdict(SimpleQueue)
"""Of this process. There are never more than tasks have run in it at once."""


@contextmanager
def _connected(settings: JobsSettings, application_name: str) -> Iterator[JobsControlPlane]:
    idle = _idle[settings, application_name]
    try:
        plane = idle.get_nowait()
    except Empty:
        plane = open_jobs(settings, application_name=application_name)
    try:
        yield plane
    except BaseException:
        plane.close()
        raise
    idle.put(plane)
