"""The control plane of the jobs with its catalog, as :mod:`tideline.control_plane.cataloged`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from uuid import UUID

from tideline.control_plane.calls import Function
from tideline.control_plane.catalog_writer import CatalogWriter
from tideline.control_plane.cataloged import prefix_start, start_of, suffix_start
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.model import TrackedPartition
from tideline.control_plane.row_readers import partition_view
from tideline.control_plane.tiering_model import (
    MergedSegmentRow,
    MergedSegmentState,
    NewSegment,
)
from tideline.domain.catalog import MergedSegment, Record
from tideline.domain.ids import TopicIdPartition
from tideline.object_store.client import JOB, ObjectStoreClient
from tideline.settings import JobsSettings, WorkerSettings


class CatalogedJobs(JobsControlPlane):
    """Calls that create a fact raise ``CatalogUnavailable``, too."""

    def __init__(
        self,
        settings: JobsSettings | WorkerSettings,
        application_name: str,
        writer: CatalogWriter,
    ) -> None:
        super().__init__(settings, application_name)
        self._writer = writer
        self._known_history: UUID | None = None

    def finish_merge(self, log: TopicIdPartition, token: int, segment: NewSegment) -> None:
        with self._counting(_record_of(log, segment)):
            super().finish_merge(log, token, segment)

    def delete_records(self, topic_id: UUID, partition: int, before_offset: int) -> int:
        log = TopicIdPartition(topic_id, partition)
        if (view := self._view(log)) is None:
            return super().delete_records(topic_id, partition, before_offset)
        before = view.high_watermark if before_offset == -1 else before_offset
        if (announced := suffix_start(log, view, before)) is not None:
            self._writer.announce(self._history_id(), announced)
        start = super().delete_records(topic_id, partition, before)
        if start > view.boundary:
            self._writer.count(self._history_id(), start_of(log, view, start))
        return start

    def advance_prefix_start(self, topic_id: UUID, partition: int, log_start: int) -> None:
        log = TopicIdPartition(topic_id, partition)
        record = prefix_start(log, self._view(log), log_start)
        if record is None:
            return super().advance_prefix_start(topic_id, partition, log_start)
        with self._counting(record):
            super().advance_prefix_start(topic_id, partition, log_start)

    @contextmanager
    def _counting(self, record: Record) -> Iterator[None]:
        """Announced before the body, counted when it has ended well."""
        self._writer.announce(self._history_id(), record)
        yield
        self._writer.count(self._history_id(), record)

    def tell_segments(self) -> int:
        """Put the records of finished segments that the bucket lacks; how many."""
        there, told = self._writer.keys(MergedSegment.kind), 0
        for row in self.merged_segments(*self.log_id_range()):
            if row.state is not MergedSegmentState.COPY_SEGMENT_FINISHED:
                continue
            record = _record_of(TopicIdPartition(row.topic_id, row.partition), row)
            if self._writer.key_of(self._history_id(), record) not in there:
                self._writer.count(self._history_id(), record)
                told += 1
        return told

    def _history_id(self) -> UUID:
        self._known_history = self._known_history or self.identity().history_id
        return self._known_history

    def _view(self, log: TopicIdPartition) -> TrackedPartition | None:
        """The partition, if it has a B0."""
        view = self._call(Function("tracked_partition", partition_view), log)
        return view if view is not None and view.boundary >= 0 else None


@lru_cache(maxsize=4)
def _writer(settings: JobsSettings | WorkerSettings) -> CatalogWriter:
    """One for all tasks that an executor's process runs; connects with the first record."""
    store = ObjectStoreClient(settings, bounds=JOB)
    return CatalogWriter(store, settings.s3_bucket, settings.diskless_prefix)


def open_jobs(settings: JobsSettings | WorkerSettings, *, application_name: str) -> CatalogedJobs:
    """As :func:`connect_jobs`, to be closed by its caller."""
    return CatalogedJobs(settings, application_name, _writer(settings))


@contextmanager
def connect_jobs(
    settings: JobsSettings | WorkerSettings, *, application_name: str
) -> Iterator[CatalogedJobs]:
    """The control plane at ``settings``. Does not fail while Postgres is down: the operations do,
    until it answers.
    """
    plane = open_jobs(settings, application_name=application_name)
    try:
        yield plane
    finally:
        plane.close()


def _record_of(log: TopicIdPartition, segment: NewSegment | MergedSegmentRow) -> MergedSegment:
    return MergedSegment(
        topic_id=log.topic_id,
        partition=log.partition,
        segment_id=segment.segment_id,
        base_offset=segment.base_offset,
        last_offset=segment.last_offset,
        size_bytes=segment.size_bytes,
        max_timestamp=segment.max_timestamp,
        record_count=segment.record_count,
        batch_count=segment.batch_count,
        offset_index_bytes=segment.offset_index_bytes,
        time_index_bytes=segment.time_index_bytes,
    )
