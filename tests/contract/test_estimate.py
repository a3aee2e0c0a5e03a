"""What an estimate goes by: how long the newest crossings took, and what a migration writes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest

from tests.contract.conftest import Database
from tests.contract.scenes import GatewayProcess, PostgresScene, Scene
from tests.support.waiting import until
from tests.unit.activities.world import FakeKafka, FakeStore
from tests.whole_migration import RUN, migrate
from tideline.control_plane import ControlPlane, connect
from tideline.control_plane.lease_observer import LeaseObserver
from tideline.domain.estimate import (
    ROWS_ADDED_OF_PARTITION,
    ROWS_ADDED_OF_TOPIC,
    ROWS_CHANGED_OF_PARTITION,
    ROWS_CHANGED_OF_TOPIC,
    Span,
    StepDuration,
    TopicScale,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.messages import TopicRef
from tideline.domain.migration import PHASE_ORDER, Phase, PhaseStatus
from tideline.domain.options import MigrationOptions
from tideline.migration.connections import AckListener, WorkerServices, monotonic_ms

# In s from when a partition was validated: when each phase began and ended.
CROSSED = {
    Phase.VALIDATE: (0.0, 1.0),
    Phase.DRAIN_TRANSACTIONS: (1.0, 2.0),
    Phase.QUIESCE: (3.0, 3.1),
    Phase.ROLL_AND_FLUSH: (3.1, 3.2),
    Phase.SEED_AND_PERSIST: (3.2, 3.5),
    Phase.ZOMBIE_CLEANUP: (3.5, 3.6),
}


async def crossed(
    scene: Scene, log: TopicIdPartition, *, at: float, slower: float = 1.0, ready: float = 0.0
) -> None:
    """Its phases are done as :data:`CROSSED` says, ``slower`` times, from ``at`` on."""
    times = {phase: (at + slower * b, at + slower * e) for phase, (b, e) in CROSSED.items()}
    if ready:
        times[Phase.READINESS] = (ready, ready)
    generation = await scene.plane.next_generation(log)
    for phase, (began, ended) in times.items():
        await scene.plane.record_phase(log, generation, phase, PhaseStatus.DONE, {})
        scene.time_phase(log, phase, began, ended)


def by_step(found: list[StepDuration]) -> dict[str, tuple[int, float, float]]:
    return {d.step: (d.samples, round(d.p50_s, 3), round(d.p90_s, 3)) for d in found}


async def test_nothing_is_observed_before_the_first_partition_has_crossed(scene: Scene) -> None:
    _, (log,) = await scene.migrating_topic([await scene.gateway()])
    await scene.plane.record_phase(log, 0, Phase.VALIDATE, PhaseStatus.DONE, {})
    assert await scene.plane.phase_durations(500) == []


async def test_each_phase_and_span_has_its_median_and_its_90th_percentile(scene: Scene) -> None:
    _, logs = await scene.migrating_topic([await scene.gateway()], 3)
    for number, log in enumerate(logs):
        await crossed(scene, log, at=10.0 * number, slower=number + 1, ready=95.5)
    found = by_step(await scene.plane.phase_durations(500))
    assert found[Phase.VALIDATE] == (3, 2.0, 2.8)
    assert found[Span.CROSSING] == (3, 5.0, 7.0)
    assert found[Span.WRITE_PAUSE] == (3, 1.0, 1.4)
    # The last of them had its B0 at 20 + 3 * 3.5.
    assert found[Span.TIERING] == (1, 65.0, 65.0)
    assert set(found) == {*PHASE_ORDER, *Span}


async def test_only_the_newest_that_have_crossed_are_looked_at(scene: Scene) -> None:
    _, logs = await scene.migrating_topic([await scene.gateway()], 3)
    for number, log in enumerate(logs):
        await crossed(scene, log, at=100.0 * number, slower=3 - number)
    found = by_step(await scene.plane.phase_durations(2))
    assert found[Span.WRITE_PAUSE] == (2, 0.75, 0.95)


async def test_a_topic_of_which_a_partition_still_waits_tells_nothing_of_tiering(
    scene: Scene,
) -> None:
    _, logs = await scene.migrating_topic([await scene.gateway()], 2)
    await crossed(scene, logs[0], at=0.0, ready=50.0)
    await crossed(scene, logs[1], at=0.0)
    found = by_step(await scene.plane.phase_durations(500))
    assert found[Phase.READINESS][0] == 1
    assert Span.TIERING not in found


async def test_a_topic_without_a_prefix_tells_nothing_of_tiering(scene: Scene) -> None:
    log = await scene.hybrid_log(await scene.gateway(), boundary=0)
    generation = (await scene.plane.migration_status())[0].generation
    for phase in PHASE_ORDER:
        await scene.plane.record_phase(log, generation, phase, PhaseStatus.DONE, {})
    found = by_step(await scene.plane.phase_durations(500))
    assert found[Phase.READINESS][0] == 1
    assert Span.TIERING not in found


async def test_what_failed_or_waits_is_no_duration(scene: Scene) -> None:
    _, (log,) = await scene.migrating_topic([await scene.gateway()])
    await crossed(scene, log, at=0.0)
    await scene.plane.record_phase(log, 1, Phase.ZOMBIE_CLEANUP, PhaseStatus.WAITING, {}, "a gap")
    await scene.plane.record_phase(log, 1, Phase.DRAIN_TRANSACTIONS, PhaseStatus.FAILED, {})
    found = by_step(await scene.plane.phase_durations(500))
    assert Phase.ZOMBIE_CLEANUP not in found
    assert Phase.DRAIN_TRANSACTIONS not in found
    assert Span.CROSSING not in found
    assert Span.WRITE_PAUSE in found


def test_however_many_have_crossed_their_phases_are_not_all_read(database: Database) -> None:
    with psycopg.connect(database.dsn, options="-c search_path=tideline") as connection:
        connection.execute(
            "INSERT INTO topics (name, topic_id, kind, status, timestamp_type, max_message_bytes) "
            "VALUES ('many', gen_random_uuid(), 'migrated', 'active', 'CreateTime', 1000)"
        )
        connection.execute(
            "SELECT add_migrating_logs(t, 5000) FROM topics AS t WHERE name = 'many'"
        )
        connection.execute(
            "INSERT INTO migration_phases (log_id, phase, status, generation, started_at, "
            "ended_at) SELECT log_id, phase, 'done', 1, now(), now() + partition * interval '1 s' "
            "FROM logs, unnest(%s::text[]) AS phase WHERE topic_name = 'many'",
            [[phase.value for phase in PHASE_ORDER]],
        )
        connection.execute("ANALYZE migration_phases, logs")
        read = (
            "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables "
            "WHERE relname = 'migration_phases'"
        )
        before = connection.execute(read).fetchone()
        found = connection.execute("SELECT step, samples FROM phase_durations(50)").fetchall()
        after = connection.execute(read).fetchone()
        connection.rollback()
    assert dict(found)[Span.CROSSING] == 50
    assert before is not None
    assert after is not None
    assert after[0] - before[0] <= 2 * 50 * (1 + len(PHASE_ORDER)), "of 35,000"


# Rows


class Acknowledging:
    """A plane beside which every gateway acknowledges each quiesce at once."""

    def __init__(self, plane: ControlPlane, gateways: list[GatewayProcess]) -> None:
        self._plane, self._gateways = plane, gateways

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plane, name)

    async def close_generation(self, log: TopicIdPartition, generation: int, hold_ms: int) -> None:
        await self._plane.close_generation(log, generation, hold_ms)
        for g in self._gateways:
            await self._plane.acknowledge_quiesce(
                g.gateway_id, g.incarnation, log, generation, 99, 100
            )

    async def tracked(self) -> None:
        for g in self._gateways:
            await self._plane.acknowledge_tracking(g.gateway_id, g.incarnation, "orders")


def made(plane: Acknowledging, partitions: int) -> WorkerServices:
    """A worker's services over this plane, with brokers and a bucket as dictionaries."""
    kafka, store = FakeKafka(partitions=partitions), FakeStore()
    (segment,) = store.found
    store.found = [
        replace(segment, log=TopicIdPartition(segment.log.topic_id, p)) for p in range(partitions)
    ]
    settings = SimpleNamespace(migration_parallel_topics=5)
    parts: dict[str, Any] = {
        **dict.fromkeys(("observer", "topics", "admin", "deletion", "reader", "cluster"), kafka),
        **dict.fromkeys(("remote_log", "inventory"), store),
    }
    return WorkerServices(
        settings=cast(Any, settings),
        control_plane=cast(Any, plane),
        tails=cast(Any, kafka.tails),
        acks=AckListener(cast(Any, plane)),
        leases=LeaseObserver(cast(Any, plane), monotonic_ms),
        **parts,
    )


def written(dsn: str) -> dict[str, tuple[int, int]]:
    """Rows added and changed by table since the server began. A connection tells what it has
    counted when it ends: waits until all but this one have."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        others = (
            "SELECT FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        until("others to end", lambda: not connection.execute(others).fetchall(), 20)
        found = connection.execute(
            "SELECT relname, n_tup_ins, n_tup_upd FROM pg_stat_user_tables "
            "WHERE schemaname = 'tideline'"
        ).fetchall()
    return {name: (added, changed) for name, added, changed in found}


@asynccontextmanager
async def asking(database: Database) -> AsyncIterator[PostgresScene]:
    """A scene whose connections are gone at the end."""
    async with connect(database.settings(), application_name="estimate-test") as plane:
        scene = PostgresScene(plane, database.dsn)
        yield scene
        scene.jobs.close()


@pytest.mark.parametrize("partitions", [1, 5])
async def test_a_migration_writes_as_many_rows_as_the_estimate_says(
    database: Database, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    monkeypatch.setattr("activities.topic.current_run", lambda: RUN)
    async with asking(database) as scene:
        scene.clear()
        gateways = [await scene.gateway() for _ in range(2)]
        await scene.plane.attest_cluster("the cluster", "the tests", "there is no broker at all")
    before = written(database.dsn)
    async with asking(database) as scene:
        plane = Acknowledging(scene.plane, gateways)
        services = made(plane, partitions)
        ref = TopicRef("orders", UUID(int=1).hex, partitions)
        await migrate(services, ref, MigrationOptions(), plane.tracked)
        await services.evidence.flush()
    tables = {
        name: (added - before[name][0], changed - before[name][1])
        for name, (added, changed) in written(database.dsn).items()
    }
    scale = TopicScale(partitions, replicas=3, brokers=3, gateways=len(gateways))
    assert sum(added for added, _ in tables.values()) == (
        ROWS_ADDED_OF_TOPIC.of(scale) + partitions * ROWS_ADDED_OF_PARTITION.of(scale)
    ), tables
    not_waited = 1  # readiness was found by the first look: written once
    assert sum(changed for _, changed in tables.values()) == (
        ROWS_CHANGED_OF_TOPIC + partitions * (ROWS_CHANGED_OF_PARTITION - not_waited)
    ), tables
