"""A Postgres that may have lost commits is told apart from one that has not."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest

from tests.contract.conftest import PASSWORDS, Database, PostgresServer, a_server
from tests.contract.scenes import PostgresScene, batch
from tests.contract.test_pools import waiting
from tests.support.waiting import SOON_S, eventually, within
from tests.unit.gateway.fakes import until
from tideline.background import cancel_and_wait
from tideline.control_plane import ControlPlane, connect, pool
from tideline.control_plane.calls import SERVER_IDENTITY, Function, nothing
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.migrate import apply, provision_roles
from tideline.domain.history import (
    WITNESS_S,
    HistoryWatch,
    ServerIdentity,
    WrongHistory,
    disagreement,
    lacks_commits,
)
from tideline.domain.ids import TopicIdPartition
from tideline.errors import TidelineError


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may promote."""
    directory = Path(tempfile.mkdtemp(prefix="tideline-contract-"))
    server = PostgresServer(directory)
    try:
        server.start()
        apply(server.dsn)
        provision_roles(server.dsn, PASSWORDS)
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


async def topic_of(database: Database) -> TopicIdPartition:
    """A partition with B0, which no gateway makes."""
    async with connect(database.settings(), application_name="owner") as plane:
        _, (log,) = await PostgresScene(plane, database.dsn).diskless_topic()
        return log


async def identity_once_it_answers(
    plane: ControlPlane,
    seconds: float = SOON_S,
    seen: ServerIdentity | None = None,
    but: type[TidelineError] = TidelineError,
) -> ServerIdentity:
    """A busy machine may take longer for a connection than the settings of a test allow: what it
    says ``but`` its identity is passed over."""

    async def answered() -> ServerIdentity | None:
        with suppress(but):
            return await plane.identity(seen)
        return None

    return await eventually("Postgres to answer", answered, seconds)


async def refusal(call: Callable[[], Awaitable[object]]) -> str:
    """Why Postgres is not asked; until that is known each call fails in another way."""

    async def refused() -> str:
        with pytest.raises(TidelineError) as failed:
            await call()
        return str(failed.value) if isinstance(failed.value, WrongHistory) else ""

    return await eventually("another history to be told from this one", refused, 20)


async def test_a_promotion_that_lost_nothing_is_told_from_a_crash_and_from_a_loss(
    own_server: PostgresServer,
) -> None:
    """Schedule 16: the timeline grows, and the beats that were seen are still there."""
    database = Database(own_server.dsn)
    async with connect(database.settings("tideline_worker"), application_name="test") as plane:
        await plane.beat_history()
        before = await plane.identity()
        own_server.stop()
        own_server.start()
        after = await identity_once_it_answers(plane, seen=before)
        assert disagreement(before, after) is None, "a crash takes nothing back"
        assert after.timeline == before.timeline
        own_server.stop()
        own_server.become_standby()
        own_server.start()
        with pytest.raises(TidelineError):
            await plane.identity()
        with psycopg.connect(own_server.dsn, autocommit=True) as admin:
            # Who asks for the progress of migrations before deciding on a promotion is answered.
            for changes in ("migration_changes", "migration_status_changes"):
                read = admin.execute(f"SELECT upto, whole FROM tideline.{changes}(NULL)")
                assert read.fetchall() == [(None, True)]
            admin.execute("SELECT pg_promote()")
        promoted = await identity_once_it_answers(plane, seen=before)
        assert promoted.timeline == before.timeline + 1
        assert "waited for no standby" in str(disagreement(before, promoted))
        assert lacks_commits(before, promoted)
        before = replace(before, waits_for_standby=True)
        assert disagreement(before, promoted) is None
        assert disagreement(promoted, before) is not None
        lost = replace(before, beat=promoted.beat + 1)
        seen = await plane.identity(lost)
        assert "beat" in str(disagreement(lost, seen))


@pytest.fixture
def standby(own_server: PostgresServer) -> Iterator[PostgresServer]:
    """It follows the server, whose commits wait for it."""
    with a_server("tideline-contract-") as server:
        server.follow(own_server)
        own_server.stop()
        own_server.start(synchronous_standby_names="*")
        server.start()
        yield server


async def test_a_primary_that_was_left_behind_and_still_runs_answers_nobody_who_saw_its_successor(
    own_server: PostgresServer, standby: PostgresServer
) -> None:
    """It knows nothing of its successor, and would send consumers back to where it ends."""
    history, settings = HistoryWatch(), Database(own_server.dsn).settings()
    old = pool.Pool(settings, "left-behind", 2, history)
    new = pool.Pool(Database(standby.dsn).settings(), "promoted", 1, history)
    await old.open()
    try:
        seen = await old.call(SERVER_IDENTITY, None, None)
        assert seen.waits_for_standby
        assert await old.call(Function("beat_history", nothing)) is None
        assert history.judge(None, await old.call(SERVER_IDENTITY, None, None)) is None
        with psycopg.connect(own_server.dsn, autocommit=True) as admin:
            admin.execute("SELECT pg_advisory_lock(1)")
            asked = asyncio.create_task(old.fetch(b"SELECT pg_advisory_lock_shared(1)"))
            await until(lambda: waiting(admin, "left-behind") == 1)
            with psycopg.connect(standby.dsn, autocommit=True) as promoting:
                promoting.execute("SELECT pg_promote()")
            await new.open()
            assert await new.fetch(b"SELECT 1 AS one") == [{"one": 1}]
            assert history.seen is not None
            assert history.seen.timeline == seen.timeline + 1
            admin.execute("SELECT pg_advisory_unlock(1)")
        with pytest.raises(TidelineError):
            await asked
        with pytest.raises(TidelineError):
            await old.fetch(b"SELECT 1 AS one")
    finally:
        await old.close()
        await new.close()


async def test_who_listened_before_anything_was_seen_goes_on_listening(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "HEARTBEAT_S", 0.05)
    history = HistoryWatch()
    listening = pool.Pool(database.settings(), "listening", 1, history)
    heard, ready = list[str](), asyncio.Event()

    async def listen() -> None:
        async for _, payload in listening.listen(["news"], ready.set):
            heard.append(payload)

    await listening.open()
    task = asyncio.create_task(listen())
    try:
        await within("the listener", ready.wait(), 20)
        history.judge(None, await listening.call(SERVER_IDENTITY, None, None))
        for number in range(3):
            await asyncio.sleep(2 * pool.HEARTBEAT_S)
            await listening.fetch(b"SELECT pg_notify('news', %s)", [str(number)])
        await until(lambda: heard == ["0", "1", "2"] or task.done())
        assert not task.done()
    finally:
        await cancel_and_wait(task)
        await listening.close()


async def test_who_listens_to_another_history_hears_that_it_cannot_now(database: Database) -> None:
    """Whether it is another one is for those to say who read from it; this one tries again."""
    history = HistoryWatch()
    listening = pool.Pool(database.settings(), "other-history", 1, history)
    await listening.open()
    try:
        now = await listening.call(SERVER_IDENTITY, None, None)
        history.judge(None, replace(now, timeline=now.timeline + 1))
        with pytest.raises(ControlPlaneUnavailable, match="timeline"):
            await anext(listening.listen(["news"], None))
    finally:
        await listening.close()


async def test_a_volume_that_was_rolled_back_gets_no_call(own_server: PostgresServer) -> None:
    """System identifier and timeline are the same, and it has taken more commits than were lost."""
    database, history = Database(own_server.dsn), HistoryWatch()
    settings = database.settings("tideline_worker", postgres_connect_timeout_ms=500)
    async with connect(settings, application_name="test", history=history) as plane:
        await identity_once_it_answers(plane)
        own_server.stop()
        saved = own_server.copy_volume()
        own_server.start()
        await identity_once_it_answers(plane)
        taken_back = await plane.beat_history()
        history.judge(None, await plane.identity())
        own_server.stop()
        own_server.roll_back(saved)
        own_server.start()
        with psycopg.connect(own_server.dsn, autocommit=True) as admin:
            for _ in range(3):
                admin.execute("SELECT tideline.beat_history()")
            admin.execute("CREATE TABLE padding AS SELECT generate_series(1, 100000)")
        why = await refusal(plane.list_gateways)
        assert f"beat {taken_back}" in why
    async with connect(settings, application_name="another") as plane:
        halted = (await plane.identity()).halted
    assert f"beat {taken_back}" in str(halted), "who starts now has not seen that beat"


@pytest.mark.parametrize(
    ("registered_before", "away_s"), [(True, 3600.0), (False, WITNESS_S - 1)],
    ids=["hours later", "a key that is gone, too"],
)  # fmt: skip
async def test_a_volume_without_the_last_commit_gets_none_after_it(
    own_server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    registered_before: bool,
    away_s: float,
) -> None:
    """The commit is newer than every beat and renewal that was seen, and what was lost has been
    written over: nothing but the commit tells. A volume takes a while to come back."""
    database, history = Database(own_server.dsn), HistoryWatch()
    settings = database.settings("tideline_gateway_1", postgres_connect_timeout_ms=500)
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(pool, "clock_s", lambda: clock.now)
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        admin.execute("CREATE TABLE padding AS SELECT generate_series(1, 100000)")
    async with connect(settings, application_name="test", history=history) as plane:
        await identity_once_it_answers(plane)
        scene = PostgresScene(plane, own_server.dsn)
        process = await scene.gateway()
        log = await topic_of(database)
        history.judge(None, await plane.identity())
        await scene.commit(process, batch(log))
        key = "wal/last"
        if registered_before:
            await plane.register_object_keys(process.gateway_id, process.incarnation, [key])
        own_server.stop()
        saved = own_server.copy_volume()
        own_server.start()
        await identity_once_it_answers(plane)
        if not registered_before:
            await plane.register_object_keys(process.gateway_id, process.incarnation, [key])
        (kept,) = await scene.commit(process, batch(log), key=key)
        clock.now += away_s
        own_server.stop()
        own_server.start()
        assert await _end_once_it_answers(plane, log) == kept.high_watermark
        own_server.stop()
        own_server.roll_back(saved)
        own_server.start()
        with psycopg.connect(own_server.dsn, autocommit=True) as admin:
            admin.execute("INSERT INTO padding SELECT generate_series(1, 100000)")
        why = await refusal(lambda: plane.high_watermarks([log]))
        assert "has not got the commit of object" in why
    async with connect(settings, application_name="another") as plane:
        halted = (await plane.identity()).halted
    assert "has not got the commit" in str(halted), "who starts now has acknowledged nothing"


async def test_a_last_commit_that_was_collected_meanwhile_is_not_missed(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs went on while this gateway had no way to Postgres."""
    database, history = Database(own_server.dsn), HistoryWatch()
    settings = database.settings("tideline_gateway_1", postgres_connect_timeout_ms=500)
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(pool, "clock_s", lambda: clock.now)
    async with connect(settings, application_name="test", history=history) as plane:
        await identity_once_it_answers(plane)
        scene = PostgresScene(plane, own_server.dsn)
        process = await scene.gateway()
        log = await topic_of(database)
        history.judge(None, await plane.identity())
        (kept,) = await scene.commit(process, batch(log))
        with psycopg.connect(own_server.dsn, autocommit=True) as admin:
            admin.execute("DELETE FROM tideline.batches")
            admin.execute("DELETE FROM tideline.wal_files WHERE status = 'committed'")
        clock.now += WITNESS_S + 1
        own_server.stop()
        own_server.start()
        assert await _end_once_it_answers(plane, log) == kept.high_watermark
        assert (await plane.identity()).halted is None


async def _end_once_it_answers(plane: ControlPlane, log: TopicIdPartition) -> int:
    async def answered() -> list[int]:
        with suppress(TidelineError):
            return [(await plane.high_watermarks([log]))[log]]
        return []

    (end,) = await eventually("Postgres to answer", answered)
    return end


async def test_a_copy_of_the_rows_on_another_server_is_another_one(
    own_server: PostgresServer, database: Database
) -> None:
    """Two databases, and nobody knows which is right."""
    async with connect(database.settings(), application_name="test") as plane:
        one = await plane.identity()
    async with connect(Database(own_server.dsn).settings(), application_name="test") as plane:
        other = await plane.identity(one)
    assert "installation" in str(disagreement(one, other))
    copied = replace(other, installation_id=one.installation_id, history_id=one.history_id)
    assert "a copy of the rows" in str(disagreement(one, copied))
    assert not lacks_commits(one, other), "nobody halts another's history"
    assert not lacks_commits(one, copied)


async def test_a_server_that_may_lose_commits_in_a_crash_is_named(
    control_plane: ControlPlane,
) -> None:
    """Schedule 16: the servers of these tests run without fsync, and preflight hears of it."""
    found = await control_plane.check_synchronous_commit()
    assert not found
    assert found.settings["synchronous_commit"] == "on", "our own connections always wait"
    assert "fsync or full_page_writes is off" in found.explanation
