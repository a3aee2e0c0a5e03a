"""Postgres goes away and comes back: every call fails typed and in time, then works again."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import psycopg
import pytest

from tests.contract.conftest import Database, PostgresServer
from tests.contract.scenes import PostgresScene, Scene, batch
from tests.contract.test_histories import identity_once_it_answers
from tests.support.waiting import bounded, within
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
        await identity_once_it_answers(plane, 20, but=ControlPlaneUnavailable)
        postgres_server.stop()
        try:
            for _ in range(2):
                async with bounded("the outage to be reported", 20):
                    with pytest.raises(ControlPlaneUnavailable):
                        await plane.identity()
        finally:
            postgres_server.start()
        await identity_once_it_answers(plane, 20, but=ControlPlaneUnavailable)


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
    control_plane: ControlPlane, database: Database
) -> None:
    scene = PostgresScene(control_plane, database.dsn)
    scene.clear()
    process = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    settings = database.settings(postgres_statement_timeout_ms=1_000)
    async with connect(settings, application_name="test") as plane:
        hurried = PostgresScene(plane, database.dsn)
        async with await psycopg.AsyncConnection.connect(database.dsn) as blocker:
            await blocker.execute("SELECT FROM tideline.logs FOR UPDATE")
            with pytest.raises(ControlPlaneUnavailable, match="57014"):
                await hurried.commit(process, batch(log))
    assert await control_plane.high_watermarks([log]) == {log: 0}


async def test_a_listener_hears_of_changes_and_fails_when_it_is_cut_off(
    control_plane: ControlPlane, postgres_server: PostgresServer
) -> None:
    listening = asyncio.Event()
    stream = control_plane.listen([CONTROL_CHANNEL], listening.set)
    first = asyncio.ensure_future(anext(stream))
    await within("the listener", listening.wait())
    name = f"topic-{uuid4()}"
    await control_plane.begin_tracking(
        name, uuid4(), TrackingKind.BORN_DISKLESS, 1, "CreateTime", 1_000
    )
    assert await within("the change to be told", first) == (CONTROL_CHANNEL, f"topic:{name}")
    postgres_server.stop()
    try:
        with pytest.raises(ControlPlaneUnavailable):
            await within("the listener to be cut off", anext(stream))
    finally:
        postgres_server.start()


async def test_commits_send_no_notification(scene: Scene) -> None:
    """A NOTIFY takes a lock that all commits would share."""
    process = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    listening = asyncio.Event()
    stream = scene.plane.listen([CONTROL_CHANNEL], listening.set)
    heard = asyncio.ensure_future(anext(stream))
    await within("the listener", listening.wait())
    await scene.commit(process, batch(log))
    await scene.plane.delete_records(log, 1)
    assert await within("the deletion to be told", heard) == (
        CONTROL_CHANNEL,
        f"log:{log.topic_id}:0",
    )
