"""Connections to Postgres: bounded in number and in time, and healed after an outage.

Every operation of the control plane is one call of one SQL function in autocommit, so that a
connection that breaks never leaves a transaction half done: the call happened or it did not.
"""

from __future__ import annotations

import asyncio
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from tideline.control_plane.errors import ControlPlaneUnavailable, translate
from tideline.settings import ControlPlaneSettings

ATTEMPTS = 3
"""A broken connection costs one attempt, a failover in progress the next; a longer outage is the
caller's to show."""


def conninfo(settings: ControlPlaneSettings, application_name: str) -> str:
    """The connection string with the timeouts of ``settings``, in force on the server too."""
    options = {
        "statement_timeout": settings.postgres_statement_timeout_ms,
        "idle_in_transaction_session_timeout": settings.postgres_statement_timeout_ms,
        # Not left to the server's configuration: a commit that a crash can undo would lose B0.
        "synchronous_commit": "on",
    }
    return make_conninfo(
        settings.postgres_dsn.get_secret_value(),
        application_name=application_name,
        connect_timeout=max(2, -(-settings.postgres_connect_timeout_ms // 1000)),
        keepalives=1,
        keepalives_idle=5,
        keepalives_interval=2,
        keepalives_count=3,
        # A server that vanished without a word is noticed in this time.
        tcp_user_timeout=settings.postgres_statement_timeout_ms * 2,
        options=" ".join(f"-c {name}={value}" for name, value in options.items()),
    )


async def _discard_broken(connection: psycopg.AsyncConnection[DictRow]) -> None:
    """Raise if the server has closed an idle connection; costs a local read, no round trip."""
    connection.pgconn.consume_input()


class Pool:
    """A pool whose calls raise the typed errors of :mod:`tideline.control_plane.errors`."""

    def __init__(self, settings: ControlPlaneSettings, application_name: str) -> None:
        self.conninfo = conninfo(settings, application_name)
        self._call_timeout_s = (
            settings.postgres_statement_timeout_ms + settings.postgres_connect_timeout_ms
        ) / 1000
        self._pool: AsyncConnectionPool[psycopg.AsyncConnection[DictRow]] = AsyncConnectionPool(
            self.conninfo,
            connection_class=psycopg.AsyncConnection[DictRow],
            kwargs={"autocommit": True, "row_factory": dict_row, "prepare_threshold": 2},
            min_size=1,
            max_size=settings.postgres_pool_size,
            timeout=settings.postgres_connect_timeout_ms / 1000,
            # Calls that queue for a connection are bounded; the next one is refused at once.
            max_waiting=settings.postgres_pool_size * 64,
            # A failed attempt ends soon; the next caller starts a new one. The pool's own backoff
            # would otherwise grow for as long as the outage and outlast it.
            reconnect_timeout=0.5,
            check=_discard_broken,
            open=False,
        )

    async def open(self) -> None:
        """Start connecting in the background. Does not fail while Postgres is down."""
        await self._pool.open(wait=False)

    async def close(self) -> None:
        await self._pool.close(timeout=2.0)

    async def fetch(
        self, query: LiteralString, *parameters: Any, retry: bool = True
    ) -> list[DictRow]:
        """Run one statement and return its rows.

        ``retry`` repeats it on a transient failure; every SQL function behind it is idempotent.
        Raises :class:`ControlPlaneUnavailable` when the attempts are used up, and the typed
        refusals.
        """
        attempts = AsyncRetrying(
            stop=stop_after_attempt(ATTEMPTS if retry else 1),
            wait=wait_random_exponential(multiplier=0.02, max=0.2),
            retry=retry_if_exception_type(ControlPlaneUnavailable),
            reraise=True,
        )
        async for attempt in attempts:
            with attempt:
                return await self._once(query, parameters)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _once(self, query: LiteralString, parameters: tuple[Any, ...]) -> list[DictRow]:
        try:
            async with (
                asyncio.timeout(self._call_timeout_s),
                self._pool.connection() as connection,
            ):
                cursor = await connection.execute(query, parameters)
                return await cursor.fetchall() if cursor.description else []
        except (psycopg.Error, TimeoutError, OSError) as error:
            raise translate(error) from error
