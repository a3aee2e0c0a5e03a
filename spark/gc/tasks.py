"""What executors do for garbage collection: list, ask, delete, forget.

An object is deleted only after Postgres has marked it or, of an orphan, has reported it; that is
forgotten only after S3 has said that the object is gone. Killed in between, the next run meets the
same mark and does it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Protocol

from spark.common.retry import retry
from spark.common.rows import chunks, from_frame, map_rows, to_frame
from spark.gc.frames import SegmentObject
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.garbage_model import DeadReason, ListedObject
from tideline.control_plane.jobs import JobsControlPlane
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
    """Objects that were listed, with their bytes, and those that nobody knows among them."""

    listed: int = 0
    size: int = 0
    unknown: int = 0

    def __add__(self, other: Sweep) -> Sweep:
        return Sweep(
            self.listed + other.listed, self.size + other.size, self.unknown + other.unknown
        )


class Holds(StrEnum):
    """Where Postgres says that an object may go."""

    FILES = "files"
    """WAL files."""
    MARKS = "marks"
    """Marked objects: those of segments."""
    REPORTS = "reports"
    """Reported orphans."""


@dataclass(frozen=True, slots=True)
class Collector:
    """The hands of one task. ``run_number``: ``None`` in a dry run, which reports nothing."""

    store: Deleter
    plane: JobsControlPlane
    diskless_bucket: str
    tiered_bucket: str
    run_number: int | None = None
    diskless_prefix: str = ""
    """Of this installation's keys in the diskless bucket; names are matched behind it."""

    def delete(self, holds: Holds, bucket: Bucket, keys: Sequence[str]) -> int:
        """Objects that may go; how many are gone and forgotten.

        ``.log`` goes first: without it a segment is not whole to anybody.
        """
        gone = 0
        ordered = sorted(keys, key=lambda key: not key.endswith(LOG))
        for some in chunks(ordered, DELETE_AT_ONCE):
            retry(partial(self.store.delete, self._name(bucket), some))
            gone += retry(partial(self._forget, holds, bucket, some))
        return gone

    def _forget(self, holds: Holds, bucket: Bucket, keys: Sequence[str]) -> int:
        match holds:
            case Holds.FILES:
                return self.plane.forget_dead_files(keys)
            case Holds.MARKS:
                return self.plane.forget_dead_objects(keys)
            case Holds.REPORTS:
                return self.plane.forget_orphans(bucket, keys)

    def sweep(self, bucket: Bucket, listed: Iterable[ListedObject]) -> Sweep:
        """Report what nobody knows among ``listed``."""
        swept = Sweep()
        for some in chunks(listed, DELETE_AT_ONCE):
            if self.run_number is None:
                ask = partial(self.plane.unknown_objects, bucket, [o.object_key for o in some])
                unknown = len(retry(ask))
            else:
                unknown = len(
                    retry(partial(self.plane.report_orphans, self.run_number, bucket, some))
                )
            swept += Sweep(len(some), sum(one.size for one in some), unknown)
        return swept

    def list_and_sweep(self, prefix: str, name: re.Pattern[str]) -> Sweep:
        """:meth:`sweep` over a prefix of the diskless bucket, page by page."""
        listed = self.store.list_objects(self.diskless_bucket, prefix)
        root = self.diskless_prefix
        ours = (one for one in listed if name.match(one.key.removeprefix(root)))
        return self.sweep(Bucket.DISKLESS, map(_listed, ours))

    def _name(self, bucket: Bucket) -> str:
        return self.tiered_bucket if bucket is Bucket.TIERED else self.diskless_bucket


def _listed(entry: ObjectEntry) -> ListedObject:
    modified_ms = int(entry.last_modified.timestamp() * 1000)
    return ListedObject(entry.key, entry.size, entry.etag, modified_ms)


@contextmanager
def opened(settings: JobsSettings, run_number: int | None = None) -> Iterator[Collector]:
    with connect_jobs(settings, application_name=APPLICATION) as plane:
        yield Collector(
            ObjectStoreClient(settings),
            plane,
            settings.s3_bucket,
            settings.s3_tiered_bucket,
            run_number,
            settings.diskless_prefix,
        )


@dataclass(frozen=True, slots=True)
class DueObject:
    """An object that goes now, and why."""

    holds: Holds
    bucket: Bucket
    key: str
    kind: str
    reason: DeadReason
    size: int | None = None
    reported_ms: int | None = None


@dataclass(frozen=True, slots=True)
class KeyPrefix:
    prefix: str


def delete_due(job: Job, due: Sequence[DueObject]) -> int:
    """Delete objects and forget them; returns how many are gone."""
    settings = job.settings

    def delete(objects: Iterator[DueObject]) -> Iterator[Sweep]:
        alike: dict[tuple[Holds, Bucket], list[str]] = {}
        for one in objects:
            alike.setdefault((one.holds, one.bucket), []).append(one.key)
        with opened(settings) as collector:
            for (holds, bucket), keys in alike.items():
                yield Sweep(listed=collector.delete(holds, bucket, keys))

    tasks = min(job.parallelism, -(-len(due) // OBJECTS_PER_TASK))
    # The objects of one segment stay together, so that its .log goes first.
    frame = to_frame(job.spark, DueObject, due, tasks, keep_neighbours=True)
    return added(map_rows(frame, DueObject, Sweep, delete)).listed


def sweep_diskless(job: Job, run_number: int | None) -> Sweep:
    """List WAL objects; report those that nothing refers to."""
    settings = job.settings

    def sweep(prefixes: Iterator[KeyPrefix]) -> Iterator[Sweep]:
        with opened(settings, run_number) as collector:
            for one in prefixes:
                yield collector.list_and_sweep(one.prefix, WAL_NAME)

    prefixes = [KeyPrefix(settings.diskless_prefix + prefix) for prefix in WAL_PREFIXES]
    frame = to_frame(job.spark, KeyPrefix, prefixes, job.parallelism)
    return added(map_rows(frame, KeyPrefix, Sweep, sweep))


def listed_segments(job: Job, partitions: Sequence[PartitionRow]) -> DataFrame:
    """The segment objects of ``partitions`` as the bucket has them now, kept as they were: rows of
    :class:`SegmentObject`."""
    settings = job.settings
    bucket, root = settings.s3_tiered_bucket, settings.s3_tiered_prefix

    def listing(rows: Iterator[PartitionRow]) -> Iterator[SegmentObject]:
        store = ObjectStoreClient(settings)
        for row in rows:
            for entry in store.list_objects(bucket, partition_prefix(root, row.topic, row.log)):
                if (name := SEGMENT_NAME.search(entry.key)) is not None:
                    one = _listed(entry)
                    yield SegmentObject(
                        entry.key,
                        row.topic_id,
                        row.partition,
                        topic_id_from_base64(name["segment"]),
                        one.size,
                        one.etag,
                        one.modified_ms,
                    )

    wanted = to_frame(job.spark, PartitionRow, partitions, job.parallelism * 4)
    # Listed once: a listing made anew after the metadata was read would call newcomers orphans.
    return on_disk(map_rows(wanted, PartitionRow, SegmentObject, listing))


def sweep_tiered(job: Job, candidates: DataFrame, run_number: int | None) -> Sweep:
    """Report listed objects of the tiered bucket that no broker knows; Postgres answers for merged
    segments."""
    settings = job.settings

    def sweep(objects: Iterator[SegmentObject]) -> Iterator[Sweep]:
        with opened(settings, run_number) as collector:
            yield collector.sweep(
                Bucket.TIERED,
                (ListedObject(o.object_key, o.size, o.etag, o.modified_ms) for o in objects),
            )

    return added(map_rows(candidates, SegmentObject, Sweep, sweep))


def on_disk(frame: DataFrame) -> DataFrame:
    """``frame``, made now and kept in files of the executors: a row of it for each object of a
    fleet, which no heap has to hold."""
    from pyspark import StorageLevel

    return frame.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)


def added(frame: DataFrame) -> Sweep:
    return sum(from_frame(Sweep, frame), Sweep())
