"""NOTIFY as a stream, on a connection of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import psycopg
from psycopg import sql

from tideline.control_plane.errors import translate

HEARTBEAT_S = 10.0
"""A silent connection is probed this often: TCP alone may not notice that the server is gone."""


async def listen(
    conninfo: str, channels: Sequence[str], on_listening: Callable[[], None] | None
) -> AsyncIterator[tuple[str, str]]:
    """Yield (channel, payload). Ends only by an error or by being closed."""
    try:
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
            for channel in channels:
                await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            if on_listening is not None:
                on_listening()
            while True:
                async with contextlib.aclosing(connection.notifies(timeout=HEARTBEAT_S)) as notices:
                    async for notice in notices:
                        yield notice.channel, notice.payload
                await connection.execute("SELECT 1")
    except (psycopg.Error, TimeoutError, OSError) as error:
        raise translate(error) from error
