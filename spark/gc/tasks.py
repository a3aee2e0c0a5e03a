"""What one executor does for garbage collection: list, ask, delete, forget. No frames.

An object is deleted only after Postgres has marked it; its mark is forgotten only after S3 has
said that it is gone. Killed in between, the next run meets the same mark and does it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

from spark.common.retry import insist
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.tiering_model import SEGMENT_SUFFIXES, Bucket
from tideline.domain.coverage import AIVEN_KINDS
from tideline.object_store.client import DELETE_AT_ONCE, ObjectEntry

T = TypeVar("T")
LOG = ".log"
WAL_NAME = re.compile(r"wal/[0-9a-f]{32}$")
SPLIT_NAME = re.compile(r"split/[A-Za-z0-9_-]{22}/\d+/\d{20}-[0-9a-f]{32}$")
_SUFFIXES = "|".join(
    re.escape(suffix) for suffix in (*SEGMENT_SUFFIXES, *(f".{kind}" for kind in AIVEN_KINDS))
)
SEGMENT_NAME = re.compile(rf"/\d{{20}}-(?P<segment>[A-Za-z0-9_-]{{22}})(?:{_SUFFIXES})$")
"""Names that Tideline and remote storage managers give. Nothing else is ever looked at."""


class Deleter(Protocol):
    """The part of :class:`tideline.object_store.client.ObjectStoreClient` that is needed."""

    def list_objects(
        self, bucket: str, prefix: str, start_after: str | None = None
    ) -> Iterator[ObjectEntry]: ...
    def delete(self, bucket: str, keys: Iterable[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Collector:
    """The hands of one task."""

    store: Deleter
    plane: JobsControlPlane
    diskless_bucket: str
    tiered_bucket: str
    grace_ms: int

    def delete_files(self, keys: Sequence[str]) -> int:
        """WAL objects that are marked deleting. Returns how many are gone."""
        gone = 0
        for some in chunks(keys):
            insist(partial(self.store.delete, self.diskless_bucket, some))
            gone += insist(partial(self.plane.forget_dead_files, some))
        return gone

    def delete_objects(self, bucket: Bucket, keys: Sequence[str]) -> int:
        """Split files, segments or orphans that are marked. Returns how many are gone.

        ``.log`` goes first: without it a segment is not whole to anybody.
        """
        gone = 0
        ordered = sorted(keys, key=lambda key: not key.endswith(LOG))
        for some in chunks(ordered):
            insist(partial(self.store.delete, self._name(bucket), some))
            gone += insist(partial(self.plane.forget_dead_objects, some))
        return gone

    def sweep(self, bucket: Bucket, keys: Iterable[str], dry_run: bool) -> Sweep:
        """Mark what nobody knows among listed ``keys``, and delete what was marked a grace ago."""
        swept = Sweep()
        for some in chunks(keys):
            grace = self.grace_ms
            unknown = insist(
                partial(self.plane.unknown_objects, some, grace_ms=grace, bucket=bucket)
            )
            swept += Sweep(len(some), len(unknown), sum(unknown.values()) if dry_run else 0)
            if dry_run or not unknown:
                continue
            due = insist(
                partial(
                    self.plane.mark_orphans_for_deletion,
                    list(unknown),
                    grace_ms=grace,
                    bucket=bucket,
                )
            )
            self.delete_objects(bucket, due)
            swept += Sweep(deleted=len(due))
        return swept

    def list_and_sweep(self, prefix: str, name: re.Pattern[str], dry_run: bool) -> Sweep:
        """:meth:`sweep` over a prefix of the diskless bucket, page by page."""
        listed = self.store.list_objects(self.diskless_bucket, prefix)
        keys = (entry.key for entry in listed if name.match(entry.key))
        return self.sweep(Bucket.DISKLESS, keys, dry_run)

    def _name(self, bucket: Bucket) -> str:
        return self.tiered_bucket if bucket is Bucket.TIERED else self.diskless_bucket


@dataclass(frozen=True, slots=True)
class Sweep:
    """Objects that were listed, known to nobody, and deleted (or due, in a dry run)."""

    listed: int = 0
    unknown: int = 0
    deleted: int = 0

    def __add__(self, other: Sweep) -> Sweep:
        return Sweep(
            self.listed + other.listed, self.unknown + other.unknown, self.deleted + other.deleted
        )


def chunks(items: Iterable[T], size: int = DELETE_AT_ONCE) -> Iterator[list[T]]:
    """``items`` in lists of at most ``size``."""
    remaining = iter(items)
    while some := list(islice(remaining, size)):
        yield some
