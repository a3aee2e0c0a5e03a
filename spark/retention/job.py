"""Retention of prefix and suffix as one log, for every topic that has a limit.

``python -m spark.retention [--topic T] [--dry-run]``. docs/retention.md says what goes and in which
order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from spark.common import remote_log
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
from spark.common.kafka_logs import ObservedLog, observed_logs
from spark.coverage.tasks import ListedPartition
from spark.retention import frames as logic
from spark.retention.remove_records import RemovalOrder, Removed
from spark.retention.removing import carry_out
from spark.retention.suffixes import suffix_units, wal_cuts
from tideline.control_plane.tiering_model import PartitionRow
from tideline.domain.retention import LogBounds, gap_before_boundary
from tideline.domain.topic_configs import RETENTION_BYTES
from tideline.kafka.errors import KafkaError
from tideline.kafka.topic_policies import RetentionPolicies, read_retention_policies, tracked_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

NO_BOUNDARY = 2**62
"""Stands for B0 where a log is looked at to its end."""
SHOWN = 1_000
"""Partitions and problems that a result names; totals count all of them."""


@dataclass
class Survey:
    """The partitions that retention looks at, and what Kafka says of their logs."""

    rows: dict[int, PartitionRow]
    """By log id: whose topic has a limit, or whose prefix may have moved."""
    policies: RetentionPolicies
    observed: dict[int, ObservedLog] = field(default_factory=dict)

    def limited(self) -> list[PartitionRow]:
        """Partitions whose topic has a limit that is ours to keep."""
        return [row for row in self.rows.values() if has_limit(row, self.policies)]

    def problems(self) -> dict[int, str]:
        """Partitions that could not be looked at, and why."""
        return {n: o.problem for n, o in self.observed.items() if o.problem is not None}

    def prefix_start(self, row: PartitionRow) -> int:
        """Kafka's log start; B0 once the prefix is gone."""
        found = self.observed.get(row.log_id)
        return row.boundary if found is None else found.log_start

    def prefix_moved(self, row: PartitionRow) -> bool:
        """Kafka's log start is past what Postgres knows."""
        found = self.observed.get(row.log_id)
        return (
            found is not None
            and found.problem is None
            and has_prefix(row)
            and min(found.log_start, row.boundary) > row.tiered_start
        )


def has_prefix(row: PartitionRow) -> bool:
    """Whether Kafka may still hold records below B0."""
    return row.state == "HYBRID" and 0 <= row.tiered_start < row.boundary


def has_limit(row: PartitionRow, policies: RetentionPolicies) -> bool:
    """Before B0 time is Kafka's own; size is ours from tracking on (KAFKA-20732)."""
    policy = policies.policies.get(row.topic_id)
    if policy is None or policy.unlimited:
        return False
    if row.boundary >= 0:
        return True
    return RETENTION_BYTES in row.user_configs and policy.retention_bytes >= 0


def retention(topics: Sequence[str], dry_run: bool) -> Callable[[Job], Outcome]:
    """The job's work."""

    def work(job: Job) -> Outcome:
        survey = look(job, topics)
        planned = plan(job, survey)
        orders = orders_of(survey, planned)
        job.progress(f"{len(orders)} partitions have something to do")
        done = [] if dry_run or not orders else carry_out(job, orders)
        return outcome(survey, planned, orders, done, dry_run)

    return work


def look(job: Job, topics: Sequence[str]) -> Survey:
    """Read partitions, limits, and the logs of those that have a prefix."""
    job.progress("reading partitions and limits")
    live = [row for row in partitions(job.settings) if not row.deleted]
    wanted = tracked_topics(topics, live)
    live = [row for row in live if not wanted or row.topic in wanted]
    policies = read_retention_policies(job.settings, live)
    rows = {row.log_id: row for row in live if has_limit(row, policies) or has_prefix(row)}
    to_observe = [row for row in rows.values() if has_prefix(row) or row.boundary < 0]
    survey = Survey(rows, policies)
    if to_observe:
        job.progress(f"asking Kafka for {len(to_observe)} logs")
        listed = [
            (
                ListedPartition(row.log_id, row.topic, row.topic_id, row.partition),
                row.boundary if row.boundary >= 0 else NO_BOUNDARY,
            )
            for row in to_observe
        ]
        found = observed_logs(job.spark, job.settings, listed, job.parallelism)
        survey.observed = {log.log_id: log for log in found}
    return survey


def plan(job: Job, survey: Survey) -> list[Row]:
    """What goes of each limited log, as rows of ``with_targets``; nothing is changed."""
    problems = survey.problems()
    limited = [row for row in survey.limited() if row.log_id not in problems]
    if not limited:
        return []
    job.progress(f"planning {len(limited)} logs")
    now_ms = time.time_ns() // 1_000_000
    logs = job.spark.createDataFrame(
        [_log_row(row, survey) for row in limited], logic.LOGS
    ).repartition(job.parallelism)
    logs = logs.localCheckpoint()
    # One snapshot of each suffix: read twice, a batch merged in between would count twice.
    suffixes = suffix_units(logs, job.settings).localCheckpoint()
    units = suffixes.where(f"region = {logic.MERGED}")
    if (segments := _remote_segments(job, limited, survey)) is not None:
        units = units.unionByName(logic.prefix_units(logs, segments))
    wal = suffixes.where(f"region = {logic.WAL}").selectExpr("log_id", "size_bytes AS wal_bytes")
    reached = logic.segments_to_remove(logs, units, wal, now_ms).localCheckpoint()
    cuts = wal_cuts(reached.where("reaches_wal"), job.settings)
    planned = logic.with_targets(logic.with_wal_cut(reached, cuts))
    return list(
        planned.where("prefix_before IS NOT NULL OR suffix_before IS NOT NULL OR blocked").collect()
    )


def _log_row(row: PartitionRow, survey: Survey) -> tuple[object, ...]:
    policy = survey.policies.policies[row.topic_id]
    found = survey.observed.get(row.log_id)
    lineage = found.lineage if found is not None else ()
    return (
        row.log_id, row.topic, row.topic_id.bytes, row.partition, row.state,
        survey.prefix_start(row), row.boundary, row.suffix_start, row.high_watermark,
        policy.retention_ms, policy.retention_bytes,
        [e.epoch for e in lineage], [e.start_offset for e in lineage],
    )  # fmt: skip


def _remote_segments(job: Job, limited: Sequence[PartitionRow], survey: Survey) -> DataFrame | None:
    """The readable remote segments of the logs that have a prefix; ``None``: there is none."""
    with_prefix = {row.topic_id for row in limited if row.log_id in survey.observed}
    if not with_prefix:
        return None
    try:
        extents = remote_log.extent(job.settings)
    except KafkaError:
        return None  # tiered storage was never used: Kafka's logs are local, and Kafka's own
    topics = job.spark.createDataFrame([(t.bytes,) for t in with_prefix], "topic_id binary")
    events = remote_log.events(job.spark, job.settings, extents).join(topics, "topic_id")
    return logic.readable_segments(events.localCheckpoint())  # used twice, read once


def orders_of(survey: Survey, planned: Sequence[Row]) -> list[RemovalOrder]:
    """What is asked of whom: the plan, and prefixes that Kafka has moved by itself."""
    by_log = {row.log_id: row for row in planned}
    orders = []
    for row in survey.rows.values():
        found = by_log.get(row.log_id)
        order = RemovalOrder(
            row.log_id,
            row.topic,
            row.topic_id,
            row.partition,
            row.boundary,
            survey.prefix_start(row),
            survey.prefix_moved(row),
            None if found is None else found.prefix_before,
            None if found is None else found.suffix_before,
        )
        if order.prefix_moved or order.prefix_before or order.suffix_before:
            orders.append(order)
    return orders


def outcome(
    survey: Survey,
    planned: Sequence[Row],
    orders: Sequence[RemovalOrder],
    done: Sequence[Removed],
    dry_run: bool,
) -> Outcome:
    """The result for people and programs."""
    problems = [
        {**_named(survey.rows[log_id]), "problem": problem, "retriable": True}
        for log_id, problem in survey.problems().items()
        if "no such topic" not in problem
    ]
    problems += [
        {**_named(survey.rows[r.log_id]), "problem": r.problem, "retriable": r.retriable}
        for r in done
        if r.problem is not None
    ]
    results = {r.log_id: r for r in done}
    by_log = {row.log_id: row for row in planned}
    shown = [
        _partition(survey.rows[o.log_id], o, by_log.get(o.log_id), results.get(o.log_id))
        for o in orders
    ]
    held_back = [
        {
            **_named(survey.rows[row.log_id]),
            "reason": gap_before_boundary(row.before_offset, row.boundary),
        }
        for row in planned
        if row.blocked
    ]
    shown.sort(key=lambda entry: -int(entry["bytes"]))
    details: dict[str, object] = {
        "dry_run": dry_run,
        "partitions": len(survey.rows),
        "limited": len(survey.limited()),
        "to_trim": sum(bool(o.prefix_before or o.suffix_before) for o in orders),
        "prefix_starts_observed": sum(o.prefix_moved for o in orders),
        "units_by_time": sum(row.by_time for row in planned),
        "units_by_size": sum(row.by_size for row in planned),
        "bytes": sum(row.removed_bytes for row in planned),
        "removals": shown[:SHOWN],
        "held_back": held_back[:SHOWN],
        "left_alone": dict(list(survey.policies.left_alone.items())[:SHOWN]),
        "problems": problems[:SHOWN],
    }
    failed = [p for p in problems if p["retriable"]]
    if not failed:
        return Outcome(details)
    first = failed[0]
    return Outcome(
        details,
        f"{len(failed)} partitions were not trimmed, the next run tries again; "
        f"{first['topic']}-{first['partition']}: {first['problem']}",
    )


def _named(row: PartitionRow) -> dict[str, Any]:
    return {"topic": row.topic, "partition": row.partition}


def _partition(
    row: PartitionRow, order: RemovalOrder, planned: Row | None, done: Removed | None
) -> dict[str, Any]:
    bounds = LogBounds(order.prefix_start, row.boundary, row.suffix_start, row.high_watermark)
    return {
        **_named(row),
        "state": row.state,
        "boundary": row.boundary,
        "log_start": bounds.log_start,
        "new_log_start": planned.before_offset if planned is not None else bounds.log_start,
        "prefix_before": order.prefix_before,
        "suffix_before": order.suffix_before,
        "by_time": planned.by_time if planned is not None else 0,
        "by_size": planned.by_size if planned is not None else 0,
        "bytes": planned.removed_bytes if planned is not None else 0,
        "kafka_moved_its_start": order.prefix_moved,
        "done": None if done is None else done.problem is None,
    }


def entry(
    topic: TopicsOption = None,
    dry_run: DryRunOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    result: ResultOption = None,
) -> None:
    """Remove what retention.ms and retention.bytes no longer allow, over prefix and suffix."""
    how = launch(master, conf, result)
    raise typer.Exit(run_job("retention", retention(topic or [], dry_run), how))
