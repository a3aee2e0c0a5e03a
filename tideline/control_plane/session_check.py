"""Whether a connection is a session of Postgres' own, as it was started.

A pooler in transaction mode lends a server's connection to a client for one transaction. Statements
that were prepared are then another client's, LISTEN hears nothing, and a commit may wait for the
disk as somebody else has set it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from tideline.control_plane.errors import UnfitSession
from tideline.control_plane.session import EXPECTED, given_to

LOOK = (
    b"SELECT pg_backend_pid(), (SELECT coalesce(json_object_agg(name, setting), '{}') "
    b"FROM pg_settings WHERE name = ANY(%s))"
)
_BACKEND = b"SELECT pg_backend_pid()"
_BY_TURNS = (0, 0, 1, 0, 1) * 4
"""Which of two connections is asked: one that is lent the servers' connections by turns has another
one at its second statement, one that is lent the newest shares it with the other. More than once,
since other clients of the pooler ask between."""


def names_looked_at(conninfo: str) -> list[str]:
    return sorted({**given_to(conninfo), **EXPECTED})


def unfit(conninfo: str, in_force: Mapping[str, str]) -> str | None:
    """Why a session that shows ``in_force`` cannot be used; ``None``: it can. What is not shown is
    unknown to this version of Postgres."""
    for name, wanted in given_to(conninfo).items():
        found = in_force.get(name, wanted)
        if found.partition(",")[0].lower() != wanted.lower():
            return (
                f"{name} is {found!r} although the connection was started with {wanted!r}, so "
                f"{_POOLER}"
            )
    for name, wanted in EXPECTED.items():
        if (found := in_force.get(name, wanted)) != wanted:
            return (
                f"{name} is {found!r}, under which Tideline's statements do something else than "
                f"they were written for: ALTER DATABASE and ALTER ROLE … RESET {name}, for Tideline"
            )
    return None


_POOLER = (
    "a pooler in transaction mode, or one that drops what a connection is started with, stands in "
    "between: let the connection string name Postgres itself, or a pooler in session mode that "
    "passes `options` on"
)


def must_be_fit(conninfo: str, connection: psycopg.Connection[Any]) -> None:
    """Raises :class:`UnfitSession`, and what psycopg raises; the connection is closed then."""
    try:
        with connection.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(LOOK, [names_looked_at(conninfo)], prepare=False).fetchone()
        assert row is not None
        judge(conninfo, connection, *row)
        if is_pooled(connection, row[0]):
            must_keep_its_backend(conninfo)
    except BaseException:
        connection.close()
        raise


async def async_must_be_fit(conninfo: str, connection: psycopg.AsyncConnection[Any]) -> None:
    """As :func:`must_be_fit`, of a connection that is its caller's to close."""
    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(LOOK, [names_looked_at(conninfo)], prepare=False)
        row = await cursor.fetchone()
    assert row is not None
    judge(conninfo, connection, *row)
    if is_pooled(connection, row[0]):
        await asyncio.to_thread(must_keep_its_backend, conninfo)


def is_pooled(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], pid: int) -> bool:
    """Whether another one has greeted than the backend ``pid`` that answers."""
    return connection.pgconn.backend_pid != pid


def judge(
    conninfo: str,
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
    pid: int,
    in_force: Mapping[str, str],
) -> None:
    """Raises :class:`UnfitSession` for what :data:`LOOK` has shown."""
    if (why := unfit(conninfo, in_force)) is not None:
        raise UnfitSession(f"{_named(connection)}: {why}")


def must_keep_its_backend(conninfo: str) -> None:
    """Of a pooler: two connections of its clients, asked by turns, have a backend each. Raises
    :class:`UnfitSession`, and what psycopg raises."""
    with (
        closing(psycopg.connect(conninfo, autocommit=True)) as one,
        closing(psycopg.connect(conninfo, autocommit=True)) as other,
    ):
        seen: tuple[set[int], set[int]] = (set(), set())
        for turn in _BY_TURNS:
            seen[turn].update(_backends((one, other)[turn]))
        if len(seen[0] | seen[1]) != 2 or seen[0] & seen[1]:
            raise UnfitSession(
                f"{_named(one)}: two connections are answered by the backends {sorted(seen[0])} "
                f"and {sorted(seen[1])}, so {_POOLER}"
            )


def _backends(connection: psycopg.Connection[Any]) -> Iterator[int]:
    for (pid,) in connection.execute(_BACKEND, prepare=False):
        yield pid


def _named(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> str:
    info = connection.info
    return f"Postgres at {info.host}:{info.port}"
