"""What the estimate of a migration goes by: looked up, a part that does not answer left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tideline.control_plane.model import TopicMigrationSummary
from tideline.domain.estimate import (
    LOOKED_AT,
    BrokerIntervals,
    InForce,
    MigrationEstimate,
    StepDuration,
    estimate,
)
from tideline.domain.migration import PHASE_ORDER, MigrationState
from tideline.domain.options import MigrationOptions
from tideline.domain.preflight import PreflightReport
from tideline.errors import TidelineError
from tideline.kafka.remote_log_metadata import TOPIC as REMOTE_LOG_METADATA
from tideline.migration.connections import WorkerServices

RETENTION_CHECK = "log.retention.check.interval.ms"
COPY = "remote.log.manager.task.interval.ms"


async def estimate_migration(
    services: WorkerServices, report: PreflightReport, options: MigrationOptions
) -> MigrationEstimate | None:
    """``None``: there is no such topic, or it migrates already. Of what cannot be looked up Kafka's
    or this project's default is taken; that Postgres did not answer is among what is left out."""
    if report.scale is None:
        return None
    durations: Sequence[StepDuration] = ()
    limits, unknown = InForce(topics=services.settings.migration_parallel_topics), ""
    try:
        limits = await _limits(services, report.topic)
        durations = await services.control_plane.phase_durations(LOOKED_AT)
    except TidelineError as error:
        unknown = f"limits, other topics, and what was observed here could not be read: {error}"
    found = estimate(
        report.scale,
        options,
        limits,
        durations,
        await _intervals(services),
        await _metadata_partitions(services) if report.scale.tiered else 0,
    )
    return replace(found, left_out=(unknown, *found.left_out)) if unknown else found


async def _limits(services: WorkerServices, topic: str) -> InForce:
    topics, partitions = services.settings.migration_parallel_topics, None
    limits = await services.control_plane.migration_limits()
    summaries = [s for s in await services.control_plane.migration_summary() if s.topic != topic]
    if limits is not None:
        partitions = limits.partitions
        topics = topics if limits.topics is None else limits.topics
    others = sum(s.state is MigrationState.MIGRATING for s in summaries)
    return InForce(partitions, topics, others, others + sum(map(_is_tiering, summaries)))


def _is_tiering(summary: TopicMigrationSummary) -> bool:
    """It keeps its place until all of its partitions are ready."""
    wanted = len(PHASE_ORDER) * summary.partitions
    return summary.state is MigrationState.HYBRID and summary.phases_done < wanted


async def _intervals(services: WorkerServices) -> BrokerIntervals:
    """Those of one broker: they are configured alike, or nobody knows whose counts."""
    try:
        node = min(await services.cluster.nodes())
        check, copy = [
            await services.topics.broker_config(node, key) for key in (RETENTION_CHECK, COPY)
        ]
    except (TidelineError, ValueError):
        return BrokerIntervals()
    default = BrokerIntervals()
    return BrokerIntervals(
        default.retention_check_s if check is None else int(check) / 1_000,
        default.copy_s if copy is None else int(copy) / 1_000,
    )


async def _metadata_partitions(services: WorkerServices) -> int:
    try:
        found = await services.observer.topic(REMOTE_LOG_METADATA)
    except TidelineError:
        return 0
    return 0 if found is None else len(found.partitions)
