"""Merge split files into tiered segments: ``python -m spark.merge``, or spark-submit.

One task per partition, under the partition's merge token. Any number of drivers may run at once.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from uuid import uuid4

import typer

from spark.common.control_plane import partitions
from spark.common.entry import (
    ConfOption,
    DryRunOption,
    Job,
    MasterOption,
    Outcome,
    ResultOption,
    TopicsOption,
    launch,
    run_job,
)
from spark.common.kafka_logs import observed_logs
from spark.coverage.tasks import ListedPartition
from spark.tiering import merge_frames as logic
from spark.tiering.merge_partition import MergeOrder, MergeOutcome
from spark.tiering.services import FromSettings
from spark.tiering.split_file import Ended
from spark.tiering.totals import Totals
from tideline.control_plane.jobs import JobsControlPlane, connect_jobs
from tideline.control_plane.tiering_model import MergeCandidate
from tideline.domain.tiering import (
    PendingMerge,
    TieringConfig,
    merge_reason,
    segment_limit,
    suffix_lineage,
)
from tideline.kafka.topic_policies import TieringPolicies, read_tiering_policies, suffix_topics
from tideline.settings import JobsSettings

APPLICATION = "tideline-merge"
MOST_TASKS = 4_096
"""One task per partition keeps the cores busy to the end; more tasks than this cost more than
they even out."""
MOST_FAILURES_TOLD = 20


@dataclass
class MergeSummary:
    """What a run of merge did. Sizes in bytes."""

    partitions: int = 0
    """That had enough for a segment."""
    segments: int = 0
    batches: int = 0
    """Rows that are gone from Postgres."""
    records: int = 0
    bytes: int = 0
    split_files: int = 0
    stale: int = 0
    """Segments that another worker, retention or a deletion of the topic made needless."""
    failed: int = 0
    failures: list[dict[str, object]] = field(default_factory=list)
    elapsed_ms: int = 0

    def add(self, outcome: MergeOutcome) -> None:
        """Count one segment."""
        if outcome.ended == Ended.DONE:
            self.segments += 1
            self.batches += outcome.batches
            self.records += outcome.records
            self.bytes += outcome.size_bytes
            self.split_files += outcome.split_files
        elif outcome.ended == Ended.STALE:
            self.stale += 1
        else:
            self.failed += 1
            if len(self.failures) < MOST_FAILURES_TOLD:
                where = {"topic": outcome.topic, "partition": outcome.partition}
                self.failures.append({**where, "error": outcome.error})

    @property
    def complaint(self) -> str | None:
        """Why the run is not good, in one line."""
        if not self.failed:
            return None
        first = self.failures[0]
        return (
            f"{self.failed} segments could not be merged, the first of "
            f"{first['topic']}-{first['partition']}: {first['error']}. They are tried again "
            "later; `tideline tiering status` shows what is parked"
        )


def merge_all(job: Job, plane: JobsControlPlane, rules: TieringPolicies) -> MergeSummary:
    """Make a segment of every partition that has enough for one."""
    started = time.monotonic()
    orders = ready(plane, rules, job.settings)
    summary = MergeSummary(partitions=len(orders))
    if orders:
        orders = with_lineages(job, orders)
        job.progress(f"{len(orders)} partitions, {sum(o.pending_bytes for o in orders)} bytes")
        frame = logic.merge(
            logic.orders_frame(job.spark, orders, MOST_TASKS),
            uuid4(),
            FromSettings(job.settings, APPLICATION),
            claim_ms=job.settings.tiering_splitter_claim_duration_ms,
        )
        totals = Totals()
        for outcome in logic.outcomes(frame):
            summary.add(outcome)
            totals.add_merge(outcome)
        totals.tell(plane)
    summary.elapsed_ms = round((time.monotonic() - started) * 1000)
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
    """Each with the leader epochs of its log: those below B0 as Kafka tells them."""
    rows = {row.log_id: row for row in partitions(job.settings)}
    prefixed = [
        (ListedPartition(row.log_id, row.topic, row.topic_id, row.partition), row.boundary)
        for order in orders
        if (row := rows.get(order.log_id)) is not None and 0 <= row.tiered_start < row.boundary
    ]
    told = {
        log.log_id: log for log in observed_logs(job.spark, job.settings, prefixed, job.parallelism)
    }
    for log in told.values():
        if log.problem is not None:
            row = rows[log.log_id]
            job.progress(f"{row.topic}-{row.partition}: no epochs below B0: {log.problem}")
    made = []
    for order in orders:
        if (row := rows.get(order.log_id)) is not None:
            below = told[order.log_id].lineage if order.log_id in told else ()
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


def work(job: Job, topics: tuple[str, ...] = (), *, dry_run: bool = False) -> Outcome:
    """The whole job."""
    with connect_jobs(job.settings, application_name=APPLICATION) as plane:
        rules = read_tiering_policies(job.settings, suffix_topics(plane, topics))
        job.progress(f"{len(rules.configs)} topics")
        if dry_run:
            orders = ready(plane, rules, job.settings)
            return Outcome({"ready": told(orders), "left_alone": rules.left_alone})
        summary = merge_all(job, plane, rules)
    return Outcome({"merge": asdict(summary), "left_alone": rules.left_alone}, summary.complaint)


def told(orders: list[MergeOrder]) -> list[dict[str, object]]:
    """Partitions that a run would merge."""
    return [{"topic": o.topic, "partition": o.partition, "bytes": o.pending_bytes} for o in orders]


def merge(
    topic: TopicsOption = None,
    dry_run: DryRunOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    result: ResultOption = None,
) -> None:
    """Merge split files into segments up to segment.bytes, where there is enough for one, the
    oldest waits longer than segment.ms, or the topic was triggered."""
    code = run_job(
        "merge",
        lambda job: work(job, tuple(topic or ()), dry_run=dry_run),
        launch(master, conf, result),
    )
    raise typer.Exit(code)
