"""A call that its caller gave up goes on: nobody asks Postgres to cancel it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import Diagnostic
from pydantic import SecretStr
from tenacity import stop_never, wait_fixed

from tests.contract.conftest import Database, PostgresServer
from tests.proxy import Proxy
from tests.support.waiting import bounded
from tests.unit.gateway.fakes import until
from tideline.control_plane import connect
from tideline.control_plane import pool as pools
from tideline.control_plane.errors import ControlPlaneUnavailable, ends_connection
from tideline.control_plane.model import FindBatchesRequest, TrackingKind
from tideline.control_plane.pool import Pool
from tideline.domain.ids import TopicIdPartition
from tideline.retries import retried
from tideline.settings import ControlPlaneSettings

KEY = 4711
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    " AND wait_event_type = 'Lock' AND datname = current_database()"
)


@contextmanager
def held_lock(dsn: str) -> Iterator[psycopg.Connection[tuple[int]]]:
    """A lock that a call has to wait for, as a commit waits for a standby that is away."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS marks (mark integer)")
        connection.execute("TRUNCATE marks")
        connection.execute("SELECT pg_advisory_lock(%s)", [KEY])
        yield connection


def marks(connection: psycopg.Connection[tuple[int]]) -> int:
    row = connection.execute("SELECT count(*) FROM marks").fetchone()
    assert row is not None
    return row[0]


def waiting(connection: psycopg.Connection[tuple[int]], application: str) -> int:
    row = connection.execute(WAITING, [application]).fetchone()
    assert row is not None
    return row[0]


LOCK_AND_MARK = (
    b"WITH held AS MATERIALIZED (SELECT pg_advisory_xact_lock(4711))"
    b" INSERT INTO marks SELECT 1 FROM held RETURNING mark"
)


async def connect_all(pool: Pool, dsn: str, application: str, count: int) -> None:
    """Each of its connections is made, whatever time that takes, and in use at once."""
    with held_lock(dsn) as holder:
        calls = [asyncio.create_task(pool.fetch(LOCK_AND_MARK, retry=False)) for _ in range(count)]
        await until(lambda: waiting(holder, application) == count)
        holder.execute("SELECT pg_advisory_unlock(%s)", [KEY])
        await asyncio.gather(*calls)


@pytest.mark.parametrize("given_up_by", ["timeout", "cancellation"])
async def test_a_call_that_was_given_up_is_not_cancelled_in_postgres(
    database: Database, given_up_by: str
) -> None:
    """Cancelled while it waits for its standby, its commit would be shown to readers at once."""
    settings = database.settings(postgres_pool_size=2)
    pool = Pool(settings, f"given-up-by-{given_up_by}")
    await pool.open()
    await connect_all(pool, database.dsn, f"given-up-by-{given_up_by}", 1)
    pool._call_timeout_s = 1.0 if given_up_by == "timeout" else 60.0
    with held_lock(database.dsn) as holder:
        call = asyncio.create_task(pool.fetch(LOCK_AND_MARK, retry=False))
        await until(lambda: waiting(holder, f"given-up-by-{given_up_by}") == 1)
        if given_up_by == "cancellation":
            call.cancel()
        with pytest.raises((ControlPlaneUnavailable, asyncio.CancelledError)):
            await call
        assert waiting(holder, f"given-up-by-{given_up_by}") == 1
        holder.execute("SELECT pg_advisory_unlock(%s)", [KEY])
        await until(lambda: marks(holder) == 1)
        assert await pool.fetch(b"SELECT 1 AS one") == [{"one": 1}]
    await pool.close()


async def test_what_is_left_behind_never_outnumbers_the_pool(database: Database) -> None:
    pool = Pool(database.settings(postgres_pool_size=2), "left-behind")
    await pool.open()
    await connect_all(pool, database.dsn, "left-behind", 2)
    pool._call_timeout_s = 1.0
    with held_lock(database.dsn) as holder:
        calls = [pool.fetch(LOCK_AND_MARK, retry=False) for _ in range(6)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {ControlPlaneUnavailable}
        await until(lambda: waiting(holder, "left-behind") == 2)
        holder.execute("SELECT pg_advisory_unlock(%s)", [KEY])
        await until(lambda: marks(holder) == 2)
    await pool.close()


async def test_a_connection_whose_call_never_ends_is_dropped_without_a_word(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session in Postgres goes on, and the pool has a connection again."""
    monkeypatch.setattr(pools, "LINGER_S", 0.1)
    pool = Pool(database.settings(postgres_pool_size=2), "dropped")
    await pool.open()
    await connect_all(pool, database.dsn, "dropped", 2)
    pool._call_timeout_s = 1.0
    with held_lock(database.dsn) as holder:
        stuck = [pool.fetch(LOCK_AND_MARK, retry=False) for _ in range(2)]
        await asyncio.gather(*stuck, return_exceptions=True)
        pool._call_timeout_s = 60.0
        assert await pool.fetch(b"SELECT 1 AS one") == [{"one": 1}]
        await until(lambda: waiting(holder, "dropped") == 2)
        holder.execute("SELECT pg_advisory_unlock(%s)", [KEY])
        await until(lambda: marks(holder) == 2)
    await pool.close()


async def test_a_pool_that_closes_does_not_cancel_what_it_began(database: Database) -> None:
    pool = Pool(database.settings(postgres_pool_size=2), "closing")
    pool._call_timeout_s = 60.0
    await pool.open()
    with held_lock(database.dsn) as holder:
        call = asyncio.create_task(pool.fetch(LOCK_AND_MARK, retry=False))
        await until(lambda: waiting(holder, "closing") == 1)
        await pool.close()
        with pytest.raises(ControlPlaneUnavailable):
            await call
        assert waiting(holder, "closing") == 1
        holder.execute("SELECT pg_advisory_unlock(%s)", [KEY])
        await until(lambda: marks(holder) == 1)


async def test_a_lease_does_not_wait_behind_the_look_ups_of_consumers(database: Database) -> None:
    """With one queue of connections eight slow look-ups were enough to lose it."""
    # No look-up is given up while the test looks.
    settings = database.settings(
        postgres_statement_timeout_ms=600_000, postgres_connect_timeout_ms=600_000
    )
    async with (
        connect(settings, application_name="lanes", in_lanes=True) as plane,
        await psycopg.AsyncConnection.connect(database.dsn) as other,
    ):
        incarnation = uuid4()
        await plane.register_gateway(
            71, broker_id=71, incarnation=incarnation, address="a:1", version="0", lease_ms=3_000
        )
        await plane.begin_tracking(
            "lanes", topic_id := uuid4(), TrackingKind.BORN_DISKLESS, 1, "CreateTime", 1_000_000
        )
        await other.execute("LOCK TABLE tideline.logs IN ACCESS EXCLUSIVE MODE")
        log = TopicIdPartition(topic_id, 0)
        look_ups = [
            asyncio.ensure_future(plane.find_batches([FindBatchesRequest(log, 0, 100)]))
            for _ in range(40)
        ]
        with psycopg.connect(database.dsn, autocommit=True) as looking:
            reads = pools.LANE_SIZES["reads"]
            await until(lambda: waiting(looking, "lanes-reads") == reads)
        async with bounded("a lease to be renewed", 20):
            for _ in range(5):
                await plane.renew_lease(71, incarnation)
        assert not any(one.done() for one in look_ups)
        await other.rollback()
        assert [found.error for (found,) in await asyncio.gather(*look_ups)] == ["NONE"] * 40


@pytest.mark.parametrize("given_up_by", ["timeout", "cancellation"])
async def test_an_outage_of_any_length_ends_with_the_outage(
    postgres_server: PostgresServer, database: Database, given_up_by: str
) -> None:
    """Those who gave up keep no places: with a full queue the pool never connected again."""
    settings = database.settings(postgres_connect_timeout_ms=300)
    pool = Pool(settings, "long-outage", size=1)
    await pool.open()
    gave_up = 0
    places: list[int] = []
    postgres_server.stop()
    try:
        while gave_up < 4 * pools.WAITING_PER_CONNECTION:
            calls = [
                asyncio.create_task(pool.fetch(b"SELECT 1", retry=False))
                for _ in range(pools.WAITING_PER_CONNECTION)
            ]
            if given_up_by == "cancellation":
                await asyncio.sleep(0.1)
                for call in calls:
                    call.cancel()
            async with bounded("the calls to be given up", 10):
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
            expected = (ControlPlaneUnavailable, asyncio.CancelledError)
            assert all(isinstance(outcome, expected) for outcome in outcomes)
            gave_up += len(outcomes)
            places.append(pool._pool.get_stats()["requests_waiting"])
        assert max(places) <= 3 * pools.WAITING_PER_CONNECTION
        # No attempt is under way that could meet the server's return by luck.
        await until(lambda: pool._pool.get_stats()["pool_size"] == 0)
    finally:
        postgres_server.start()

    async with bounded("the outage to end", 10):
        answer = await retried(
            partial(pool.fetch, b"SELECT 1 AS one"),
            ControlPlaneUnavailable,
            wait=wait_fixed(0.05),
            stop=stop_never,
        )
    assert answer == [{"one": 1}]
    await pool.close()


async def test_calls_beyond_the_queue_are_refused_at_once(database: Database) -> None:
    # Nobody leaves the queue while the test looks.
    pool = Pool(database.settings(postgres_connect_timeout_ms=600_000), "queue", size=1)
    await pool.open()
    with held_lock(database.dsn) as holder:
        holding = asyncio.create_task(pool.fetch(LOCK_AND_MARK, retry=False))
        await until(lambda: waiting(holder, "queue") == 1)
        queued = [
            asyncio.create_task(pool.fetch(b"SELECT 1 AS one", retry=False))
            for _ in range(pools.WAITING_PER_CONNECTION)
        ]
        await until(lambda: pool._asking == pools.WAITING_PER_CONNECTION)
        with pytest.raises(ControlPlaneUnavailable, match="already 64 calls wait"):
            await pool.fetch(b"SELECT 1", retry=False)
        holder.execute("SELECT pg_advisory_unlock(%s)", [KEY])
        assert await asyncio.gather(*queued) == [[{"one": 1}]] * pools.WAITING_PER_CONNECTION
        await holding
    await pool.close()


async def end_backends(database: Database, application: str, have: int) -> None:
    """Ends them as a shutdown of the server does, and waits until they have said so."""
    theirs = f"FROM pg_stat_activity WHERE application_name = '{application}'"
    with psycopg.connect(database.dsn, autocommit=True) as admin:
        ended = admin.execute(f"SELECT pg_terminate_backend(pid) {theirs}").fetchall()
        assert len(ended) == have
        count = f"SELECT count(*) {theirs}"
        await until(lambda: admin.execute(count).fetchone() == (0,))


async def test_a_server_that_said_why_it_closed_idle_connections_costs_no_call_minutes_later(
    database: Database,
) -> None:
    """Its last words lie before the end of the stream: both are read before a connection is given,
    however many of them there are and however few attempts the call has."""
    pool = Pool(database.settings(postgres_pool_size=4), "last-words")
    await pool.open()
    try:
        await connect_all(pool, database.dsn, "last-words", 4)
        await end_backends(database, "last-words", 4)
        for _ in range(5):
            assert await pool.fetch(b"SELECT 1 AS one", retry=False) == [{"one": 1}]
    finally:
        await pool.close()


@pytest.fixture
def kept_ends(database: Database) -> Iterator[tuple[Proxy, ControlPlaneSettings]]:
    """A way to the database on which its last words pass and the end after them does not."""
    server = conninfo_to_dict(database.dsn)
    with Proxy(str(server["host"]), int(server["port"] or 5432)) as proxy, proxy.ends_kept():
        dsn = make_conninfo(database.dsn, host="127.0.0.1", port=proxy.port)
        yield proxy, database.settings(postgres_dsn=SecretStr(dsn), postgres_pool_size=4)


async def test_a_server_that_has_said_that_it_ends_gets_no_call_before_it_has(
    database: Database, kept_ends: tuple[Proxy, ControlPlaneSettings]
) -> None:
    """A backend says it, leaves the list of those that live, and closes when it has cleaned up."""
    proxy, settings = kept_ends
    pool = Pool(settings, "slow-ends")
    await pool.open()
    try:
        await connect_all(pool, database.dsn, "slow-ends", 4)
        await end_backends(database, "slow-ends", 4)
        await until(lambda: proxy.kept == 4)
        for _ in range(5):
            assert await pool.fetch(b"SELECT 1 AS one", retry=False) == [{"one": 1}]
    finally:
        await pool.close()


@pytest.mark.parametrize(("state", "ends"), [("57P02", True), ("57014", False), ("01000", False)])
def test_a_warning_ends_a_connection_only_when_it_is_of_a_server_that_stops(
    database: Database, state: str, ends: bool
) -> None:
    """One that stops at once, or crashed beside this one, warns; it ends without another word."""
    said: list[bool] = []

    def hear(words: Diagnostic) -> None:
        said.append(ends_connection(words))

    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.add_notice_handler(hear)
        connection.execute(f"DO $$ BEGIN RAISE WARNING USING ERRCODE = '{state}'; END $$")
    assert said == [ends]
