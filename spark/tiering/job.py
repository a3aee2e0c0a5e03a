"""Tiering on the driver: ``python -m spark.split``, ``spark.merge``, ``spark.tiering`` for both.

Split: the driver claims and splits a little itself; where there is more, tasks do, each for itself,
until nothing is eligible. Merge: a task for a large partition or for many small ones, each under
its merge token. Any number of drivers may run at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

from spark.common.control_plane import partitions
from spark.common.entry import DryRunOption, Job, Outcome, TopicsOption
from spark.common.kafka_logs import WantedLog, observed_logs
from spark.common.owned import look_at_grown_tables, must_own
from spark.common.record_rows import SegmentRow
from spark.common.rows import from_frame, to_frame
from spark.tiering import frames
from spark.tiering.frames import Share, Slot
from spark.tiering.merge_partition import MergeOrder
from spark.tiering.outcomes import MergeOutcome, SplitOutcome
from spark.tiering.services import FromSettings, OpenServices
from spark.tiering.split_files import SplitOrder, Splitter
from spark.tiering.summary import MergeSummary, SplitSummary, Totals, record_rows
from spark.tiering.whole_objects import MOST_BYTES
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.tiering_model import MergeCandidate
from tideline.domain.tiering import (
    TieringConfig,
    segment_limit,
    suffix_lineage,
    task_shares,
)
from tideline.kafka.topic_policies import TieringPolicies, read_tiering_policies, suffix_topics
from tideline.settings import JobsSettings

SPLIT, MERGE = "tideline-split", "tideline-merge"
"""What the stores see as the application's name."""
CLAIMS_OF_THE_DRIVER = 4
"""So many claims are made and split by the driver before it starts Spark: often that is all, and
Postgres does the work whoever asks."""
MOST_SPLIT_TASKS = 16
"""Each is a connection to Postgres that is busy all the time."""


def tiering(job: Job, topic: TopicsOption = None, dry_run: DryRunOption = False) -> Outcome:
    """Turn aged diskless data into tiered segments: split, then merge."""
    return _run(job, "tideline-tiering", topic or (), dry_run, splits=True, merges=True)


def split(job: Job, topic: TopicsOption = None, dry_run: DryRunOption = False) -> Outcome:
    """Record what of WAL files is to become segments: batches older than local.retention.ms, or of
    a topic that was triggered."""
    return _run(job, SPLIT, topic or (), dry_run, splits=True)


def merge(job: Job, topic: TopicsOption = None, dry_run: DryRunOption = False) -> Outcome:
    """Merge what is split into segments up to segment.bytes, where there is enough for one, the
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
    worker, summary, totals = take_over(job, plane), SplitSummary(), Totals()
    settings, started = job.settings, time.monotonic()
    order = SplitOrder(
        worker,
        max_files=settings.tiering_splitter_max_files_per_run,
        max_batches=settings.tiering_max_batches_per_run,
        claim_ms=settings.tiering_splitter_claim_duration_ms,
        cutoffs=rules.cutoffs(round(time.time() * 1000)),
    )
    for outcome in split_outcomes(job, order, FromSettings(settings, SPLIT)):
        summary.add(outcome)
        totals.add(outcome)
    totals.add_to(plane)
    work = plane.take_tiering_work(worker)
    summary.end(round((time.monotonic() - started) * 1000), work)
    return summary


def split_outcomes(
    job: Job, order: SplitOrder, open_services: OpenServices
) -> Iterator[SplitOutcome]:
    """Of each file that was claimed."""
    with open_services() as services:
        mine = Splitter(services, order)
        for _ in range(CLAIMS_OF_THE_DRIVER):
            if not (some := mine.once()):
                return
            yield from some
    tasks = min(job.parallelism, MOST_SPLIT_TASKS)
    job.progress(f"there is more: {tasks} tasks")
    slots = to_frame(job.spark, Slot, [Slot(n) for n in range(tasks)], tasks)
    yield from from_frame(SplitOutcome, frames.split(slots, order, open_services))


def take_over(job: Job, plane: JobsControlPlane) -> UUID:
    """The worker that claims: the one of the setting's name, with what an earlier run of that name
    left; or nobody else."""
    worker = claim_holder(job.settings)
    if left := plane.release_claims(worker):
        job.progress(f"took {left} claims over from a run that ended")
    plane.take_tiering_work(worker)
    # What split has recorded is new to merge.
    look_at_grown_tables(plane)
    return worker


def claim_holder(settings: JobsSettings) -> UUID:
    """Who claims: the one of the setting's name, or nobody else."""
    name = settings.tiering_claim_holder
    return uuid5(NAMESPACE_OID, name) if name else uuid4()


def eligible(plane: JobsControlPlane, rules: TieringPolicies) -> list[dict[str, object]]:
    """Partitions with something to split now."""
    return [
        {"topic": row.topic, "partition": row.partition, "bytes": row.eligible_bytes}
        for row in plane.tiering_status(cutoffs=rules.cutoffs(round(time.time() * 1000)))
        if row.eligible_bytes and row.topic_id in rules.configs
    ]


def merge_all(job: Job, plane: JobsControlPlane, rules: TieringPolicies) -> MergeSummary:
    """Make a segment of every partition that has enough for one."""
    started, worker = time.monotonic(), take_over(job, plane)
    orders = ready(plane, rules, job.settings)
    summary = MergeSummary(partitions=len(orders))
    if orders:
        orders = with_lineages(job, orders)
        job.progress(f"{len(orders)} partitions, {sum(o.pending_bytes for o in orders)} bytes")
        reads = plane.pending_reads([order.log_id for order in orders])
        whole = reads.cheaper_whole(hosts(job), MOST_BYTES)
        job.progress(f"{reads.runs} runs in {reads.objects} WAL objects, read {_how(whole)}")
        shares = task_shares([order.pending_bytes for order in orders], job.parallelism)
        rows = [Share(tuple(orders[n] for n in share)) for share in shares]
        frame = frames.merge(
            to_frame(job.spark, Share, rows, len(rows)),
            worker,
            FromSettings(job.settings, MERGE),
            claim_ms=job.settings.tiering_splitter_claim_duration_ms,
            whole_objects=whole,
        )
        totals = Totals()
        made = from_frame(MergeOutcome, frame)
        for outcome in made:
            summary.add(outcome)
            totals.add(outcome)
        totals.add_to(plane)
        job.records.add(SegmentRow, record_rows(made))
    work = plane.take_tiering_work(worker)
    summary.end(round((time.monotonic() - started) * 1000), work)
    return summary


def _how(whole: bool) -> str:
    return "whole, once for each host" if whole else "by ranges"


def hosts(job: Job) -> int:
    """How many read for themselves; an executor counts as one. Rather too many where the cluster
    does not say: ranges are right anywhere."""
    context = job.spark.sparkContext
    if str(context.master).startswith("local"):
        return 1
    per_executor = int(context.getConf().get("spark.executor.cores") or 1)
    return max(1, -(-job.parallelism // per_executor))


def ready(
    plane: JobsControlPlane, rules: TieringPolicies, settings: JobsSettings
) -> list[MergeOrder]:
    """Partitions with enough for a segment, those with most bytes first."""
    now_ms = round(time.time() * 1000)
    found = [
        order_of(candidate, config, settings)
        for candidate, config in rules.ready(plane.merge_candidates(), settings, now_ms)
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
    candidate: MergeCandidate, config: TieringConfig, settings: JobsSettings
) -> MergeOrder:
    """What to merge of a candidate that has enough."""
    limit = segment_limit(config, settings.tiering_max_segment_bytes)
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
