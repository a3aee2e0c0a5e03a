"""What Postgres refuses is told from a Postgres that does not answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.contract.conftest import Database
from tests.contract.scenes import PostgresScene
from tests.ports import free_port
from tests.support.waiting import lasts_async
from tideline.control_plane import ControlPlane, connect
from tideline.control_plane.errors import (
    ControlPlaneUnavailable,
    LoginRefused,
    translate,
)
from tideline.domain.history import HistoryWatch
from tideline.errors import is_outage
from tideline.gateway.tracking import sync as tracking_sync
from tideline.gateway.tracking.lease import Lease
from tideline.gateway.tracking.snapshot import SnapshotFile
from tideline.gateway.tracking.sync import TrackingSync
from tideline.gateway.tracking.view import TrackingView

QUOTED = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: {}'


async def drained() -> None:
    pass


def tracking(plane: ControlPlane, directory: Path) -> tuple[Lease, TrackingSync]:
    lease = Lease(
        plane, gateway_id=1, broker_id=1, address="here:1", version="0", duration_ms=3_000
    )
    view = TrackingView(lease.valid)
    file = SnapshotFile(directory, 1)
    return lease, TrackingSync(plane, view, lease, file, drain=drained)


async def test_a_retired_gateway_that_starts_again_serves_nothing(
    postgres_scene: PostgresScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its operator has attested that it is cut off: no barrier waits for it."""
    monkeypatch.setattr(tracking_sync, "START_PATIENCE_S", 0.5)
    lease, sync = tracking(postgres_scene.plane, tmp_path)
    await sync.start()
    await sync._write_if_changed()
    await sync.close()
    await lease.release()
    await postgres_scene.plane.retire_gateway(1, "ada")
    _, again = tracking(postgres_scene.plane, tmp_path)
    starting = asyncio.create_task(again.start())
    await lasts_async("who is refused waits", lambda: not starting.done(), 2.0)
    starting.cancel()


@pytest.mark.parametrize("seen", [False, True], ids=["new", "compared"])
@pytest.mark.parametrize("wrong", [{"dbname": "nowhere"}, {"user": "nobody_known"}], ids=str)
async def test_a_server_that_lets_nobody_in_has_refused(
    database: Database, wrong: dict[str, str], seen: bool
) -> None:
    history = HistoryWatch()
    if seen:
        async with connect(database.settings(), application_name="before") as plane:
            history.judge(None, await plane.identity())
    settings = Database(make_conninfo(database.dsn, **wrong)).settings(
        postgres_connect_timeout_ms=1_000
    )
    async with connect(settings, application_name="refused", history=history) as plane:
        with pytest.raises(LoginRefused, match="does not exist") as refused:
            await plane.identity()
        assert not is_outage(refused.value)


async def test_a_right_that_every_connection_needs_is_refused_to_it(database: Database) -> None:
    history = HistoryWatch()
    async with connect(database.settings(), application_name="before") as plane:
        history.judge(None, await plane.identity())
    with psycopg.connect(database.dsn, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS without_rights")
        admin.execute("CREATE ROLE without_rights LOGIN")
    other = Database(make_conninfo(database.dsn, user="without_rights"))
    settings = other.settings(postgres_connect_timeout_ms=1_000)
    async with connect(settings, application_name="refused", history=history) as plane:
        with pytest.raises(LoginRefused, match="permission denied"):
            await plane.identity()


async def test_a_server_that_does_not_answer_has_not_refused() -> None:
    settings = Database(f"host=127.0.0.1 port={free_port()} user=postgres").settings(
        postgres_connect_timeout_ms=300
    )
    async with connect(settings, application_name="away") as plane:
        with pytest.raises(ControlPlaneUnavailable) as away:
            await plane.identity()
    assert is_outage(away.value)


@pytest.mark.parametrize(
    "said",
    [
        "FATAL:  the database system is starting up",
        "FATAL:  the database system is shutting down",
        "FATAL:  sorry, too many clients already",
        'FATAL:  too many connections for role "tideline_gateway"',
        "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
        "Connection refused\n\tIs the server running on that host and accepting connections?",
        "session is read-only",
        "timeout expired",
    ],
)
def test_a_server_that_starts_stops_or_is_full_has_not_refused(said: str) -> None:
    assert is_outage(translate(psycopg.OperationalError(QUOTED.format(said))))


@pytest.mark.parametrize(
    "said",
    [
        'FATAL:  password authentication failed for user "tideline_gateway"',
        "FATAL:  Passwort-Authentifizierung für Benutzer »tideline_gateway« fehlgeschlagen",
        'FATAL:  no pg_hba.conf entry for host "10.0.0.7", user "x", database "y", no encryption',
    ],
)
def test_a_server_that_says_no_has_refused(said: str) -> None:
    found = translate(psycopg.OperationalError(QUOTED.format(said)))
    assert isinstance(found, LoginRefused)
    assert said.removeprefix("FATAL:  ") in str(found)
