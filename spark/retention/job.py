"""Retention of prefix and suffix as one log, for every topic that has a limit.

``python -m spark.retention [--topic T] [--dry-run]``. docs/retention.md says what goes and in which
order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark.common import remote_log
from spark.common.control_plane import partitions
from spark.common.entry import DryRunOption, Job, Outcome, TopicsOption
from spark.common.kafka_logs import ObservedLog, WantedLog, observed_logs
from spark.common.owned import must_own
from spark.common.record_rows import RemovalRow
from spark.common.remote_log import Plan
from spark.common.rows import to_frame
from spark.retention import frames
from spark.retention.frames import LimitedLog
from spark.retention.tasks import RemovalOrder, Removed, carry_out, suffix_units, wal_cuts
from tideline.control_plane.tiering_model import PartitionRow
from tideline.domain.prefix import past_gap
from tideline.domain.retention import gap_before_boundary, log_start
from tideline.domain.topic_configs import RETENTION_BYTES
from tideline.kafka.errors import KafkaError
from tideline.kafka.topic_policies import RetentionPolicies, read_retention_policies, tracked_topics

if TYPE_CHECKING:
    from pyspark.sql import Row

NO_BOUNDARY = 2**62
"""Stands for B0 where a log is observed to its end."""
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
        """Partitions that could not be observed, and why."""
        return {n: o.problem for n, o in self.observed.items() if o.problem is not None}

    def prefix_start(self, row: PartitionRow) -> int:
        """Kafka's log start; B0 once the prefix is gone."""
        found = self.observed.get(row.log_id)
        if found is None:
            return row.boundary
        return past_gap(found.log_start, row.prefix_end, row.boundary)

    def prefix_moved(self, row: PartitionRow) -> bool:
        """Kafka's log start is past what Postgres knows."""
        found = self.observed.get(row.log_id)
        return (
            found is not None
            and found.problem is None
            and has_prefix(row)
            and min(self.prefix_start(row), row.boundary) > row.tiered_start
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


def retention(job: Job, topic: TopicsOption = None, dry_run: DryRunOption = False) -> Outcome:
    """Remove what retention.ms and retention.bytes no longer allow, over prefix and suffix."""
    must_own(job)
    survey = survey_of(job, topic or ())
    planned = plan(job, survey, keep=not dry_run)
    orders = orders_of(survey, planned)
    job.progress(f"{len(orders)} partitions have something to do")
    if dry_run or not orders:
        return outcome(survey, planned, orders, [], dry_run)
    try:
        done = carry_out(job, orders)
    except BaseException:
        job.records.add(RemovalRow, record_rows(survey, planned, orders, None))
        raise
    job.records.add(RemovalRow, record_rows(survey, planned, orders, done))
    return outcome(survey, planned, orders, done, dry_run)


def survey_of(job: Job, topics: Sequence[str]) -> Survey:
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
        wanted_logs = [
            WantedLog(
                row.log_id,
                row.topic,
                row.topic_id,
                row.partition,
                row.prefix_end if row.boundary >= 0 else NO_BOUNDARY,
            )
            for row in to_observe
        ]
        found = observed_logs(job.spark, job.settings, wanted_logs, job.parallelism)
        survey.observed = {log.log_id: log for log in found}
    return survey


def plan(job: Job, survey: Survey, *, keep: bool = True) -> list[Row]:
    """What goes of each limited log, as rows of ``with_targets``; nothing is changed. ``keep``: a
    fold of the metadata for the next run."""
    problems = survey.problems()
    limited = [row for row in survey.limited() if row.log_id not in problems]
    if not limited:
        return []
    job.progress(f"planning {len(limited)} logs")
    now_ms = time.time_ns() // 1_000_000
    rows = [_limited_log(row, survey) for row in limited]
    logs = to_frame(job.spark, LimitedLog, rows, job.parallelism).localCheckpoint()
    # One snapshot of each suffix: read twice, a batch merged in between would count twice.
    suffixes = suffix_units(logs, job.settings).localCheckpoint()
    units = suffixes.where(f"region = {frames.MERGED_REGION}")
    if any(row.log_id in survey.observed for row in limited):
        topics = {row.topic_id for row in limited}
        events = remote_log.folded(job.spark, job.settings, _metadata(job), topics, keep=keep)
        units = units.unionByName(frames.prefix_units(logs, events, now_ms))
    wal = suffixes.where(f"region = {frames.WAL_REGION}")
    wal = wal.selectExpr("log_id", "size_bytes AS wal_bytes")
    reached = frames.segments_to_remove(logs, units, wal, now_ms).localCheckpoint()
    cuts = wal_cuts(reached.where("reaches_wal"), job.settings)
    planned = frames.with_targets(frames.with_wal_cut(reached, cuts))
    return list(
        planned.where("prefix_before IS NOT NULL OR suffix_before IS NOT NULL OR blocked").collect()
    )


def _metadata(job: Job) -> Plan | None:
    """None when tiered storage was never used: Kafka's logs are local then, and Kafka's own."""
    try:
        return remote_log.plan(job.settings)
    except KafkaError:
        return None


def _limited_log(row: PartitionRow, survey: Survey) -> LimitedLog:
    policy = survey.policies.policies[row.topic_id]
    found = survey.observed.get(row.log_id)
    lineage = found.lineage if found is not None else ()
    return LimitedLog(
        row.log_id, row.topic, row.topic_id, row.partition, row.state,
        survey.prefix_start(row), row.boundary, row.prefix_end, row.suffix_start,
        row.high_watermark,
        policy.retention_ms, policy.retention_bytes,
        tuple(e.epoch for e in lineage), tuple(e.start_offset for e in lineage),
    )  # fmt: skip


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
            row.prefix_end,
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


def record_rows(
    survey: Survey,
    planned: Sequence[Row],
    orders: Sequence[RemovalOrder],
    done: Sequence[Removed] | None,
) -> Iterator[RemovalRow]:
    """Every order, for the table ``retention_removals``. ``done``: what became of each; ``None``:
    nobody knows of which."""
    by_log = {row.log_id: row for row in planned}
    results = {} if done is None else {one.log_id: one for one in done}
    for order in orders:
        row, found = survey.rows[order.log_id], by_log.get(order.log_id)
        result = results.get(order.log_id)
        if result is None:
            how = "unknown"
        elif result.problem is not None:
            how = "refused"
        else:
            how = "removed" if order.prefix_before or order.suffix_before else "noted"
        start = log_start(order.prefix_start, row.boundary, row.suffix_start)
        yield RemovalRow(
            row.topic, str(row.topic_id), row.partition, row.state, row.boundary,
            start, start if found is None else found.before_offset,
            order.prefix_before, order.suffix_before,
            found.by_time if found else 0, found.by_size if found else 0,
            found.removed_bytes if found else 0,
            how, None if result is None else result.problem,
        )  # fmt: skip


def _named(row: PartitionRow) -> dict[str, Any]:
    return {"topic": row.topic, "partition": row.partition}


def _partition(
    row: PartitionRow, order: RemovalOrder, planned: Row | None, done: Removed | None
) -> dict[str, Any]:
    start = log_start(order.prefix_start, row.boundary, row.suffix_start)
    return {
        **_named(row),
        "state": row.state,
        "boundary": row.boundary,
        "log_start": start,
        "new_log_start": planned.before_offset if planned is not None else start,
        "prefix_before": order.prefix_before,
        "suffix_before": order.suffix_before,
        "by_time": planned.by_time if planned is not None else 0,
        "by_size": planned.by_size if planned is not None else 0,
        "bytes": planned.removed_bytes if planned is not None else 0,
        "kafka_moved_its_start": order.prefix_moved,
        "done": None if done is None else done.problem is None,
    }
