"""The gauges say what Postgres says."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tideline.background import cancel_and_wait
from tideline.control_plane.model import (
    PartitionMigrationStatus,
    PhaseRecord,
    TopicMigrationSummary,
    summarize,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.migration import PHASE_ORDER, MigrationState, Phase, PhaseStatus
from tideline.errors import UnreachableError
from tideline.worker import metrics
from tideline.worker.metrics import MigrationGauges

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def partition(number: int, state: MigrationState, *done: Phase, waits: Phase | None = None,
              boundary: int = -1) -> PartitionMigrationStatus:  # fmt: skip
    records = [PhaseRecord(p, PhaseStatus.DONE, 1, NOW, NOW, None, {}) for p in done]
    if waits:
        records.append(PhaseRecord(waits, PhaseStatus.WAITING, 1, NOW, None, "because", {}))
    return PartitionMigrationStatus(
        "orders", TopicIdPartition(UUID(int=1), number), state, 1, False, boundary, 0, -1, False,
        tuple(records),
    )  # fmt: skip


def test_a_topic_counts_as_its_least_advanced_partition() -> None:
    registry = CollectorRegistry()
    MigrationGauges(registry).update(
        summarize(
            [
                partition(0, MigrationState.HYBRID, *PHASE_ORDER, boundary=42),
                partition(
                    1, MigrationState.MIGRATING, Phase.VALIDATE, waits=Phase.DRAIN_TRANSACTIONS
                ),
            ]
        )
    )

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value("inkless_migration_topics_state", state="MIGRATING") == 1
    assert value("inkless_migration_topics_state", state="HYBRID") == 0
    assert value("inkless_migration_boundary", topic="orders", partition="0") == 42
    assert value("inkless_migration_boundary", topic="orders", partition="1") is None
    assert value("inkless_migration_partitions_waiting", topic="orders",
                 phase="drain_transactions") == 1  # fmt: skip
    assert value("inkless_migration_phase_since_timestamp_seconds", topic="orders",
                 phase="drain_transactions") == NOW.timestamp()  # fmt: skip
    progress = value("inkless_migration_topic_progress", topic="orders")
    assert progress is not None
    assert round(progress) == 57


def test_a_topic_that_was_born_diskless_is_done_and_one_that_has_not_begun_is_not() -> None:
    for state, boundary, percent in (
        (MigrationState.DISKLESS_ONLY, 0, 100),
        (MigrationState.MIGRATING, -1, 0),
    ):
        registry = CollectorRegistry()
        MigrationGauges(registry).update(summarize([partition(0, state, boundary=boundary)]))
        name = "inkless_migration_topic_progress"
        assert registry.get_sample_value(name, {"topic": "orders"}) == percent


async def test_gauges_that_are_stale_are_logged_and_updated_once_postgres_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = asyncio.Event()

    class Plane:
        away = True

        async def migration_summary(self) -> list[TopicMigrationSummary]:
            if self.away:
                self.away = False
                raise UnreachableError("Postgres is away")
            asked.set()
            return []

    monkeypatch.setattr(metrics, "MIGRATION_EVERY_S", 0.0)
    monkeypatch.setattr(metrics, "MigrationGauges", lambda: MigrationGauges(CollectorRegistry()))
    with capture_logs() as logs:
        keeping = asyncio.create_task(metrics.keep_migration_metrics(cast(Any, Plane())))
        await asyncio.wait_for(asked.wait(), 10)
        await cancel_and_wait(keeping)
    stale = [entry["reason"] for entry in logs if entry["event"] == "migration gauges are stale"]
    assert stale == ["Postgres is away"]
