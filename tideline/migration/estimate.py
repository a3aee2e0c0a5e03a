"""What the estimate of a migration goes by: looked up, a part that does not answer left out."""

from __future__ import annotations

from collections.abc import Sequence

from tideline.control_plane.model import TopicMigrationSummary
from tideline.domain.estimate import (
    LOOKED_AT,
    BrokerIntervals,
    InForce,
    MigrationEstimate,
    StepDuration,
    estimate,
)
from tideline.domain.migration import MigrationState
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
    """``None``: there is no such topic, or it migrates already. What cannot be looked up is taken
    for Kafka's or this project's default."""
    if report.scale is None:
        return None
    return estimate(
        report.scale,
        options,
        await _limits(services, report.topic),
        await _durations(services),
        await _intervals(services),
        await _metadata_partitions(services) if report.scale.tiered else 0,
    )


async def _durations(services: WorkerServices) -> Sequence[StepDuration]:
    try:
        return await services.control_plane.phase_durations(LOOKED_AT)
    except TidelineError:
        return ()


async def _limits(services: WorkerServices, topic: str) -> InForce:
    topics, partitions = services.settings.migration_parallel_topics, None
    try:
        limits = await services.control_plane.migration_limits()
        summaries = await services.control_plane.migration_summary()
    except TidelineError:
        return InForce(topics=topics)
    if limits is not None:
        partitions = limits.partitions
        topics = topics if limits.topics is None else limits.topics
    return InForce(partitions, topics, others=sum(_shares(s, topic) for s in summaries))


def _shares(summary: TopicMigrationSummary, topic: str) -> bool:
    """It has partitions without B0, and so a part of what may cross."""
    return summary.state is MigrationState.MIGRATING and summary.topic != topic


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
