"""The control plane of the jobs with its catalog, as :mod:`tideline.control_plane.cataloged`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import MappingProxyType
from uuid import UUID

from tideline.control_plane.calls import Function
from tideline.control_plane.catalog_writer import CatalogWriter
from tideline.control_plane.cataloged import prefix_start, start_of, suffix_start
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.model import TrackedPartition
from tideline.control_plane.postgres import partition_view
from tideline.control_plane.tiering_model import (
    MergedSegmentRow,
    MergedSegmentState,
    NewSegment,
)
from tideline.domain.catalog import MergedSegment, Record
from tideline.domain.ids import TopicIdPartition
from tideline.object_store.client import JOB, ObjectStoreClient
from tideline.settings import JobsSettings, WorkerSettings

_READS = "only reads"
_WORK = "work that is begun anew"
_SPLITS = "the WAL object is there until its records are merged, and has the same records"
_UPKEEP = "removes what nobody can read: the start that made it so is told"
_UPKEEP_OF_PLANS = "how the planner sees tables"
_COUNTS = "counters, failures and orders of operators"

NO_FACT: Mapping[str, str] = MappingProxyType(
    {
        "close": _READS,
        "identity": _READS,
        "log_id_range": _READS,
        "partitions": _READS,
        "batches": _READS,
        "merged_segments": _READS,
        "claim_wal_files": _WORK,
        "finish_split": _SPLITS,
        "release_claim": _WORK,
        "release_claims": _WORK,
        "merge_candidates": _READS,
        "begin_merge": _WORK,
        "pending_reads": _READS,
        "renew_merge": _WORK,
        "merge_claimed_for": _READS,
        "take_tiering_work": _COUNTS,
        "abandon_merge": _WORK,
        "record_tiering_failure": _COUNTS,
        "tiering_status": _READS,
        "pause_tiering": _COUNTS,
        "resume_tiering": _COUNTS,
        "request_tiering": _COUNTS,
        "add_tiering_totals": _COUNTS,
        "tiering_totals": _READS,
        "refresh_statistics": _UPKEEP_OF_PLANS,
        "note_job_begun": _COUNTS,
        "note_job_ended": _COUNTS,
        "known_jobs": _READS,
        "pin_reads": _COUNTS,
        "unpin_reads": _COUNTS,
        "read_pins": _READS,
        "topic_log_ids": _READS,
        "table_suffix": _READS,
        "find_batches": _READS,
        "gateway_addresses": _READS,
        "record_verify_verdict": "observed anew",
        "verify_verdicts": _READS,
        "record_coverage": "observed anew",
        "coverage_looks": _READS,
        "coverage_status": _READS,
        "retention_suffix": _READS,
        "retention_wal_cut": _READS,
        "prune_batches": _UPKEEP,
        "expire_producers": "a producer that is back after it had expired begins anew",
        "forget_tracking_changes": _UPKEEP,
        "forget_uncommitted_keys": _UPKEEP,
        "mark_dead_objects": _UPKEEP,
        "claim_dead_files": _UPKEEP,
        "forget_dead_files": _UPKEEP,
        "unseen_segments": _READS,
        "note_segments_seen": "looked at anew",
        "claim_dead_objects": _UPKEEP,
        "forget_dead_objects": _UPKEEP,
        "unknown_objects": _READS,
        "report_orphans": "the reports in the bucket say it",
        "claim_orphans": _READS,
        "forget_orphans": _UPKEEP,
        "preview_garbage": _READS,
        "begin_gc_run": _COUNTS,
        "measure_garbage": _READS,
        "judge_gc_run": _COUNTS,
        "end_gc_run": _COUNTS,
        "allow_gc_run": _COUNTS,
        "adopt_gc_runs": _COUNTS,
        "gc_runs": _READS,
        "oldest_unsplit": _READS,
        "split_work": _READS,
        "estimate_batch_rows": _READS,
    }
)
"""Calls that create no fact, and why a rebuild does without them. A test wants every other one
overridden below."""


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
