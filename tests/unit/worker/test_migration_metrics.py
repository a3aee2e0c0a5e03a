"""The gauges say what Postgres says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from tests.support.waiting import within
from tideline.background import cancel_and_wait
from tideline.control_plane.model import (
    MigrationChanges,
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


def everything(statuses: Iterable[PartitionMigrationStatus]) -> MigrationChanges:
    return MigrationChanges("", True, topics=tuple(summarize(statuses)))


def shown(registry: CollectorRegistry) -> set[str]:
    """Every series with its value."""
    return set(generate_latest(registry).decode().splitlines())


summaries = st.builds(
    TopicMigrationSummary,
    topic=st.sampled_from(["orders", "payments", "clicks"]),
    state=st.sampled_from(MigrationState),
    partitions=st.just(2),
    phases_done=st.integers(0, 14),
    waiting=st.dictionaries(st.sampled_from(Phase), st.integers(1, 2), max_size=2),
    since_s=st.dictionaries(st.sampled_from(Phase), st.floats(1.0, 9.0), max_size=2),
    boundaries=st.dictionaries(st.sampled_from(["0", "1"]), st.integers(0, 9)),
)
readings = st.lists(
    st.tuples(
        st.booleans(), st.lists(summaries, unique_by=lambda summary: summary.topic, max_size=3)
    ),
    max_size=8,
)


@given(readings)
def test_what_changed_reading_by_reading_shows_the_series_of_one_whole_reading(
    history: list[tuple[bool, list[TopicMigrationSummary]]],
) -> None:
    step_by_step = CollectorRegistry()
    gauges, before = MigrationGauges(step_by_step), dict[str, TopicMigrationSummary]()
    for whole, reading in history:
        now = {topic.topic: topic for topic in reading}
        names = {name for name in before | now if before.get(name) != now.get(name)}
        told = tuple(topic for topic in reading if whole or topic.topic in names)
        gauges.update(MigrationChanges("", whole, frozenset(names), told))
        before = now
        at_once = CollectorRegistry()
        MigrationGauges(at_once).update(MigrationChanges("", True, topics=tuple(reading)))
        assert shown(step_by_step) == shown(at_once)


def test_a_topic_counts_as_its_least_advanced_partition() -> None:
    registry = CollectorRegistry()
    MigrationGauges(registry).update(
        everything(
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
        MigrationGauges(registry).update(everything([partition(0, state, boundary=boundary)]))
        name = "inkless_migration_topic_progress"
        assert registry.get_sample_value(name, {"topic": "orders"}) == percent


def test_tiered_only_counts_what_is_still_to_migrate() -> None:
    """A fleet whose migration has not begun is not done."""
    registry = CollectorRegistry()
    gauges = MigrationGauges(registry)

    def shown() -> dict[MigrationState, float | None]:
        name = "inkless_migration_topics_state"
        return {s: registry.get_sample_value(name, {"state": s}) for s in MigrationState}

    gauges.update(everything([]))
    assert shown()[MigrationState.TIERED_ONLY] is None, "Kafka was not asked yet"
    gauges.update_tiered(["orders", "payments", "clicks"])
    assert shown()[MigrationState.TIERED_ONLY] == 3
    gauges.update(everything([partition(0, MigrationState.MIGRATING)]))
    assert shown() == {
        MigrationState.TIERED_ONLY: 2,
        MigrationState.MIGRATING: 1,
        MigrationState.HYBRID: 0,
        MigrationState.DISKLESS_ONLY: 0,
    }
    gauges.update(everything([partition(0, MigrationState.TIERED_ONLY)]))
    assert shown()[MigrationState.TIERED_ONLY] == 3, "its migration was aborted"
    gauges.update_tiered(["payments"])
    assert shown()[MigrationState.TIERED_ONLY] == 2


async def test_gauges_that_are_stale_are_logged_and_updated_once_postgres_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = asyncio.Event()

    class Plane:
        away = True

        async def migration_changes(self, since: str | None) -> MigrationChanges:
            if self.away:
                self.away = False
                raise UnreachableError("Postgres is away")
            if since is not None:
                asked.set()
            return MigrationChanges("there", since is None)

    monkeypatch.setattr(metrics, "MIGRATION_EVERY_S", 0.0)
    gauges = MigrationGauges(CollectorRegistry())
    with capture_logs() as logs:
        keeping = asyncio.create_task(metrics.keep_migration_metrics(cast(Any, Plane()), gauges))
        await within("the next question", asked.wait())
        await cancel_and_wait(keeping)
    stale = [entry["reason"] for entry in logs if entry["event"] == "migration gauges are stale"]
    assert stale == ["Postgres is away"]
