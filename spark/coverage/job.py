"""``python -m spark.coverage``: does remote storage hold the tiered prefix of every partition?

Order of observation: the log starts, then the end of the metadata topic, then the objects, unless
they were seen whole before and the segments have not changed since. What retention removes
meanwhile makes a verdict stricter, never looser. A store that is away fails the
run; it never becomes a verdict. A partition whose tieringComplete would be cleared is observed a
second time first, because retention may have run between two looks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from spark.common import control_plane, kafka_logs, remote_log
from spark.common.code import DIGEST
from spark.common.entry import DryRunOption, Job, Outcome, TopicsOption
from spark.common.kafka_logs import ObservedLog, WantedLog
from spark.common.metadata_topic import RecordReader
from spark.common.owned import must_own
from spark.common.record_rows import VerdictRow
from spark.common.remote_log import Plan
from spark.common.rows import from_frame, to_frame
from spark.coverage.frames import CoveredLog, merged_digests, verdicts
from spark.coverage.judge import CoverageVerdict
from spark.coverage.kept import Memory, Scene, VerdictStore
from spark.coverage.report import CoverageRun, Judged, detail, publish, reason, record_rows
from spark.coverage.tasks import Bucket
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.tiering_model import CoverageLook, NewVerdict, PartitionRow
from tideline.errors import RefusedError
from tideline.object_store.client import ObjectStoreClient
from tideline.object_store.inventory import partition_prefix

AuditOption = Annotated[
    bool,
    typer.Option("--audit", help="List the objects of every partition, whatever was seen before."),
]


@dataclass(frozen=True, slots=True)
class Observation:
    at_ms: int
    """When it began."""
    verdicts: dict[int, CoverageVerdict]
    """By log id."""
    unobserved: dict[int, str]
    """Partitions whose log in Kafka could not be observed, and why. Their last verdict stays."""


def coverage(
    job: Job,
    topic: TopicsOption = None,
    dry_run: DryRunOption = False,
    audit: AuditOption = False,
) -> Outcome:
    """Judge the tiered prefix of every migrated partition and set or clear tieringComplete."""
    must_own(job)
    topics = topic or ()
    targets = [
        row
        for row in control_plane.partitions(job.settings)
        if row.boundary >= 0 and not row.deleted and (not topics or row.topic in topics)
    ]
    if topics and (unknown := sorted(set(topics) - {row.topic for row in targets})):
        raise RefusedError(
            f"topic {unknown[0]!r} has no partition with a B0: nothing of it is to be covered"
        )
    job.progress(f"{len(targets)} partitions with a B0")
    first = observe(
        job, targets, {} if audit else looks(job), keep=not dry_run, keep_verdicts=not topics
    )
    doubted = [
        row
        for row in targets
        if row.tiering_complete
        and (verdict := first.verdicts.get(row.log_id)) is not None
        and not verdict.complete
    ]
    second = Observation(first.at_ms, {}, {})
    if doubted:
        job.progress(f"{len(doubted)} partitions were covered and seem not to be: looking again")
        second = observe(job, doubted, {}, keep=not dry_run)
    twice = {row.log_id for row in doubted}
    unobserved = first.unobserved | second.unobserved
    judged = []
    for row in targets:
        newest = second if row.log_id in twice else first
        if (verdict := newest.verdicts.get(row.log_id)) is not None:
            judged.append(Judged(row, verdict, newest.at_ms))
    recorded = record(job, [] if dry_run else judged)
    summary = CoverageRun(
        run_id=str(job.run_id),
        started_at=job.started_at,
        judged=judged,
        unobserved=[(row, unobserved[row.log_id]) for row in targets if row.log_id in unobserved],
    )
    counts = summary.counts() | recorded
    report = None
    if not dry_run:
        job.progress("writing the report")
        report = publish(job.settings, summary)
        job.records.add(VerdictRow, record_rows(summary))
    job.progress(
        f"{counts['covered']} covered, {counts['not_covered']} not, "
        f"{counts['unobserved']} could not be looked at"
    )
    return Outcome(
        {
            "dry_run": dry_run,
            **counts,
            "report": report,
            "not_covered_partitions": summary.shown(),
        }
    )


def looks(job: Job) -> dict[int, CoverageLook]:
    """By log id what earlier runs found whole and no audit is due for."""
    now_ms = time.time_ns() // 1_000_000
    with connect_jobs(job.settings, application_name=control_plane.APPLICATION) as plane:
        return no_audit_due(plane.coverage_looks(), now_ms, job.settings.coverage_audit_ms)


def no_audit_due(
    looks: Iterable[CoverageLook], now_ms: int, audit_ms: int
) -> dict[int, CoverageLook]:
    """Those of the last ``audit_ms``. One of a time that is to come would be young for ever."""
    return {one.log_id: one for one in looks if now_ms - audit_ms < one.objects_seen_at <= now_ms}


def observe(
    job: Job,
    targets: Sequence[PartitionRow],
    looks: Mapping[int, CoverageLook],
    *,
    keep: bool,
    keep_verdicts: bool = False,
) -> Observation:
    """``looks``: those that may be relied on where segments have not changed since. ``keep``: a
    fold of the metadata for the next run; ``keep_verdicts``: then also these, which are of all
    partitions."""
    at_ms = time.time_ns() // 1_000_000
    if not targets:
        return Observation(at_ms, {}, {})
    spark, tasks = job.spark, job.parallelism
    job.progress("asking the brokers for log starts and leader epochs")
    prefixed = [wanted for row in targets if (wanted := wanted_log(row)) is not None]
    observed = {
        found.log_id: found
        for found in kafka_logs.observed_logs(spark, job.settings, prefixed, tasks)
    }
    unobserved = {o.log_id: o.problem for o in observed.values() if o.problem is not None}
    rows = [row for row in targets if row.log_id not in unobserved]
    needy = any(observed[r.log_id].log_start < r.prefix_end for r in rows if r.prefix_end > 0)
    plan = remote_log.plan(job.settings) if needy else None
    job.progress(
        f"{len(rows)} partitions to judge, {plan.records if plan else 0} metadata records, "
        f"{plan.new_records if plan else 0} of them new"
    )
    root = job.settings.s3_tiered_prefix
    logs = [covered_log(row, observed.get(row.log_id), looks.get(row.log_id), root) for row in rows]
    by_log = judged(job, logs, plan, at_ms, keep=keep, keep_verdicts=keep and keep_verdicts)
    for log_id, verdict in by_log.items():
        if verdict.complete and (one := observed.get(log_id)) and one.unrolled:
            by_log[log_id] = replace(verdict, complete=False, held_back=one.unrolled)
    return Observation(at_ms, by_log, unobserved)


def judged(
    job: Job,
    logs: Sequence[CoveredLog],
    plan: Plan | None,
    at_ms: int,
    *,
    keep: bool,
    keep_verdicts: bool,
) -> dict[int, CoverageVerdict]:
    """By log id. Only those are judged of which something has changed since it was done."""
    spark, settings, tasks = job.spark, job.settings, job.parallelism
    merged = control_plane.read_merged_segments(spark, settings, tasks)
    memory = memory_of(job, plan) if plan is not None else None
    if memory is not None and any(log.seen_digest is not None for log in logs):
        reader = RecordReader(settings)
        memory.recall(reader, at_ms - settings.coverage_audit_ms, at_ms)
    found = memory.unchanged(logs, lambda ids: merged_digests(merged, ids)) if memory else {}
    rest = [log for log in logs if log.log_id not in found]
    job.progress(f"{len(found)} partitions are as they were, {len(rest)} are judged")
    told = remote_log.folds_told(spark)
    new = list[CoverageVerdict]()
    if rest:
        frame = verdicts(
            to_frame(spark, CoveredLog, rest, tasks),
            remote_log.folded(
                spark,
                settings,
                plan,
                {log.topic_id for log in rest},
                keep=keep,
                logs=[(log.topic_id, log.partition) for log in rest] if found else None,
                told=told,
            ),
            merged,
            Bucket(
                ObjectStoreClient(settings), settings.s3_tiered_bucket, settings.s3_endpoint or ""
            ),
            at_ms,
        )
        new = from_frame(CoverageVerdict, frame)
    if memory is not None and keep_verdicts:
        memory.keep(rest, new, told.value)
    return found | {one.log_id: one for one in new}


def memory_of(job: Job, plan: Plan) -> Memory | None:
    """``None`` where nobody could say which Tideline a verdict is of."""
    if not DIGEST:
        job.progress("verdicts are neither taken nor kept: Tideline's modules cannot all be read")
        return None
    settings, of = job.settings, plan.snapshots
    return Memory(
        VerdictStore(of.store, of.bucket, of.root, of.identity.cluster_id),
        Scene(of.identity, settings.s3_endpoint or "", settings.s3_tiered_bucket, DIGEST),
        plan.extents,
        job.progress,
    )


def wanted_log(row: PartitionRow) -> WantedLog | None:
    """What is asked of the partition's log in Kafka; nothing when its prefix is empty."""
    if row.prefix_end <= 0:
        return None
    return WantedLog(
        row.log_id,
        row.topic,
        row.topic_id,
        row.partition,
        row.prefix_end,
        ask_replicas=not row.tiering_complete,
    )


def covered_log(
    row: PartitionRow, found: ObservedLog | None, look: CoverageLook | None, root: str
) -> CoveredLog:
    """What is judged of the partition. ``root``: prefix of the bucket of segments."""
    # The prefix ends at B0, or where an accepted log gap begins: nobody has what is behind it.
    # An end of 0: it is empty, whatever Kafka's log of that name holds.
    start = found.log_start if found is not None else 0
    lineage = found.lineage if found is not None else ()
    # What sets the flag is looked for; what keeps it may rely on an earlier look at the same B0.
    relied_on = row.tiering_complete and look is not None and look.boundary == row.boundary
    return CoveredLog(
        row.log_id,
        row.topic_id,
        row.partition,
        start,
        row.prefix_end,
        row.suffix_start,
        row.merge_frontier,
        tuple(e.epoch for e in lineage),
        tuple(e.start_offset for e in lineage),
        partition_prefix(root, row.topic, row.log),
        look.objects_seen_at if look is not None and relied_on else -1,
        look.objects_digest if look is not None and relied_on else None,
    )


def record(job: Job, judged: Sequence[Judged]) -> dict[str, int]:
    """Write the verdicts; one that came too late changes nothing and fails nothing."""
    counts = {"recorded": 0, "superseded": 0}
    names = {one.row.log_id: one.name for one in judged}
    with connect_jobs(job.settings, application_name=control_plane.APPLICATION) as plane:
        for done in plane.record_coverage([new_verdict(one) for one in judged], str(job.run_id)):
            if done.refused is not None:
                job.progress(f"{names[done.log_id]} moved on meanwhile: {done.refused}")
            counts["recorded" if done.written else "superseded"] += 1
    return counts


def new_verdict(one: Judged) -> NewVerdict:
    row = one.row
    return NewVerdict(
        row.log_id,
        row.topic_id,
        row.partition,
        row.generation,
        row.boundary,
        one.complete,
        reason(one.verdict),
        detail(one.verdict),
        one.observed_at,
        row.tiering_complete,
        one.verdict.objects_seen_at,
        one.verdict.objects_digest,
    )
