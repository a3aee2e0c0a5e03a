"""Each role may call the functions of its part, and touch no table."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from psycopg import errors, sql

from tests.contract.conftest import PASSWORDS, Database
from tests.contract.scenes import TABLES, PostgresScene, batch
from tests.contract.tiering import jobs
from tests.unit.kafka.fake_cluster import fake_kafka
from tests.unit.worker.test_reports import Configs, Ends
from tideline.control_plane import connect
from tideline.control_plane.errors import ControlPlaneFailure
from tideline.control_plane.migrate import apply, provision_roles
from tideline.control_plane.model import TopicStatus
from tideline.domain.history import disagreement
from tideline.domain.ids import TopicIdPartition
from tideline.errors import UsageError
from tideline.kafka.topic_identity import TopicIdentity
from tideline.worker.identity import IdentityMetrics
from tideline.worker.reports import ReportKeeper


@pytest.mark.parametrize("role", sorted(PASSWORDS))
def test_no_role_can_touch_a_table(database: Database, role: str) -> None:
    with psycopg.connect(database.as_role(role), autocommit=True) as connection:
        for table in TABLES:
            name = sql.Identifier("tideline", table)
            for query in ("SELECT FROM {}", "DELETE FROM {}", "TRUNCATE {}"):
                with pytest.raises(errors.InsufficientPrivilege):
                    connection.execute(sql.SQL(query).format(name))


@pytest.mark.parametrize("role", sorted(PASSWORDS))
def test_no_role_can_create_or_escalate(database: Database, role: str) -> None:
    with psycopg.connect(database.as_role(role), autocommit=True) as connection:
        for query in (
            "CREATE TABLE tideline.mine (n int)",
            "CREATE ROLE mine",
            "SET ROLE tideline_owner",
            "SELECT tideline.write_boundary(NULL, 0, 0, 0)",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(query.encode())


async def test_the_gateway_commits_but_does_not_set_boundaries(
    postgres_scene: PostgresScene, database: Database
) -> None:
    _, (log,) = await postgres_scene.diskless_topic()
    async with connect(database.settings("tideline_gateway_1"), application_name="test") as plane:
        as_gateway = PostgresScene(plane, database.dsn)
        process = await as_gateway.gateway()
        await as_gateway.commit(process, batch(log))
        seen = await postgres_scene.plane.identity()
        assert disagreement(seen, await plane.identity(seen)) is None
        with pytest.raises(ControlPlaneFailure, match="permission denied"):
            await plane.reset_boundary(log, 0, 0)
        with pytest.raises(ControlPlaneFailure, match="permission denied"):
            await plane.abort_migration(log.topic_id)


async def test_the_worker_migrates_but_does_not_commit(
    postgres_scene: PostgresScene, database: Database
) -> None:
    process = await postgres_scene.gateway()
    async with connect(database.settings("tideline_worker"), application_name="test") as plane:
        name, (log,) = await PostgresScene(plane, database.dsn).tracking_topic()
        await postgres_scene.plane.acknowledge_tracking(
            process.gateway_id, process.incarnation, name
        )
        await plane.activate_topic(name)
        generation = await plane.next_generation(log)
        await plane.close_generation(log, generation, 60_000)
        await postgres_scene.plane.acknowledge_quiesce(
            process.gateway_id, process.incarnation, log, generation, -1, 0
        )
        await PostgresScene(plane, database.dsn).persist(log, 10, generation)
        with pytest.raises(ControlPlaneFailure, match="permission denied"):
            await plane.commit_file(process.gateway_id, process.incarnation, "k", 1, [batch(log)])


@pytest.mark.parametrize("role", sorted(PASSWORDS))
async def test_what_takes_no_generation_is_granted_to_nobody(
    postgres_scene: PostgresScene, database: Database, role: str
) -> None:
    """Calls of seed 000 that nothing of Tideline makes: an attempt that is out of date could."""
    _, (log,) = await postgres_scene.migrating_topic([await postgres_scene.gateway()])
    async with connect(database.settings(role), application_name="test") as plane:
        for call in (
            plane.seed_producer_state(log, []),
            plane.set_diskless_log_start_offset(log, 10, 3),
            plane.get_diskless_log_start_offset(log),
        ):
            with pytest.raises(ControlPlaneFailure, match="permission denied"):
                await call


async def test_jobs_collect_but_do_not_fence(
    postgres_scene: PostgresScene, database: Database
) -> None:
    process = await postgres_scene.gateway()
    with jobs(database, "tideline_jobs") as collector:
        assert collector.prune_batches() == 0
        assert collector.expire_producers(1) == 0
        assert collector.claim_dead_files(1) == []
    async with connect(database.settings("tideline_jobs"), application_name="test") as plane:
        with pytest.raises(ControlPlaneFailure, match="permission denied"):
            await plane.fence_gateway(process.gateway_id, process.incarnation, 0, "no")
        with pytest.raises(ControlPlaneFailure, match="permission denied"):
            await plane.next_generation(TopicIdPartition(process.incarnation, 0))


def test_migrating_and_provisioning_again_change_nothing(database: Database) -> None:
    apply(database.dsn)
    provision_roles(database.dsn, {"tideline_jobs": "jobs-secret"})
    with pytest.raises(UsageError, match="unknown role postgres"):
        provision_roles(database.dsn, {"postgres": "stolen"})


def test_every_function_that_a_role_may_call_pins_its_search_path(database: Database) -> None:
    with psycopg.connect(database.dsn) as connection:
        rows = connection.execute(
            "SELECT p.proname FROM pg_proc AS p "
            "JOIN pg_namespace AS n ON n.oid = p.pronamespace AND n.nspname = 'tideline' "
            "WHERE has_function_privilege('tideline_gateway_1', p.oid, 'EXECUTE') "
            "AND NOT (p.prosecdef AND p.proconfig @> '{\"search_path=tideline, pg_temp\"}')"
        ).fetchall()
    assert rows == []


async def test_a_gateway_asks_the_worker_looks_and_a_topic_is_born_and_buried(
    postgres_scene: PostgresScene, database: Database
) -> None:
    """Each with its own login, before brokers that are fakes."""
    process = await postgres_scene.gateway(1)
    async with (
        connect(database.settings("tideline_gateway_1"), application_name="gateway") as gateway,
        connect(database.settings("tideline_worker"), application_name="worker") as worker,
        fake_kafka() as kafka,
        kafka.client() as cluster,
    ):
        configs: Any = Configs({"new"})
        metrics = IdentityMetrics(CollectorRegistry())
        clock = [0.0]
        identity, ends = TopicIdentity(cluster), Ends(cluster)
        keeper = ReportKeeper(worker, identity, ends, configs, metrics, lambda: clock[0])

        async def acknowledge() -> None:
            await gateway.acknowledge_tracking(1, process.incarnation, "new")
            await keeper.look()

        await gateway.ask_birth("new", 1, "CreateTime", 2_000, None, None, None)
        await keeper.look()
        await acknowledge()
        topic_id = kafka.controller.create("new")
        for _ in range(2):
            await keeper.look()
        tracked = await gateway.tracked_topic("new")
        assert tracked is not None
        assert (tracked.topic_id, tracked.status) == (topic_id, TopicStatus.TRACKING)
        await acknowledge()
        tracked = await gateway.tracked_topic("new")
        assert tracked is not None
        assert tracked.status is TopicStatus.ACTIVE
        await gateway.withdraw_birth("new")
        assert not await gateway.report_deletion(topic_id)
        await keeper.look()
        assert await gateway.tracked_topic("new") is not None, "Kafka has it"
        kafka.controller.delete("new")
        for _ in range(2):
            await keeper.look()
            clock[0] += 1.0
        assert await gateway.report_deletion(topic_id)
        (tombstone,) = await gateway.deleted_topics(60_000, limit=9)
        assert tombstone.deleted_by == "tideline_gateway_1"
