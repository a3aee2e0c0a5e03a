"""The control plane as the periodic jobs call it: synchronous, from Spark drivers and executors.

Each operation is one call of a SQL function, as it is declared. Each raises
``ControlPlaneUnavailable`` when Postgres cannot be reached in time, and a typed refusal of
:mod:`tideline.control_plane.errors` when a rule forbids it. All may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from uuid import UUID

from tideline.control_plane.calls import (
    BEAT,
    COUNTS,
    OBSERVED,
    READS,
    TOLD,
    UPKEEP,
    Function,
    Row,
    attributes,
    call,
    columns,
    document,
    key_range,
    keys_and_values,
    literals,
    mapper,
    noted,
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

WORK = "work that is begun anew"
SPLITS = "the WAL object is there until its records are merged, and has the same records"
UPKEEP_OF_PLANS = "how the planner sees tables"
"""Why a rebuild does without what these calls change."""
RUN = literals(
    *("file_id", "log_id", "base_offset", "last_offset", "byte_size"),
    *("batch_count", "max_timestamp"),
)
SEGMENT = attributes(
    *("segment_id", "base_offset", "last_offset", "size_bytes", "max_timestamp", "record_count"),
    *("batch_count", "offset_index_bytes", "time_index_bytes", "snapshot_bytes"),
    "epoch_checkpoint_bytes",
)


def _claimed_files(found: Sequence[Row]) -> list[ClaimedFile]:
    """One row per batch; the batches of a file follow each other."""
    files = groupby(found, key=lambda row: (row["file_id"], row["object_key"], row["token"]))
    return [
        ClaimedFile(*file, batches=tuple(map(mapper(ClaimedBatch), batches)))
        for file, batches in files
    ]


def _totals(found: Sequence[Row]) -> dict[str, int]:
    return {row["total"]: int(row["value"]) for row in found}


def _merged(segment: NewSegment) -> Iterable[object]:
    return *SEGMENT(segment), document(segment.producers)


class JobsControlPlane(GarbageCalls, TableCalls):
    """Every operation of the jobs."""

    def __init__(self, settings: JobsSettings | WorkerSettings, application_name: str) -> None:
        self._connection = JobsConnection(settings, application_name)
        self._call = self._connection.call
        self._tiered_prefix = settings.tiered_prefix

    @noted(READS)
    def close(self) -> None:
        self._connection.close()

    @call(READS, "server_identity", seen=BEAT)
    def identity(self, seen: ServerIdentity | None = None) -> ServerIdentity:
        """What the server says of itself; ``knows``: whether it has the beat of ``seen``."""

    # Bulk reads, in key ranges, so that many tasks can read side by side

    @call(READS, read=key_range)
    def log_id_range(self) -> tuple[int, int]:
        """``[lo, hi)`` of the log ids in use; equal when there are none."""

    @noted(READS)
    def partitions(self, lo: int, hi: int) -> Iterator[PartitionRow]:
        """Partitions with a log id in ``[lo, hi)``, by log id; deleted ones too."""
        return self._connection.pages(
            "tiering_partitions", PartitionRow, (lo, hi), lambda row: (row.log_id + 1, hi), PAGE
        )

    @noted(READS)
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

    @noted(READS)
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

    @call(WORK, read=_claimed_files, cutoffs=keys_and_values)
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

    @call(SPLITS, files=columns("file_id", "token"), runs=RUN)
    def finish_split(
        self, worker: UUID, files: Sequence[ClaimedFile], runs: Sequence[SplitRun]
    ) -> list[FinishedSplit]:
        """The batches of ``runs`` are SPLIT and the claims of ``files`` end, in one transaction.
        Nothing is copied: a run is read where it lies. The same call again succeeds.

        Answers the files that are split now; one that is missing is another worker's, and nothing
        of it was changed. What expired meanwhile is left out. Raises ``TieringMismatch`` when a run
        is not exactly a run of its file's batches; then nothing changed.
        """

    @call(WORK)
    def release_claim(self, worker: UUID, file_id: int, token: int) -> None:
        """Give a claim back. One that is lost is no error."""

    @call(WORK)
    def release_claims(self, worker: UUID) -> int:
        """Give back what an earlier run of the same worker left claimed, WAL files and partitions;
        should that run still live, its next write is a ``StaleClaim``. Returns how many."""

    # Merge: the token, the plan, and the transaction that moves the frontier

    @call(READS)
    def merge_candidates(self) -> list[MergeCandidate]:
        """Partitions with split runs from the merge frontier on, without a gap. Not those that are
        paused, deleted, parked or waiting for a retry. Also ends requests that are done.
        """

    @call(READS)
    def pending_reads(self, log_ids: Sequence[int]) -> PendingReads:
        """What of these logs is split and not merged would be read from."""

    @noted(WORK)
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

    @call(WORK)
    def renew_merge(self, log: TopicIdPartition, token: int, claim_ms: int) -> None:
        """The claim holds for ``claim_ms`` from now on. Raises ``StaleClaim`` for one that is lost
        or has ended."""

    @call(READS)
    def merge_claimed_for(self, log: TopicIdPartition, worker: UUID) -> int:
        """For how many ms the claim that ``worker`` has on the partition holds yet, 0 if it has
        none."""

    @call(TOLD, segment=_merged)
    def finish_merge(self, log: TopicIdPartition, token: int, segment: NewSegment) -> None:
        """Every object is uploaded: register the segment, delete its batch rows and move the
        frontier, in one transaction. The claim ends with the last segment that was planned under
        it. The same call again succeeds.

        Raises ``StaleClaim`` (taken over, abandoned or collected), ``TieredRangeGone`` (retention
        removed all of the range), ``TieringMismatch`` (not the planned range, or not at the
        frontier), ``TopicDeleted``; then nothing changed: call :meth:`abandon_merge`.
        """

    @call(WORK)
    def abandon_merge(self, log: TopicIdPartition, token: int, reason: str) -> None:
        """End the claim; objects of what is not finished go to gc. A claim that is lost is no
        error."""

    # Failures, status, steering and counters of the pipeline

    @call(COUNTS)
    def record_tiering_failure(
        self, scope: TieringScope, key: int, error: str, *, park_after: int, backoff_ms: int = 0
    ) -> int:
        """Count a failure in a row of a ``file_id`` (split) or ``log_id`` (merge).

        From ``park_after`` on it is parked: left alone and shown until an operator triggers or
        resumes the topic. Before, it is not handed out for ``backoff_ms``, doubled with each
        failure up to an hour. Returns the count.
        """

    @call(READS, cutoffs=keys_and_values)
    def tiering_status(
        self, topic: str | None = None, cutoffs: Mapping[UUID, int] | None = None
    ) -> list[TieringStatusRow]:
        """Every partition with a suffix, or those of ``topic``. Without ``cutoffs`` only what was
        requested counts as eligible.
        """

    @call(READS, cutoffs=keys_and_values)
    def oldest_unsplit(self, cutoffs: Mapping[UUID, int]) -> list[OldestUnsplit]:
        """A row for each log that has batches below its cutoff (ms) which are not split yet. Not of
        paused and deleted topics. Costs a look into an index for each log."""

    @call(READS, cutoffs=keys_and_values)
    def split_work(self, cutoffs: Mapping[UUID, int]) -> SplitWork:
        """What ``claim_wal_files`` would begin with. Costs a look into an index for each log."""

    @call(READS)
    def estimate_batch_rows(self) -> int:
        """Rows of all batches, as Postgres' statistics have it: off by what came and went since the
        last vacuum or analysis."""

    @call(COUNTS)
    def pause_tiering(self, topic: str) -> None:
        """Nothing of the topic is claimed or planned any more; what runs ends. Raises
        ``UnknownTopic``."""

    @call(COUNTS)
    def resume_tiering(self, topic: str) -> None:
        """Undo a pause and un-park what failed. Raises ``UnknownTopic``."""

    @call(COUNTS)
    def request_tiering(self, topic: str) -> None:
        """Everything committed until now is to be tiered whatever its age and size; un-parks what
        failed. Raises ``UnknownTopic``."""

    @call(COUNTS, sums=keys_and_values)
    def add_tiering_totals(self, sums: Mapping[str, int]) -> None:
        """Add to counters of :mod:`tideline.domain.tiering_totals`; none ever decreases. Repeated
        after a broken connection it may count twice."""

    @call(COUNTS, read=_totals)
    def take_tiering_work(self, worker: UUID) -> dict[str, int]:
        """What split and merge of the worker have done since the last call, counted in the
        transactions that did it, and now part of the totals. An answer that is lost is lost for the
        caller; the totals have it."""

    @call(READS, "read_tiering_totals", read=_totals)
    def tiering_totals(self) -> dict[str, int]:
        """Every counter that was ever added to."""

    # The jobs themselves

    @call(UPKEEP_OF_PLANS, read=value(list))
    def refresh_statistics(self) -> list[str]:
        """Let Postgres look at tables that have grown to ten times what its planner takes them for;
        their names. Takes some tenths of a second for each."""

    @call(COUNTS)
    def note_job_begun(self, jobs: Sequence[str], run_id: UUID) -> None:
        """A whole run of each of ``jobs`` begins."""

    @call(COUNTS)
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

    @call(READS, "jobs_known")
    def known_jobs(self) -> list[JobRow]:
        """How each job went, by name, without those that no whole run was ever begun of."""

    # Coverage verdicts

    @noted(OBSERVED)
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

    @noted(READS)
    def coverage_looks(self) -> Iterator[CoverageLook]:
        """What earlier runs found whole, by log id, page by page."""
        lo, hi = self.log_id_range()
        return self._connection.pages(
            "coverage_looks", CoverageLook, (lo, hi), lambda row: (row.log_id + 1, hi), PAGE
        )

    @call(READS)
    def coverage_status(self, topic: str | None = None) -> list[CoverageStatusRow]:
        """The last verdict of each migrated partition with B0, or of those of ``topic``."""

    # Retention

    @call(READS)
    def retention_suffix(self, log_ids: Sequence[int], sized: Sequence[bool]) -> list[SuffixUnit]:
        """The units of these logs' suffixes, in one snapshot; WAL batches only where ``sized``."""

    @call(READS, wanted=columns("log_id", "from_offset", "cutoff_ms", "excess_bytes"))
    def retention_wal_cut(
        self, wanted: Sequence[CutRequest], limit: int = CUT_BATCHES
    ) -> list[WalCut]:
        """Where retention cuts the WAL region of each log. Logs that ``limit`` batches did not
        reach are left out."""

    @call(TOLD)
    def delete_records(self, topic_id: UUID, partition: int, before_offset: int) -> int:
        """Advance the suffix's start to ``before_offset`` (exclusive; -1: the high watermark) and
        return it; never back. B0 never moves. Merged segments that are passed go to gc.

        Raises ``OffsetOutOfRange``, ``BoundaryUnset``, ``UnknownLog``, ``TopicDeleted``.
        """

    @call(TOLD)
    def advance_prefix_start(self, topic_id: UUID, partition: int, log_start: int) -> None:
        """Kafka's log start of the prefix moved to ``log_start``; never back. At B0 the prefix is
        gone, and without a merged segment the partition is ``DISKLESS_ONLY``.
        """

    @call(UPKEEP)
    def prune_batches(self, limit: int = STEP_ROWS) -> int:
        """Remove rows that nobody can read; how many. Repeat while it is ``limit``."""

    @call("a producer that is back after it had expired begins anew")
    def expire_producers(self, idle_ms: int, limit: int = STEP_ROWS) -> int:
        """Forget producers idle for ``producer.id.expiration.ms``, at least for four hours; how
        many. Repeat while it is ``limit``."""

    @call(UPKEEP)
    def forget_tracking_changes(self, kept_ms: int) -> int:
        """Forget which topics changed more than ``kept_ms`` ago; how many notes. A gateway that
        has not read since then reads everything."""
