"""Tiering on the driver: ``python -m spark.split``, ``spark.merge``, ``spark.tiering`` for both.

Split: the driver claims WAL files and gives them to the executors, round by round, until nothing is
eligible. Merge: one task per partition, under the partition's merge token. Any number of drivers
may run at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

from spark.common.control_plane import partitions
from spark.common.entry import DryRunOption, Job, Outcome, TopicsOption
from spark.common.kafka_logs import WantedLog, observed_logs
from spark.common.owned import must_own
from spark.common.record_rows import SegmentRow
from spark.common.rows import from_frame, to_frame
from spark.tiering import frames
from spark.tiering.merge_partition import MergeOrder, MergeOutcome
from spark.tiering.services import FromSettings
from spark.tiering.split_file import SplitOutcome
from spark.tiering.summary import MergeSummary, SplitSummary, Totals, record_rows
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.tiering_model import ClaimedFile, MergeCandidate
from tideline.domain.tiering import (
    PendingMerge,
    TieringConfig,
    merge_reason,
    segment_limit,
    suffix_lineage,
)
from tideline.errors import TidelineError
from tideline.kafka.topic_policies import TieringPolicies, read_tiering_policies, suffix_topics
from tideline.settings import JobsSettings

SPLIT, MERGE = "tideline-split", "tideline-merge"
"""What the stores see as the application's name."""
ROUND_BYTES_PER_TASK = 64 * 1024 * 1024
CLAIMS_PER_TASK = 32
"""A round of split is closed by bytes, so that no claim waits long for its turn, and by claims, so
that small files do not cost one Spark job each."""
TASKS_PER_CORE = 4
"""Files differ in size: more tasks than cores let the cores end at the same time."""
MOST_MERGE_TASKS = 4_096
"""One task per partition keeps the cores busy to the end; more tasks than this cost more than
they even out."""


def tiering(job: Job, topic: TopicsOption = None, dry_run: DryRunOption = False) -> Outcome:
    """Turn aged diskless data into tiered segments: split, then merge."""
    return _run(job, "tideline-tiering", topic or (), dry_run, splits=True, merges=True)


def split(job: Job, topic: TopicsOption = None, dry_run: DryRunOption = False) -> Outcome:
    """Split WAL files whose batches are older than local.retention.ms, or whose topic was
    triggered, into one file per partition."""
    return _run(job, SPLIT, topic or (), dry_run, splits=True)


def merge(job: Job, topic: TopicsOption = None, dry_run: DryRunOption = False) -> Outcome:
    """Merge split files into segments up to segment.bytes, where there is enough for one, the
    oldest waits longer than segment.ms, or the topic was triggered."""
    return _run(job, MERGE, topic or (), dry_run, merges=True)


def _run(
    job: Job,
    application: str,
    topics: Sequence[str],
    dry_run: bool,
    *,
    splits: bool = False,
    merges: bool = False,
) -> Outcome:
    must_own(job)
    details: dict[str, object] = {}
    complaints: list[str | None] = []
    with connect_jobs(job.settings, application_name=application) as plane:
        rules = read_tiering_policies(job.settings, suffix_topics(plane, topics))
        job.progress(f"{len(rules.configs)} topics")
        if dry_run and splits:
            details["eligible"] = eligible(plane, rules)
        if dry_run and merges:
            details["ready"] = [
                {"topic": o.topic, "partition": o.partition, "bytes": o.pending_bytes}
                for o in ready(plane, rules, job.settings)
            ]
        if splits and not dry_run:
            split_done = split_all(job, plane, rules)
            details["split"] = asdict(split_done)
            complaints.append(split_done.complaint)
        if merges and not dry_run:
            merge_done = merge_all(job, plane, rules)
            details["merge"] = asdict(merge_done)
            complaints.append(merge_done.complaint)
    details["left_alone"] = rules.left_alone
    return Outcome(details, "; ".join(text for text in complaints if text) or None)


def split_all(job: Job, plane: JobsControlPlane, rules: TieringPolicies) -> SplitSummary:
    """Claim and split until nothing is eligible. What was done stays done when it raises."""
    worker, summary, started = claim_holder(job.settings), SplitSummary(), time.monotonic()
    if left := plane.release_claims(worker):
        job.progress(f"took {left} WAL files over from a run that ended")
    cutoffs = rules.cutoffs(round(time.time() * 1000))
    services = FromSettings(job.settings, SPLIT)
    while claimed := claim_round(job, plane, worker, cutoffs):
        summary.rounds += 1
        size = sum(batch.byte_size for file in claimed for batch in file.batches)
        job.progress(f"round {summary.rounds}: {len(claimed)} WAL files, {size} bytes")
        frame = to_frame(job.spark, ClaimedFile, claimed, job.parallelism * TASKS_PER_CORE)
        totals = Totals()
        try:
            for outcome in from_frame(SplitOutcome, frames.split(frame, worker, services)):
                summary.add(outcome)
                totals.add_split(outcome)
        except BaseException:
            _give_back(plane, worker, claimed)
            raise
        totals.add_to(plane)
    summary.end(round((time.monotonic() - started) * 1000))
    return summary


def claim_holder(settings: JobsSettings) -> UUID:
    """Who claims: the one of the setting's name, or nobody else."""
    name = settings.tiering_claim_holder
    return uuid5(NAMESPACE_OID, name) if name else uuid4()


def claim_round(
    job: Job, plane: JobsControlPlane, worker: UUID, cutoffs: dict[UUID, int]
) -> list[ClaimedFile]:
    """Files for every core. The first claim does not start Spark: often there is nothing to do.
    It begins at the oldest batch, each later one where the one before it ended."""
    settings, size, claims, from_ms = job.settings, 0, 0, None
    claimed: dict[int, ClaimedFile] = {}
    while files := plane.claim_wal_files(
        worker,
        max_files=settings.tiering_splitter_max_files_per_run,
        max_batches=settings.tiering_max_batches_per_run,
        claim_ms=settings.tiering_splitter_claim_duration_ms,
        cutoffs=cutoffs,
        from_ms=from_ms,
    ):
        # One that has expired while Spark was starting comes again, under a newer token.
        claimed |= {file.file_id: file for file in files}
        claims, from_ms = claims + 1, files[-1].oldest_ms
        size += sum(batch.byte_size for file in files for batch in file.batches)
        cores = job.parallelism
        if size >= cores * ROUND_BYTES_PER_TASK or claims >= cores * CLAIMS_PER_TASK:
            break
    return list(claimed.values())


def _give_back(plane: JobsControlPlane, worker: UUID, claimed: list[ClaimedFile]) -> None:
    """What is done already is not ours any more: releasing it changes nothing."""
    with suppress(TidelineError):
        for file in claimed:
            plane.release_claim(worker, file.file_id, file.token)


def eligible(plane: JobsControlPlane, rules: TieringPolicies) -> list[dict[str, object]]:
    """Partitions with something to split now."""
    return [
        {"topic": row.topic, "partition": row.partition, "bytes": row.eligible_bytes}
        for row in plane.tiering_status(cutoffs=rules.cutoffs(round(time.time() * 1000)))
        if row.eligible_bytes and row.topic_id in rules.configs
    ]


def merge_all(job: Job, plane: JobsControlPlane, rules: TieringPolicies) -> MergeSummary:
    """Make a segment of every partition that has enough for one."""
    started = time.monotonic()
    orders = ready(plane, rules, job.settings)
    summary = MergeSummary(partitions=len(orders))
    if orders:
        orders = with_lineages(job, orders)
        job.progress(f"{len(orders)} partitions, {sum(o.pending_bytes for o in orders)} bytes")
        frame = frames.merge(
            to_frame(job.spark, MergeOrder, orders, MOST_MERGE_TASKS),
            claim_holder(job.settings),
            FromSettings(job.settings, MERGE),
            claim_ms=job.settings.tiering_splitter_claim_duration_ms,
        )
        totals = Totals()
        made = from_frame(MergeOutcome, frame)
        for outcome in made:
            summary.add(outcome)
            totals.add_merge(outcome)
        totals.add_to(plane)
        job.records.add(SegmentRow, record_rows(made))
    summary.end(round((time.monotonic() - started) * 1000))
    return summary


def ready(
    plane: JobsControlPlane, rules: TieringPolicies, settings: JobsSettings
) -> list[MergeOrder]:
    """Partitions with enough for a segment, those with most bytes first."""
    now_ms = round(time.time() * 1000)
    found = [
        order
        for candidate in plane.merge_candidates()
        if (config := rules.configs.get(candidate.topic_id)) is not None
        and (order := order_of(candidate, config, settings, now_ms)) is not None
    ]
    return sorted(found, key=lambda order: order.pending_bytes, reverse=True)


def with_lineages(job: Job, orders: list[MergeOrder]) -> list[MergeOrder]:
    """Each with the leader epochs of its log: those below B0 as Kafka has them."""
    rows = {row.log_id: row for row in partitions(job.settings)}
    prefixed = [
        WantedLog(row.log_id, row.topic, row.topic_id, row.partition, row.boundary)
        for order in orders
        if (row := rows.get(order.log_id)) is not None and 0 <= row.tiered_start < row.boundary
    ]
    observed = {
        log.log_id: log for log in observed_logs(job.spark, job.settings, prefixed, job.parallelism)
    }
    for log in observed.values():
        if log.problem is not None:
            row = rows[log.log_id]
            job.progress(f"{row.topic}-{row.partition}: no epochs below B0: {log.problem}")
    made = []
    for order in orders:
        if (row := rows.get(order.log_id)) is not None:
            below = observed[order.log_id].lineage if order.log_id in observed else ()
            lineage = suffix_lineage(below, row.boundary, row.boundary_epoch)
            order = replace(order, lineage=lineage)
        made.append(order)
    return made


def order_of(
    candidate: MergeCandidate, config: TieringConfig, settings: JobsSettings, now_ms: int
) -> MergeOrder | None:
    """What to merge of a candidate, or ``None`` while it waits for more."""
    limit = segment_limit(config, settings.tiering_max_segment_bytes)
    pending = PendingMerge(candidate.bytes, candidate.oldest_split_at, candidate.requested)
    if not merge_reason(
        pending,
        config,
        min_segment_bytes=settings.tiering_min_segment_bytes,
        limit=limit,
        now_ms=now_ms,
    ):
        return None
    return MergeOrder(
        topic=candidate.topic,
        topic_id=candidate.topic_id,
        partition=candidate.partition,
        log_id=candidate.log_id,
        pending_bytes=candidate.bytes,
        requested=candidate.requested,
        limit_bytes=limit,
        enough_bytes=min(settings.tiering_min_segment_bytes, limit),
        index_interval_bytes=config.index_interval_bytes,
    )
