"""What executors do for garbage collection: list, ask, delete, forget.

An object is deleted only after Postgres has marked it; its mark is forgotten only after S3 has
said that it is gone. Killed in between, the next run meets the same mark and does it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from spark.common.retry import retry
from spark.common.rows import chunks, from_frame, map_rows, to_frame
from spark.gc.frames import ListedObject
from tideline.control_plane.jobs import JobsControlPlane, connect_jobs
from tideline.control_plane.tiering_model import SEGMENT_SUFFIXES, Bucket, PartitionRow
from tideline.domain.coverage import AIVEN_KINDS
from tideline.domain.ids import topic_id_from_base64
from tideline.object_store.client import DELETE_AT_ONCE, ObjectEntry, ObjectStoreClient
from tideline.object_store.inventory import partition_prefix
from tideline.settings import JobsSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark.common.entry import Job

APPLICATION = "tideline-gc"
LOG = ".log"
WAL_NAME = re.compile(r"wal/[0-9a-f]{32}$")
SPLIT_NAME = re.compile(r"split/[A-Za-z0-9_-]{22}/\d+/\d{20}-[0-9a-f]{32}$")
_SUFFIXES = "|".join(
    re.escape(suffix) for suffix in (*SEGMENT_SUFFIXES, *(f".{kind}" for kind in AIVEN_KINDS))
)
SEGMENT_NAME = re.compile(rf"/\d{{20}}-(?P<segment>[A-Za-z0-9_-]{{22}})(?:{_SUFFIXES})$")
"""Names that Tideline and remote storage managers give. Nothing else is ever looked at."""
WAL_PREFIXES = tuple(f"wal/{digit}" for digit in "0123456789abcdef")
"""Keys of WAL objects are random: their first digit cuts a listing into like parts."""
OBJECTS_PER_TASK = 1_000


class Deleter(Protocol):
    """The part of :class:`tideline.object_store.client.ObjectStoreClient` that is needed."""

    def list_objects(
        self, bucket: str, prefix: str, start_after: str | None = None
    ) -> Iterator[ObjectEntry]: ...
    def delete(self, bucket: str, keys: Iterable[str]) -> None: ...


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
        for some in chunks(keys, DELETE_AT_ONCE):
            retry(partial(self.store.delete, self.diskless_bucket, some))
            gone += retry(partial(self.plane.forget_dead_files, some))
        return gone

    def delete_objects(self, bucket: Bucket, keys: Sequence[str]) -> int:
        """Split files, segments or orphans that are marked. Returns how many are gone.

        ``.log`` goes first: without it a segment is not whole to anybody.
        """
        gone = 0
        ordered = sorted(keys, key=lambda key: not key.endswith(LOG))
        for some in chunks(ordered, DELETE_AT_ONCE):
            retry(partial(self.store.delete, self._name(bucket), some))
            gone += retry(partial(self.plane.forget_dead_objects, some))
        return gone

    def sweep(self, bucket: Bucket, keys: Iterable[str], dry_run: bool) -> Sweep:
        """Mark what nobody knows among listed ``keys``, and delete what was marked a grace ago."""
        swept = Sweep()
        for some in chunks(keys, DELETE_AT_ONCE):
            grace = self.grace_ms
            unknown = retry(
                partial(self.plane.unknown_objects, some, grace_ms=grace, bucket=bucket)
            )
            swept += Sweep(len(some), len(unknown), sum(unknown.values()) if dry_run else 0)
            if dry_run or not unknown:
                continue
            due = retry(
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


@contextmanager
def opened(settings: JobsSettings) -> Iterator[Collector]:
    with connect_jobs(settings, application_name=APPLICATION) as plane:
        yield Collector(
            ObjectStoreClient(settings),
            plane,
            settings.s3_bucket,
            settings.s3_tiered_bucket,
            settings.gc_grace_ms,
        )


@dataclass(frozen=True, slots=True)
class MarkedObject:
    """An object that Postgres has marked for deletion."""

    bucket: Bucket
    key: str
    is_wal: bool
    """A WAL object; else a split file or an object of a segment."""


@dataclass(frozen=True, slots=True)
class KeyPrefix:
    prefix: str


def delete_marked(job: Job, marked: Sequence[MarkedObject]) -> int:
    """Delete objects and forget their marks; returns how many are gone."""
    settings = job.settings

    def delete(objects: Iterator[MarkedObject]) -> Iterator[Sweep]:
        by_kind: dict[tuple[Bucket, bool], list[str]] = {}
        for one in objects:
            by_kind.setdefault((one.bucket, one.is_wal), []).append(one.key)
        with opened(settings) as collector:
            for (bucket, is_wal), keys in by_kind.items():
                yield Sweep(
                    deleted=collector.delete_files(keys)
                    if is_wal
                    else collector.delete_objects(bucket, keys)
                )

    tasks = min(job.parallelism, -(-len(marked) // OBJECTS_PER_TASK))
    # The objects of one segment stay together, so that its .log goes first.
    frame = to_frame(job.spark, MarkedObject, marked, tasks, keep_neighbours=True)
    return added(map_rows(frame, MarkedObject, Sweep, delete)).deleted


def sweep_diskless(job: Job, split_prefixes: Sequence[str], dry_run: bool) -> Sweep:
    """List WAL objects and split files; mark or delete those that nothing refers to."""
    settings = job.settings

    def sweep(prefixes: Iterator[KeyPrefix]) -> Iterator[Sweep]:
        with opened(settings) as collector:
            for one in prefixes:
                name = WAL_NAME if one.prefix.startswith("wal/") else SPLIT_NAME
                yield collector.list_and_sweep(one.prefix, name, dry_run)

    prefixes = [KeyPrefix(prefix) for prefix in (*WAL_PREFIXES, *split_prefixes)]
    frame = to_frame(job.spark, KeyPrefix, prefixes, job.parallelism)
    return added(map_rows(frame, KeyPrefix, Sweep, sweep))


def listed_segments(job: Job, partitions: Sequence[PartitionRow]) -> DataFrame:
    """The segment objects of ``partitions`` as the bucket has them now, kept as they were: rows of
    :class:`ListedObject`."""
    settings = job.settings
    bucket, root = settings.s3_tiered_bucket, settings.s3_tiered_prefix

    def listing(rows: Iterator[PartitionRow]) -> Iterator[ListedObject]:
        store = ObjectStoreClient(settings)
        for row in rows:
            for entry in store.list_objects(bucket, partition_prefix(root, row.topic, row.log)):
                if (name := SEGMENT_NAME.search(entry.key)) is not None:
                    segment_id = topic_id_from_base64(name["segment"])
                    yield ListedObject(entry.key, row.topic_id, row.partition, segment_id)

    wanted = to_frame(job.spark, PartitionRow, partitions, job.parallelism * 4)
    # Listed once: a listing made anew after the metadata was read would call newcomers orphans.
    return map_rows(wanted, PartitionRow, ListedObject, listing).localCheckpoint()


def sweep_tiered(job: Job, candidates: DataFrame, dry_run: bool) -> Sweep:
    """Mark or delete listed objects of the tiered bucket that no broker knows; Postgres answers
    for merged segments."""
    settings = job.settings

    def sweep(objects: Iterator[ListedObject]) -> Iterator[Sweep]:
        with opened(settings) as collector:
            yield collector.sweep(Bucket.TIERED, (one.object_key for one in objects), dry_run)

    return added(map_rows(candidates, ListedObject, Sweep, sweep))


def added(frame: DataFrame) -> Sweep:
    return sum(from_frame(Sweep, frame), Sweep())
