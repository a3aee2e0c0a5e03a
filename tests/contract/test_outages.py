"""Postgres goes away and comes back: every call fails typed and in time, then works again."""

from __future__ import annotations

import asyncio
import time
from uuid import uuid4

import psycopg
import pytest

from tests.contract.conftest import Database, PostgresServer
from tests.contract.scenes import PostgresScene, Scene, batch
from tideline.control_plane import CONTROL_CHANNEL, ControlPlane, connect
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.model import TrackingKind
from tideline.domain.history import disagreement


async def test_a_restart_breaks_idle_connections_and_no_call(
    postgres_server: PostgresServer, database: Database
) -> None:
    async with connect(database.settings(), application_name="test") as plane:
        await asyncio.gather(*[plane.identity() for _ in range(8)])
        before = await plane.identity()
        postgres_server.stop()
        postgres_server.start()
        for after in await asyncio.gather(*[plane.identity(before) for _ in range(8)]):
            assert disagreement(before, after) is None


async def test_an_outage_is_reported_in_time_and_ends_by_itself(
    postgres_server: PostgresServer, database: Database
) -> None:
    settings = database.settings(postgres_connect_timeout_ms=300)
    async with connect(settings, application_name="test") as plane:
        await plane.identity()
        postgres_server.stop()
        try:
            for _ in range(2):
                began = time.monotonic()
                with pytest.raises(ControlPlaneUnavailable):
                    await plane.identity()
                assert time.monotonic() - began < 20
        finally:
            postgres_server.start()
        async with asyncio.timeout(20):
            while True:
                try:
                    await plane.identity()
                    break
                except ControlPlaneUnavailable:
                    await asyncio.sleep(0.05)


async def test_connecting_while_postgres_is_down_fails_in_the_calls_only(
    postgres_server: PostgresServer, database: Database
) -> None:
    settings = database.settings(postgres_connect_timeout_ms=300)
    postgres_server.stop()
    try:
        async with connect(settings, application_name="test") as plane:
            with pytest.raises(ControlPlaneUnavailable):
                await plane.identity()
            with pytest.raises(ControlPlaneUnavailable):
                await anext(plane.listen([CONTROL_CHANNEL]))
    finally:
        postgres_server.start()


async def test_a_call_that_waits_for_a_lock_ends_at_the_statement_timeout(
    database: Database,
) -> None:
    settings = database.settings(postgres_statement_timeout_ms=1_000)
    async with connect(settings, application_name="test") as plane:
        scene = PostgresScene(plane, database.dsn)
        scene.clear()
        process = await scene.gateway()
        _, (log,) = await scene.diskless_topic()
        async with await psycopg.AsyncConnection.connect(database.dsn) as blocker:
            await blocker.execute("SELECT FROM tideline.logs FOR UPDATE")
            with pytest.raises(ControlPlaneUnavailable, match="57014"):
                await scene.commit(process, batch(log))
        assert await plane.high_watermarks([log]) == {log: 0}


async def test_a_listener_hears_of_changes_and_fails_when_it_is_cut_off(
    control_plane: ControlPlane, postgres_server: PostgresServer
) -> None:
    listening = asyncio.Event()
    stream = control_plane.listen([CONTROL_CHANNEL], listening.set)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.wait_for(listening.wait(), 10)
    name = f"topic-{uuid4()}"
    await control_plane.begin_tracking(
        name, uuid4(), TrackingKind.BORN_DISKLESS, 1, "CreateTime", 1_000
    )
    assert await asyncio.wait_for(first, 10) == (CONTROL_CHANNEL, f"topic:{name}")
    postgres_server.stop()
    try:
        with pytest.raises(ControlPlaneUnavailable):
            await asyncio.wait_for(anext(stream), 10)
    finally:
        postgres_server.start()


async def test_commits_send_no_notification(scene: Scene) -> None:
    """A NOTIFY takes a lock that all commits would share."""
    process = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    listening = asyncio.Event()
    stream = scene.plane.listen([CONTROL_CHANNEL], listening.set)
    heard = asyncio.ensure_future(anext(stream))
    await asyncio.wait_for(listening.wait(), 10)
    await scene.commit(process, batch(log))
    await scene.plane.delete_records(log, 1)
    assert await asyncio.wait_for(heard, 10) == (CONTROL_CHANNEL, f"log:{log.topic_id}:0")
