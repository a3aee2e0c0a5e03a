"""Installation, history and bucket together, over a real Postgres with each role's own rights."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from tests.contract.conftest import Database, PostgresServer
from tests.contract.schema import new_database
from tests.unit.test_ownership import Buckets
from tideline import ownership
from tideline.control_plane import ControlPlane, connect
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.migrate import apply
from tideline.domain.history import HistoryWatch, WrongHistory
from tideline.settings import ControlPlaneSettings, JobsSettings, ObjectStoreSettings
from tideline.worker.history import HistoryKeeper

SETTINGS = ObjectStoreSettings(s3_bucket="wal", s3_tiered_bucket="tiered")


async def cluster_id() -> str:
    return "kafka-1"


async def start(plane: ControlPlane, buckets: Any) -> HistoryWatch:
    history = HistoryWatch()
    await ownership.establish(plane, buckets, SETTINGS, cluster_id, history)
    return history


@pytest.fixture
async def other(postgres_server: PostgresServer) -> AsyncIterator[ControlPlane]:
    """A database of another installation."""
    with new_database(postgres_server) as (_, dsn):
        apply(dsn)
        settings = ControlPlaneSettings.model_validate({"postgres_dsn": dsn})
        async with connect(settings, application_name="other") as plane:
            yield plane


@pytest.mark.parametrize("role", ["tideline_gateway_1", "tideline_worker"])
async def test_each_role_may_write_the_owner_objects_and_another_database_is_refused(
    database: Database, other: ControlPlane, role: str
) -> None:
    buckets = Buckets()
    with psycopg.connect(database.dsn, options="-c search_path=tideline") as admin:
        admin.execute("UPDATE installation SET cluster_id = NULL, halted = NULL")
    async with connect(database.settings(role), application_name="test") as plane:
        assert (await start(plane, buckets)).seen is not None
        await start(plane, buckets)
        assert set(buckets.objects) == {
            ("wal", ownership.OWNER),
            ("tiered", ownership.OWNER),
        }
        with pytest.raises(WrongHistory, match="s3://wal/ belongs to another"):
            await start(other, buckets)


async def test_the_worker_tells_the_fleet_and_a_job_demands_what_its_driver_has_seen(
    database: Database, other: ControlPlane
) -> None:
    buckets: Any = Buckets()
    async with connect(database.settings("tideline_worker"), application_name="test") as plane:
        history = await start(plane, buckets)
        keeper = HistoryKeeper(
            plane, buckets, SETTINGS, history, CollectorRegistry(), position_s=30.0
        )
        for _ in range(keeper.beats_per_position):
            await keeper.beat()
        told = ownership.fleet_position(buckets, SETTINGS)
        assert told == history.seen
    settings = JobsSettings.model_validate(
        {
            "postgres_dsn": database.as_role("tideline_jobs"),
            "kafka_bootstrap": "127.0.0.1:9",
        }
    )
    assert told is not None
    for seen, agrees in ((told, True), (await other.identity(), False)):
        executors: JobsSettings = pickle.loads(pickle.dumps(settings.having_seen(seen)))
        assert executors.seen == seen
        with connect_jobs(executors, application_name="test") as jobs:
            if agrees:
                assert jobs.identity(told).knows
            else:
                with pytest.raises(WrongHistory, match="holds installation"):
                    jobs.identity()
