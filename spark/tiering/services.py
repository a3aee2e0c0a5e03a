"""What an executor holds in its hands while it works: Postgres and the object store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol, TypeAlias

from spark.common.retry import retry
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.tiering_model import TieringScope
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import JobsSettings, ObjectStoreSettings

FAILURE_BACKOFF_MS = 30_000
"""Before a failed file or partition is tried again; doubled with each failure in a row."""


class Store(Protocol):
    """The part of :class:`tideline.object_store.client.ObjectStoreClient` that tiering needs."""

    def get(
        self, bucket: str, key: str, start: int | None = None, size: int | None = None
    ) -> bytes: ...
    def put(self, bucket: str, key: str, body: bytes) -> None: ...
    def upload_file(self, bucket: str, key: str, path: Path) -> None: ...


@dataclass(frozen=True, slots=True)
class Services:
    """Open connections of one task."""

    plane: JobsControlPlane
    store: Store
    diskless_bucket: str
    """WAL objects and split files."""
    tiered_bucket: str
    """Merged segments, beside the brokers' own."""
    park_after: int
    """Failures in a row after which one thing is left alone until an operator looks."""
    diskless_prefix: str = ""
    """Of this installation's keys in the diskless bucket."""

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
    """:data:`OpenServices` of a deployment. One connection to Postgres for each running task."""

    settings: JobsSettings
    application_name: str

    @contextmanager
    def __call__(self) -> Iterator[Services]:
        settings = self.settings
        with connect_jobs(settings, application_name=self.application_name) as plane:
            yield Services(
                plane,
                _store(settings),
                settings.s3_bucket,
                settings.s3_tiered_bucket,
                settings.tiering_failures_before_parking,
                settings.diskless_prefix,
            )


@lru_cache(maxsize=4)
def _store(settings: ObjectStoreSettings) -> ObjectStoreClient:
    """One client for all tasks that an executor's process runs: making one costs 100 ms."""
    return ObjectStoreClient(settings)
