"""Gauges of migrations under the seeds' names (002 §4.8.1), from what Postgres knows."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Protocol

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from tideline.control_plane.model import PartitionMigrationStatus
from tideline.domain.migration import PHASES, MigrationState, PhaseStatus
from tideline.errors import TidelineError

INTERVAL_S = 5.0


class StatusSource(Protocol):
    """Who knows: the control plane."""

    async def migration_status(self, topic: str | None = None) -> list[PartitionMigrationStatus]:
        """Every partition of every tracked topic."""
        ...


class MigrationGauges:
    """``inkless.migration.*`` and the offset gauges, with dots as underscores."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._states = Gauge(
            "inkless_migration_topics_state",
            "Topics by the least advanced state of their partitions",
            ["state"],
            registry=registry,
        )
        self._progress = Gauge(
            "inkless_migration_topic_progress",
            "Phases that are done, over all partitions, in percent",
            ["topic"],
            registry=registry,
        )
        self._waiting = Gauge(
            "inkless_migration_partitions_waiting",
            "Partitions whose current phase waits, by phase",
            ["topic", "phase"],
            registry=registry,
        )
        self._boundary = Gauge(
            "inkless_diskless_start_offset",
            "B0: the first offset of the diskless suffix",
            ["topic", "partition"],
            registry=registry,
        )

    def update(self, statuses: Iterable[PartitionMigrationStatus]) -> None:
        """Replace every value."""
        by_topic: dict[str, list[PartitionMigrationStatus]] = defaultdict(list)
        for status in statuses:
            by_topic[status.topic].append(status)
        for gauge in (self._progress, self._waiting, self._boundary):
            gauge.clear()
        states: Counter[MigrationState] = Counter()
        for topic, partitions in by_topic.items():
            states[_least_advanced(partitions)] += 1
            self._progress.labels(topic).set(progress_percent(partitions))
            waiting = Counter(
                record.phase
                for status in partitions
                for record in status.phases
                if record.status == PhaseStatus.WAITING
            )
            for phase, count in waiting.items():
                self._waiting.labels(topic, phase).set(count)
            for status in partitions:
                if status.boundary >= 0:
                    partition = str(status.log.partition)
                    self._boundary.labels(topic, partition).set(status.boundary)
        for state in MigrationState:
            self._states.labels(state).set(states[state])


_ADVANCE = (
    MigrationState.TIERED_ONLY,
    MigrationState.MIGRATING,
    MigrationState.HYBRID,
    MigrationState.DISKLESS_ONLY,
)


def _least_advanced(partitions: Iterable[PartitionMigrationStatus]) -> MigrationState:
    return min((status.state for status in partitions), key=_ADVANCE.index)


def progress_percent(partitions: list[PartitionMigrationStatus]) -> float:
    """Phases done of phases to do, 0 to 100."""
    done = sum(
        record.status == PhaseStatus.DONE for status in partitions for record in status.phases
    )
    return 100.0 * done / (len(PHASES) * len(partitions)) if partitions else 0.0


async def keep_updated(gauges: MigrationGauges, source: StatusSource) -> None:
    """Update every few seconds until cancelled; keep the last values while Postgres is away."""
    log = structlog.get_logger()
    while True:
        try:
            gauges.update(await source.migration_status())
        except TidelineError as error:
            log.warning("migration gauges are stale", reason=str(error))
        await asyncio.sleep(INTERVAL_S)
