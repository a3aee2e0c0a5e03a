"""The control plane as the periodic jobs call it: synchronous, from Spark drivers and executors.

Each operation is one call of the SQL function of its name. Each raises ``ControlPlaneUnavailable``
when Postgres cannot be reached in time, and a typed refusal of
:mod:`tideline.control_plane.errors` when a rule forbids it. All may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from uuid import UUID

from tideline.control_plane.calls import (
    ADVANCE_PREFIX_START,
    DELETE_RECORDS,
    SERVER_IDENTITY,
    Function,
    Row,
    columns,
    document,
    key_range,
    literals,
    mapper,
    nothing,
    only,
    rows,
    value,
    values,
)
from tideline.control_plane.garbage_calls import GarbageCalls
from tideline.control_plane.job_model import JobRow
from tideline.control_plane.pool import JobsConnection
from tideline.control_plane.table_calls import TableCalls
from tideline.control_plane.tiering_model import (
    BatchRow,
    ClaimedBatch,
    ClaimedFile,
    CoverageLook,
    CoverageStatusRow,
    CutRequest,
    FinishedSplit,
    MergeCandidate,
    MergedSegmentRow,
    MergePlan,
    NewSegment,
    NewVerdict,
    OldestUnsplit,
    PartitionRow,
    RecordedVerdict,
    SplitRun,
    SplitWork,
    SuffixUnit,
    TieringScope,
    TieringStatusRow,
    WalCut,
)
from tideline.domain.history import ServerIdentity
from tideline.domain.ids import TopicIdPartition
from tideline.domain.tiering import PendingReads
from tideline.settings import JobsSettings, WorkerSettings

PAGE = 5_000
"""Rows per call of a bulk read: some 10 ms, and less than 1 MB in memory."""
STEP_ROWS = 1_000
"""Rows per call of upkeep: a few ms each. No step locks a row that commits need."""
CONFIRMED_AT_ONCE = 1_000
RECORDED_AT_ONCE = 50
"""Verdicts of one call: it keeps the locks of their logs, which commits need, until its end."""
CUT_BATCHES = 2_000_000
"""Batches that one call looks at: a few seconds, far below the statement timeout."""


class JobsControlPlane(GarbageCalls, TableCalls):
    """Every operation of the jobs."""

    def __init__(self, settings: JobsSettings | WorkerSettings, application_name: str) -> None:
        self._connection = JobsConnection(settings, application_name)
        self._call = self._connection.call
        self._tiered_prefix = settings.tiered_prefix

    def close(self) -> None:
        self._connection.close()

    def identity(self, seen: ServerIdentity | None = None) -> ServerIdentity:
        """What the server says of itself; ``knows``: whether it has the beat of ``seen``."""
        beat, token = (seen.beat, seen.token) if seen else (None, None)
        return self._call(SERVER_IDENTITY, beat, token)

    # Bulk reads, in key ranges, so that many tasks can read side by side

    def log_id_range(self) -> tuple[int, int]:
        """``[lo, hi)`` of the log ids in use; equal when there are none."""
        return self._call(Function("log_id_range", key_range))

    def partitions(self, lo: int, hi: int) -> Iterator[PartitionRow]:
        """Partitions with a log id in ``[lo, hi)``, by log id; deleted ones too."""
        return self._connection.pages(
            "tiering_partitions", PartitionRow, (lo, hi), lambda row: (row.log_id + 1, hi), PAGE
        )

    def batches(self, lo: int, hi: int) -> Iterator[BatchRow]:
        """Batches of the WAL region of the logs in ``[lo, hi)``, by log and offset. Read page by
        page: what is committed or merged meanwhile may or may not be among them.
        """
        return self._connection.pages(
            "tiering_batches",
            BatchRow,
            (lo, hi, -1),
            lambda row: (row.log_id, hi, row.last_offset),
            PAGE,
        )

    def merged_segments(self, lo: int, hi: int) -> Iterator[MergedSegmentRow]:
        """Merged segments of the logs in ``[lo, hi)`` in every state, by log and last offset."""
        return self._connection.pages(
            "tiering_segments",
            MergedSegmentRow,
            (lo, hi, -1, None),
            lambda row: (row.log_id, hi, row.last_offset, row.segment_id),
            PAGE,
        )

    # Split: claims, tokens and the transaction that records what is split (002 §4.7)

    def claim_wal_files(
        self,
        worker: UUID,
        *,
        max_files: int,
        max_batches: int,
        claim_ms: int,
        cutoffs: Mapping[UUID, int],
        from_ms: int | None = None,
    ) -> list[ClaimedFile]:
        """Claim the files that hold the oldest eligible batches; none: nothing is eligible.

        ``cutoffs``: topic id → ms; batches that are older are eligible: their ``max_timestamp``, or
        the time of their commit if that is less, is below it. A topic whose tiering was requested
        has every batch eligible that was committed until the request; a topic without a cutoff has
        no other. Never eligible: batches of paused or deleted topics, expired offsets, what is
        split already. As many files as hold at most ``max_batches`` that are not split, one at
        least; at most 250, whatever ``max_files``. A file that failed waits for its retry time, a
        parked one for an operator.

        ``from_ms``: no file is chosen for a batch that is older. What the caller has claimed since
        it last began from the oldest is not read again then (:attr:`ClaimedFile.oldest_ms`). Calls
        at once share the files out: one of them may find nothing while others are taking the last
        ones.

        A claim lasts ``claim_ms`` on the database's clock; then any worker may take it over under
        a new token. The claimed batches of a killed worker therefore come again.
        """
        return self._call(
            Function("claim_wal_files", _claimed_files),
            worker,
            max_files,
            max_batches,
            claim_ms,
            list(cutoffs),
            list(cutoffs.values()),
            from_ms,
        )

    def finish_split(
        self, worker: UUID, files: Sequence[ClaimedFile], runs: Sequence[SplitRun]
    ) -> list[FinishedSplit]:
        """The batches of ``runs`` are SPLIT and the claims of ``files`` end, in one transaction.
        Nothing is copied: a run is read where it lies. The same call again succeeds.

        Answers the files that are split now; one that is missing is another worker's, and nothing
        of it was changed. What expired meanwhile is left out. Raises ``TieringMismatch`` when a run
        is not exactly a run of its file's batches; then nothing changed.
        """
        return self._call(
            Function("finish_split", rows(FinishedSplit)),
            worker,
            *columns(files, "file_id", "token"),
            *literals(
                runs,
                *("file_id", "log_id", "base_offset", "last_offset", "byte_size"),
                *("batch_count", "max_timestamp"),
            ),
        )

    def release_claim(self, worker: UUID, file_id: int, token: int) -> None:
        """Give a claim back. One that is lost is no error."""
        self._call(Function("release_claim", nothing), worker, file_id, token)

    def release_claims(self, worker: UUID) -> int:
        """Give back what an earlier run of the same worker left claimed, WAL files and partitions;
        should that run still live, its next write is a ``StaleClaim``. Returns how many."""
        return self._call(Function("release_claims", value(int)), worker)

    # Merge: the token, the plan, and the transaction that moves the frontier

    def merge_candidates(self) -> list[MergeCandidate]:
        """Partitions with split runs from the merge frontier on, without a gap. Not those that are
        paused, deleted, parked or waiting for a retry. Also ends requests that are done.
        """
        return self._call(Function("merge_candidates", rows(MergeCandidate)))

    def pending_reads(self, log_ids: Sequence[int]) -> PendingReads:
        """What of these logs is split and not merged would be read from."""
        return self._call(Function("pending_reads", only(PendingReads)), list(log_ids))

    def begin_merge(
        self,
        log: TopicIdPartition,
        worker: UUID,
        claim_ms: int,
        segment_ids: Sequence[UUID],
        max_bytes: int,
        max_batches: int,
    ) -> list[MergePlan]:
        """Take the partition's merge token and plan the next segments, ``COPY_SEGMENT_STARTED``:
        as many as there are ``segment_ids``, fewer where there is not more.

        Each has whole batches up to ``max_bytes`` and ``max_batches``, but at least one, and
        follows the one before. They are finished in this order. Empty: nothing is split there, the
        topic is paused or deleted, or a claim holds, also one of the same worker: of two attempts
        that run at once the first goes on; or it was called before with these ids, and another
        attempt has taken over since. Raises ``UnknownLog``, ``InvalidInput``, and
        ``TieredRangeGone`` where retention removed batches meanwhile; then nothing is begun.
        """
        return self._call(
            Function("begin_merge", rows(MergePlan)),
            log,
            worker,
            claim_ms,
            list(segment_ids),
            self._tiered_prefix,
            max_bytes,
            max_batches,
        )

    def renew_merge(self, log: TopicIdPartition, token: int, claim_ms: int) -> None:
        """The claim holds for ``claim_ms`` from now on. Raises ``StaleClaim`` for one that is lost
        or has ended."""
        self._call(Function("renew_merge", nothing), log, token, claim_ms)

    def merge_claimed_for(self, log: TopicIdPartition, worker: UUID) -> int:
        """For how many ms the claim that ``worker`` has on the partition holds yet, 0 if it has
        none."""
        return self._call(Function("merge_claimed_for", value(int)), log, worker)

    def finish_merge(self, log: TopicIdPartition, token: int, segment: NewSegment) -> None:
        """Every object is uploaded: register the segment, delete its batch rows and move the
        frontier, in one transaction. The claim ends with the last segment that was planned under
        it. The same call again succeeds.

        Raises ``StaleClaim`` (taken over, abandoned or collected), ``TieredRangeGone`` (retention
        removed all of the range), ``TieringMismatch`` (not the planned range, or not at the
        frontier), ``TopicDeleted``; then nothing changed: call :meth:`abandon_merge`.
        """
        self._call(
            Function("finish_merge", nothing),
            log,
            token,
            segment.segment_id,
            segment.base_offset,
            segment.last_offset,
            segment.size_bytes,
            segment.max_timestamp,
            segment.record_count,
            segment.batch_count,
            segment.offset_index_bytes,
            segment.time_index_bytes,
            segment.snapshot_bytes,
            segment.epoch_checkpoint_bytes,
            document(segment.producers),
        )

    def abandon_merge(self, log: TopicIdPartition, token: int, reason: str) -> None:
        """End the claim; objects of what is not finished go to gc. A claim that is lost is no
        error."""
        self._call(Function("abandon_merge", nothing), log, token, reason)

    # Failures, status, steering and counters of the pipeline

    def record_tiering_failure(
        self, scope: TieringScope, key: int, error: str, *, park_after: int, backoff_ms: int = 0
    ) -> int:
        """Count a failure in a row of a ``file_id`` (split) or ``log_id`` (merge).

        From ``park_after`` on it is parked: left alone and shown until an operator triggers or
        resumes the topic. Before, it is not handed out for ``backoff_ms``, doubled with each
        failure up to an hour. Returns the count.
        """
        function = Function("record_tiering_failure", value(int))
        return self._call(function, scope, key, error, park_after, backoff_ms)

    def tiering_status(
        self, topic: str | None = None, cutoffs: Mapping[UUID, int] | None = None
    ) -> list[TieringStatusRow]:
        """Every partition with a suffix, or those of ``topic``. Without ``cutoffs`` only what was
        requested counts as eligible.
        """
        old = cutoffs or {}
        function = Function("tiering_status", rows(TieringStatusRow))
        return self._call(function, topic, list(old), list(old.values()))

    def oldest_unsplit(self, cutoffs: Mapping[UUID, int]) -> list[OldestUnsplit]:
        """A row for each log that has batches below its cutoff (ms) which are not split yet. Not of
        paused and deleted topics. Costs a look into an index for each log."""
        function = Function("oldest_unsplit", rows(OldestUnsplit))
        return self._call(function, list(cutoffs), list(cutoffs.values()))

    def split_work(self, cutoffs: Mapping[UUID, int]) -> SplitWork:
        """What ``claim_wal_files`` would begin with. Costs a look into an index for each log."""
        function = Function("split_work", only(SplitWork))
        return self._call(function, list(cutoffs), list(cutoffs.values()))

    def estimate_batch_rows(self) -> int:
        """Rows of all batches, as Postgres' statistics have it: off by what came and went since the
        last vacuum or analysis."""
        return self._call(Function("estimate_batch_rows", value(int)))

    def pause_tiering(self, topic: str) -> None:
        """Nothing of the topic is claimed or planned any more; what runs ends. Raises
        ``UnknownTopic``."""
        self._call(Function("pause_tiering", nothing), topic)

    def resume_tiering(self, topic: str) -> None:
        """Undo a pause and un-park what failed. Raises ``UnknownTopic``."""
        self._call(Function("resume_tiering", nothing), topic)

    def request_tiering(self, topic: str) -> None:
        """Everything committed until now is to be tiered whatever its age and size; un-parks what
        failed. Raises ``UnknownTopic``."""
        self._call(Function("request_tiering", nothing), topic)

    def add_tiering_totals(self, sums: Mapping[str, int]) -> None:
        """Add to counters of :mod:`tideline.domain.tiering_totals`; none ever decreases. Repeated
        after a broken connection it may count twice."""
        self._call(Function("add_tiering_totals", nothing), list(sums), list(sums.values()))

    def take_tiering_work(self, worker: UUID) -> dict[str, int]:
        """What split and merge of the worker have done since the last call, counted in the
        transactions that did it, and now part of the totals. An answer that is lost is lost for the
        caller; the totals have it."""
        return self._call(Function("take_tiering_work", _totals), worker)

    def tiering_totals(self) -> dict[str, int]:
        """Every counter that was ever added to."""
        return self._call(Function("read_tiering_totals", _totals))

    # The jobs themselves

    def refresh_statistics(self) -> list[str]:
        """Let Postgres look at tables that have grown to ten times what its planner takes them for;
        their names. Takes some tenths of a second for each."""
        return self._call(Function("refresh_statistics", value(list)))

    def note_job_begun(self, jobs: Sequence[str], run_id: UUID) -> None:
        """A whole run of each of ``jobs`` begins."""
        self._call(Function("note_job_begun", nothing), list(jobs), run_id)

    def note_job_ended(
        self,
        jobs: Sequence[str],
        run_id: UUID,
        error: str | None,
        records_overdue_since: datetime | None = None,
        records_lost: int = 0,
    ) -> None:
        """It has just ended: well, or with ``error``. Rows for its tables should have been appended
        at ``records_overdue_since``, and so many were lost."""
        self._call(
            Function("note_job_ended", nothing),
            list(jobs), run_id, error, records_overdue_since, records_lost,
        )  # fmt: skip

    def known_jobs(self) -> list[JobRow]:
        """How each job went, by name, without those that no whole run was ever begun of."""
        return self._call(Function("jobs_known", rows(JobRow)))

    # Coverage verdicts

    def record_coverage(
        self, verdicts: Sequence[NewVerdict], run_id: str
    ) -> Iterator[RecordedVerdict]:
        """Write a run's verdicts and set or clear ``tieringComplete`` with them; what became of
        each, in no particular order.

        Once the prefix is gone ``tieringComplete`` stays true whatever the verdict. A verdict that
        says what is known already costs no lock of its log.
        """
        for start in range(0, len(verdicts), CONFIRMED_AT_ONCE):
            some = verdicts[start : start + CONFIRMED_AT_ONCE]
            confirm = Function("confirm_coverage", values(int))
            confirmed = self._call(confirm, document(some), run_id)
            yield from (RecordedVerdict(log_id, True) for log_id in confirmed)
            stood = set(confirmed)
            others = [one for one in some if one.log_id not in stood]
            for at in range(0, len(others), RECORDED_AT_ONCE):
                record = Function("record_coverages", rows(RecordedVerdict))
                yield from self._call(record, document(others[at : at + RECORDED_AT_ONCE]), run_id)

    def coverage_looks(self) -> Iterator[CoverageLook]:
        """What earlier runs found whole, by log id, page by page."""
        lo, hi = self.log_id_range()
        return self._connection.pages(
            "coverage_looks", CoverageLook, (lo, hi), lambda row: (row.log_id + 1, hi), PAGE
        )

    def coverage_status(self, topic: str | None = None) -> list[CoverageStatusRow]:
        """The last verdict of each migrated partition with B0, or of those of ``topic``."""
        return self._call(Function("coverage_status", rows(CoverageStatusRow)), topic)

    # Retention

    def retention_suffix(self, log_ids: Sequence[int], sized: Sequence[bool]) -> list[SuffixUnit]:
        """The units of these logs' suffixes, in one snapshot; WAL batches only where ``sized``."""
        function = Function("retention_suffix", rows(SuffixUnit))
        return self._call(function, list(log_ids), list(sized))

    def retention_wal_cut(
        self, wanted: Sequence[CutRequest], limit: int = CUT_BATCHES
    ) -> list[WalCut]:
        """Where retention cuts the WAL region of each log. Logs that ``limit`` batches did not
        reach are left out."""
        names = ("log_id", "from_offset", "cutoff_ms", "excess_bytes")
        function = Function("retention_wal_cut", rows(WalCut))
        return self._call(function, *columns(wanted, *names), limit)

    def delete_records(self, topic_id: UUID, partition: int, before_offset: int) -> int:
        """Advance the suffix's start to ``before_offset`` (exclusive; -1: the high watermark) and
        return it; never back. B0 never moves. Merged segments that are passed go to gc.

        Raises ``OffsetOutOfRange``, ``BoundaryUnset``, ``UnknownLog``, ``TopicDeleted``.
        """
        return self._call(DELETE_RECORDS, topic_id, partition, before_offset)

    def advance_prefix_start(self, topic_id: UUID, partition: int, log_start: int) -> None:
        """Kafka's log start of the prefix moved to ``log_start``; never back. At B0 the prefix is
        gone, and without a merged segment the partition is ``DISKLESS_ONLY``.
        """
        self._call(ADVANCE_PREFIX_START, topic_id, partition, log_start)

    def prune_batches(self, limit: int = STEP_ROWS) -> int:
        """Remove rows that nobody can read; how many. Repeat while it is ``limit``."""
        return self._call(Function("prune_batches", value(int)), limit)

    def expire_producers(self, idle_ms: int, limit: int = STEP_ROWS) -> int:
        """Forget producers idle for ``producer.id.expiration.ms``, at least for four hours; how
        many. Repeat while it is ``limit``."""
        return self._call(Function("expire_producers", value(int)), idle_ms, limit)

    def forget_tracking_changes(self, kept_ms: int) -> int:
        """Forget which topics changed more than ``kept_ms`` ago; how many notes. A gateway that
        has not read since then reads everything."""
        return self._call(Function("forget_tracking_changes", value(int)), kept_ms)


def _claimed_files(found: Sequence[Row]) -> list[ClaimedFile]:
    """One row per batch; the batches of a file follow each other."""
    files = groupby(found, key=lambda row: (row["file_id"], row["object_key"], row["token"]))
    return [
        ClaimedFile(*file, batches=tuple(map(mapper(ClaimedBatch), batches)))
        for file, batches in files
    ]


def _totals(found: Sequence[Row]) -> dict[str, int]:
    return {row["total"]: int(row["value"]) for row in found}
