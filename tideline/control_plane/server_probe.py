"""What an operator wants to know of a Postgres before anything is trusted to it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psycopg

from tideline.control_plane.errors import translate
from tideline.control_plane.migrate import has_this_versions_schema
from tideline.control_plane.pool import conninfo
from tideline.control_plane.session_check import async_must_be_fit
from tideline.settings import ControlPlaneSettings


@dataclass(frozen=True, slots=True)
class ServerProbe:
    version: str
    user: str
    clock_ahead_ms: float
    """Of this machine's clock; unsure by half of the round trip."""
    round_trip_ms: float
    schema_agrees: bool
    """Whether migrations, functions and rights are those of this version."""
    rights: tuple[str, ...]
    """Group roles of Tideline's that the user is a member of."""


async def probe(settings: ControlPlaneSettings, application_name: str) -> ServerProbe:
    """One connection of its own. Raises :class:`tideline.control_plane.ControlPlaneUnavailable`,
    :class:`tideline.control_plane.errors.UnfitSession` among them."""
    given = conninfo(settings, application_name)
    try:
        async with await psycopg.AsyncConnection.connect(given, autocommit=True) as connection:
            await async_must_be_fit(given, connection)
            sent, asked = time.time(), time.monotonic()
            cursor = await connection.execute(
                "SELECT extract(epoch FROM clock_timestamp())::float8, "
                "current_setting('server_version'), session_user"
            )
            row = await cursor.fetchone()
            groups = await connection.execute(
                "SELECT rolname FROM pg_roles WHERE rolname LIKE 'tideline\\_%\\_rights' "
                "AND pg_has_role(session_user, oid, 'MEMBER') ORDER BY rolname"
            )
            rights = tuple(name for (name,) in await groups.fetchall())
            took = time.monotonic() - asked
            agrees = await has_this_versions_schema(connection)
    except (psycopg.Error, OSError, TimeoutError) as error:
        raise translate(error) from error
    assert row is not None
    now, version, user = row
    ahead = now - sent - took / 2
    return ServerProbe(str(version), str(user), ahead * 1000, took * 1000, agrees, rights)
