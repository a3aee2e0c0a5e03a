"""Connections to Postgres: bounded in number and in time, and healed after an outage.

Every operation of the control plane is one call of one SQL function in autocommit, so that a
connection that breaks never leaves a transaction half done: the call happened or it did not.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Self, TypeAlias, TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import Diagnostic
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout, TooManyRequests
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_random,
    wait_random_exponential,
)

from tideline.background import spawn
from tideline.control_plane.calls import (
    HAS_COMMITTED,
    OTHERS,
    SERVER_IDENTITY,
    Function,
    mapper,
    parameters,
    statement,
)
from tideline.control_plane.errors import (
    ControlPlaneUnavailable,
    LoginRefused,
    UnfitSession,
    UnknownToThisVersion,
    ends_connection,
    translate,
)
from tideline.control_plane.session import with_session
from tideline.control_plane.session_check import async_must_be_fit, must_be_fit
from tideline.domain.history import HistoryWatch, ServerIdentity, WrongHistory
from tideline.errors import is_outage
from tideline.retries import retried
from tideline.settings import ControlPlaneSettings

HALT = "halt_history"
ATTEMPTS = 3
"""A broken connection costs one attempt, a failover in progress the next; a longer outage is the
caller's to report."""
WAITING_PER_CONNECTION = 64
"""Calls that queue for a connection at most; the next one is refused at once."""
_BETWEEN_ATTEMPTS = wait_random_exponential(multiplier=0.02, max=0.2)
JOBS_STATEMENT_TIMEOUT_MS = 60_000
"""Jobs move many rows in one call: a segment of 100,000 batches takes seconds."""
TURN_S = 600.0
"""How long a task waits for a connection while its role has as many as it may: those who have them
are tasks, which end."""
_ROLE_IS_FULL = "too many connections for role"
"""What libpq tells of it; there is no code before there is a connection. With other words of a
server's own language a task does not wait, and is tried again by Spark."""
_LEFT_BEHIND = "the server that answered was replaced by a promotion meanwhile"
_IN_DOUBT = "the server was promoted, and does not know the object of the last commit"
LINGER_S = 60.0
"""How long a call that its caller gave up may go on before its connection is dropped."""
ENDED_AT_ONCE_S = 0.2
"""Between two attempts while connections are ended as soon as they are made."""
LAST_WORDS = 16
"""Reads of an idle connection at most: a server sends settings and warnings unasked, no more."""
HEARTBEAT_S = 10.0
"""A silent connection is probed this often: TCP alone may not notice that the server is gone."""

LANE_SIZES = {"lease": 2, "commits": 2, "confirm": 2, "reads": 4, OTHERS: 3}
"""Connections of a gateway at most, beside the one that listens (docs/operating.md)."""

R = TypeVar("R")


class Connection(psycopg.AsyncConnection[DictRow]):
    """Keeps whether the server has said that it ends. A server that shuts down says so before it
    closes, by milliseconds or, while it dies slowly, by more."""

    is_ending = False
    timeline = -1
    """Of its server when it was compared with what had been seen; -1: nothing had been."""

    def hear(self, said: Diagnostic) -> None:
        """What the server said unasked."""
        self.is_ending |= ends_connection(said)


Connections: TypeAlias = AsyncConnectionPool[Connection]


def conninfo(settings: ControlPlaneSettings, application_name: str) -> str:
    """The connection string with the timeouts of ``settings``, in force on the server too."""
    timeouts = {
        "statement_timeout": settings.postgres_statement_timeout_ms,
        "idle_in_transaction_session_timeout": settings.postgres_statement_timeout_ms,
    }
    dsn = settings.postgres_dsn.get_secret_value()
    return make_conninfo(
        with_session(dsn, timeouts),
        # Of several hosts the primary: a standby answers with what was true a while ago.
        target_session_attrs=conninfo_to_dict(dsn).get("target_session_attrs") or "read-write",
        application_name=application_name,
        connect_timeout=max(2, -(-settings.postgres_connect_timeout_ms // 1000)),
        keepalives=1,
        keepalives_idle=5,
        keepalives_interval=2,
        keepalives_count=3,
        # A server that vanished without a word is noticed in this time.
        tcp_user_timeout=settings.postgres_statement_timeout_ms * 2,
    )


def clock_s() -> float:
    """Goes on while this machine sleeps, as those do who collect objects meanwhile."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class _Attempts(stop_after_attempt):
    """So many at most; what is refused is not tried again at once."""

    def __call__(self, retry_state: RetryCallState) -> bool:
        failed = retry_state.outcome.exception() if retry_state.outcome is not None else None
        return not is_outage(failed) or super().__call__(retry_state)


def _is_over(connection: Connection) -> bool:
    """Whether the server has closed an idle connection, or said that it will; costs local reads, no
    round trip. One read may show the last words alone: the end comes after them."""
    unread = select.poll()
    try:
        unread.register(connection.fileno(), select.POLLIN)
        for _ in range(LAST_WORDS):
            connection.pgconn.consume_input()
            connection.pgconn.is_busy()  # hands what was read to those who hear
            if connection.is_ending:
                return True
            if not unread.poll(0):
                return False
    except psycopg.Error:
        pass
    return True


async def _given_up(pool: Connections, connection: Connection) -> None:
    await connection.close()
    await pool.putconn(connection)


def _drop(connection: Connection) -> None:
    """End the connection as a broken network would: nothing is said to the server."""
    with contextlib.suppress(psycopg.Error, OSError):
        duplicate = os.dup(connection.fileno())
        with socket.socket(fileno=duplicate) as both:
            both.shutdown(socket.SHUT_RDWR)


class Pool:
    """A pool for an event loop. Its calls raise the typed errors of
    :mod:`tideline.control_plane.errors`.

    A call that was sent is never cancelled, whatever becomes of its caller: Postgres takes a
    CancelRequest, while a commit waits for its synchronous standby, for "do not wait", and shows
    the commit to readers although a failover would undo it (``SyncRepWaitForLSN``). So the call
    goes on, and keeps its connection: no more of them can be left behind than the pool is large.
    """

    def __init__(
        self,
        settings: ControlPlaneSettings,
        application_name: str,
        size: int | None = None,
        history: HistoryWatch | None = None,
    ) -> None:
        """``size``: connections at most; ``postgres_pool_size`` where it is not given.
        ``history``: every new connection is compared with what was seen in it."""
        self._history = history or HistoryWatch()
        size = settings.postgres_pool_size if size is None else size
        self._conninfo = conninfo(settings, application_name)
        self._call_timeout_s = (
            settings.postgres_statement_timeout_ms + settings.postgres_connect_timeout_ms
        ) / 1000
        self._size = size
        self._refused: LoginRefused | None = None
        """Why Postgres let nobody in at the last attempt; ``None``: it did, or did not answer."""
        self._connect_timeout_s = settings.postgres_connect_timeout_ms / 1000
        self._asking = 0
        """Calls that wait for a connection."""
        self._pool = self._connections()
        self._calls: dict[asyncio.Task[list[DictRow]], Connection] = {}

    def _connections(self) -> Connections:
        tried = self._tried

        class Heard(Connection):
            """psycopg's pool keeps to itself why it has no connection."""

            @classmethod
            async def connect(cls, *given: Any, **named: Any) -> Self:
                try:
                    return await super().connect(*given, **named)
                except psycopg.Error as error:
                    tried(error)
                    raise

        return AsyncConnectionPool(
            self._conninfo,
            connection_class=Heard,
            kwargs={"autocommit": True, "row_factory": dict_row, "prepare_threshold": 2},
            min_size=1,
            max_size=self._size,
            timeout=self._connect_timeout_s,
            # A failed attempt ends soon; the next caller starts a new one. The pool's own backoff
            # would otherwise grow for as long as the outage and outlast it.
            reconnect_timeout=0.5,
            configure=self._begin,
            open=False,
        )

    async def open(self) -> None:
        """Start connecting in the background. Does not fail while Postgres is down."""
        await self._pool.open(wait=False)

    async def _begin(self, connection: Connection) -> None:
        """Bounded, and closed if it ends badly: a server that was left behind does not answer what
        halts it, and psycopg's pool only lets go of what it is not to have."""
        connection.add_notice_handler(connection.hear)
        try:
            async with asyncio.timeout(self._call_timeout_s):
                await async_must_be_fit(self._conninfo, connection)
                await self._compare(connection)
        except BaseException as error:
            if isinstance(error, UnfitSession):
                self._refused = error
            elif isinstance(error, psycopg.Error):
                self._tried(error)
            await connection.close()
            raise
        self._refused = None

    def _tried(self, error: psycopg.Error) -> None:
        """No connection was opened: whether that is a refusal."""
        found = translate(error)
        self._refused = None if is_outage(found) else LoginRefused(str(found))

    async def _compare(self, connection: Connection) -> None:
        """Another server, or one that has lost commits, gets no call but the one that halts its
        history."""

        async def identity(seen: ServerIdentity) -> ServerIdentity:
            now = SERVER_IDENTITY.read(await fetched(SERVER_IDENTITY.name, seen.beat, seen.token))
            connection.timeline = now.timeline
            return now

        async def has_committed(key: str) -> bool | None:
            return HAS_COMMITTED.read(await fetched(HAS_COMMITTED.name, key))

        async def fetched(name: str, *given: object) -> list[DictRow]:
            query = statement(name, len(given))
            return await (await connection.execute(query, given, prepare=False)).fetchall()

        if not await self._history.compare(
            identity, has_committed, partial(fetched, HALT), clock_s
        ):
            # Until then this gateway has not shown its last commit, so that it does not renew.
            raise psycopg.OperationalError(_IN_DOUBT)

    def _is_left_behind(self, connection: Connection) -> bool:
        """Whether another server has been promoted since: the connection's own may be cut off from
        all others and still answer, with what was true then."""
        seen = self._history.seen
        return seen is not None and connection.timeline < seen.timeline

    def acknowledged(self, object_key: str) -> None:
        """See :meth:`tideline.domain.history.HistoryWatch.acknowledged`."""
        self._history.acknowledged(object_key, clock_s())

    async def close(self) -> None:
        """Drop what is still under way; Postgres ends it as it would have ended."""
        for connection in self._calls.values():
            _drop(connection)
        if self._calls:
            await asyncio.wait(self._calls, timeout=2.0)
        await self._pool.close(timeout=2.0)

    async def call(self, function: Function[R], *arguments: object) -> R:
        """What the function answers.

        It is repeated on a transient failure; every SQL function is idempotent. Raises
        :class:`ControlPlaneUnavailable` when the attempts are used up, and the typed refusals.
        """
        given = parameters(arguments)
        query = statement(function.name, len(given))
        found = await self.fetch(query, given, retry=function.retry)
        try:
            if function.many:
                return await asyncio.to_thread(function.read, found)
            return function.read(found)
        except ValueError as error:
            raise UnknownToThisVersion(
                f"{function.name} answered what this version does not know ({error}): upgrade this "
                "process to the version of those that write it"
            ) from error

    async def fetch(
        self, query: bytes, given: Sequence[object] = (), *, retry: bool = True
    ) -> list[DictRow]:
        """The rows of one statement, as :meth:`call` repeats it and raises."""
        return await retried(
            partial(self._once, query, given),
            ControlPlaneUnavailable,
            wait=_BETWEEN_ATTEMPTS,
            stop=_Attempts(ATTEMPTS if retry else 1),
        )

    async def _once(self, query: bytes, given: Sequence[object]) -> list[DictRow]:
        try:
            async with asyncio.timeout(self._call_timeout_s):
                pool, connection = await self._connection()
                call = spawn(self._run(pool, connection, query, given), "sql-call")
                self._calls[call] = connection
                call.add_done_callback(self._ended)
                rows = await self._not_cancelled(call)
                if connection.timeline >= 0 and self._is_left_behind(connection):
                    raise psycopg.OperationalError(_LEFT_BEHIND)
                return rows
        except PoolTimeout as error:
            if (why := self._history.refused) is not None:
                raise WrongHistory(f"Postgres is not the one that was seen: {why}") from error
            if self._refused is not None:
                raise type(self._refused)(str(self._refused)) from error
            raise translate(error) from error
        except (psycopg.Error, TimeoutError, OSError) as error:
            raise translate(error) from error

    async def _connection(self) -> tuple[Connections, Connection]:
        """A connection, and whose it is. Calls in the queue are counted here: psycopg's own bound
        counts those too that have given up, until a connection comes, and beyond the bound it no
        longer tries to connect, so that an outage which fills the queue would have no end."""
        bound = self._size * WAITING_PER_CONNECTION
        if self._asking >= bound:
            raise TooManyRequests(f"already {self._asking} calls wait for one")
        if self._pool.get_stats()["requests_waiting"] >= 2 * bound:
            await self._forget_who_gave_up()
        self._asking += 1
        try:
            pool, over = self._pool, 0
            # Each that is over is replaced; the pool's own ``check`` waits a second before it looks
            # at the next, and longer before each further one. New ones that are over are another
            # thing: somebody ends them, or no server is there but the one that was left.
            while _is_over(connection := await pool.getconn()) or self._is_left_behind(connection):
                await asyncio.shield(spawn(_given_up(pool, connection), "ended-connection"))
                over += 1
                if over > self._size:
                    await asyncio.sleep(ENDED_AT_ONCE_S)
            return pool, connection
        finally:
            self._asking -= 1

    async def _forget_who_gave_up(self) -> None:
        """Their places in the queue would be kept for as long as the outage. While a connection is
        in use they stay: it comes back, or is dropped, and no more than the size are ever open."""
        if self._calls or self._pool.closed:
            return
        forgotten, self._pool = self._pool, self._connections()
        await self._pool.open(wait=False)
        spawn(forgotten.close(timeout=self._call_timeout_s), "forgotten-queue")

    async def _run(
        self,
        pool: Connections,
        connection: Connection,
        query: bytes,
        given: Sequence[object],
    ) -> list[DictRow]:
        try:
            cursor = await connection.execute(query, given)
            return await cursor.fetchall()
        finally:
            await pool.putconn(connection)

    async def _not_cancelled(self, call: asyncio.Task[list[DictRow]]) -> list[DictRow]:
        """The result of ``call``, which goes on when the caller does not."""
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if not call.done():
                asyncio.get_running_loop().call_later(LINGER_S, self._drop_call, call)
            raise

    def _ended(self, call: asyncio.Task[list[DictRow]]) -> None:
        self._calls.pop(call, None)
        if not call.cancelled():
            call.exception()  # a caller that has given up does not look

    def _drop_call(self, call: asyncio.Task[list[DictRow]]) -> None:
        if (connection := self._calls.get(call)) is not None:
            _drop(connection)

    async def listen(
        self, channels: Sequence[str], on_listening: Callable[[], None] | None
    ) -> AsyncIterator[tuple[str, str]]:
        """(channel, payload) of every NOTIFY, on a connection of its own. Ends only by
        :class:`ControlPlaneUnavailable` or by being closed: whether Postgres is another one is for
        those to say who read from it."""
        try:
            async with await Connection.connect(
                self._conninfo, autocommit=True, row_factory=dict_row
            ) as connection:
                await self._begin(connection)
                for channel in channels:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
                if on_listening is not None:
                    on_listening()
                while True:
                    notices = connection.notifies(timeout=HEARTBEAT_S)
                    async with contextlib.aclosing(notices):
                        async for notice in notices:
                            yield notice.channel, notice.payload
                    async with asyncio.timeout(self._call_timeout_s):
                        await connection.execute("SELECT 1")
                        if connection.timeline < 0:
                            await self._compare(connection)
                    if self._is_left_behind(connection):
                        raise psycopg.OperationalError(_LEFT_BEHIND)
        except WrongHistory as error:
            raise ControlPlaneUnavailable(str(error)) from error
        except (psycopg.Error, TimeoutError, OSError) as error:
            raise translate(error) from error


class Lanes:
    """Pools apart, so that none waits in another's queue: a lease that queues behind consumers'
    look-ups runs out although Postgres answers, and so do commits behind them.

    Each has one connection while all goes well. A call that was given up keeps its own
    (:class:`Pool`), so that the lanes that must go on have one to spare.
    """

    def __init__(
        self,
        settings: ControlPlaneSettings,
        application_name: str,
        history: HistoryWatch | None = None,
    ) -> None:
        history = history or HistoryWatch()
        self._pools = {
            lane: Pool(settings, f"{application_name}-{lane}", size, history)
            for lane, size in LANE_SIZES.items()
        }

    def acknowledged(self, object_key: str) -> None:
        """See :meth:`Pool.acknowledged`; it is asked for on the connections of every lane."""
        self._pools[OTHERS].acknowledged(object_key)

    async def open(self) -> None:
        """See :meth:`Pool.open`."""
        for pool in self._pools.values():
            await pool.open()

    async def close(self) -> None:
        """See :meth:`Pool.close`."""
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))

    async def call(self, function: Function[R], *arguments: object) -> R:
        """See :meth:`Pool.call`."""
        return await self._pools[function.lane].call(function, *arguments)

    async def fetch(
        self, query: bytes, given: Sequence[object] = (), *, retry: bool = True
    ) -> list[DictRow]:
        """See :meth:`Pool.fetch`."""
        return await self._pools[OTHERS].fetch(query, given, retry=retry)

    def listen(
        self, channels: Sequence[str], on_listening: Callable[[], None] | None
    ) -> AsyncIterator[tuple[str, str]]:
        """See :meth:`Pool.listen`."""
        return self._pools[OTHERS].listen(channels, on_listening)


class JobsConnection:
    """One connection for a Spark driver or executor. Connects at the first call; calls of several
    threads wait for each other."""

    def __init__(self, settings: ControlPlaneSettings, application_name: str) -> None:
        timeout = {"postgres_statement_timeout_ms": JOBS_STATEMENT_TIMEOUT_MS}
        self._conninfo = conninfo(settings.model_copy(update=timeout), application_name)
        self._history = HistoryWatch()
        self._history.seen = settings.seen
        self._connection: psycopg.Connection[DictRow] | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def call(self, function: Function[R], *arguments: object) -> R:
        """As :meth:`Pool.call`."""
        given = parameters(arguments)
        return function.read(self._fetch(statement(function.name, len(given)), given))

    def pages(
        self,
        function: str,
        model: type[R],
        first: Sequence[object],
        after: Callable[[Any], Sequence[object]],
        size: int,
    ) -> Iterator[R]:
        """The rows of a keyset function page by page: it takes ``first``, then what ``after`` says
        of a page's last row, and ``size`` as its last parameter."""
        given = first
        while True:
            found = self._fetch(statement(function, len(given) + 1), [*given, size])
            page = list(map(mapper(model), found))
            yield from page
            if len(page) < size:
                return
            given = after(page[-1])

    def _fetch(self, query: bytes, given: Sequence[object]) -> list[DictRow]:
        attempts = Retrying(
            stop=_Attempts(ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.05, max=1.0),
            retry=retry_if_exception_type(ControlPlaneUnavailable),
            reraise=True,
        )
        for attempt in attempts:
            with attempt, self._lock:
                return self._once(query, given)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _once(self, query: bytes, given: Sequence[object]) -> list[DictRow]:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._connect()
            return self._connection.execute(query, given).fetchall()
        except (psycopg.Error, OSError) as error:
            if self._connection is not None and self._connection.broken:
                self._connection.close()
                self._connection = None
            raise translate(error) from error

    def _connect(self) -> psycopg.Connection[DictRow]:
        """Raises :class:`WrongHistory` for another server than the job has begun with."""
        connection = self._in_turn(
            partial(
                psycopg.connect,
                self._conninfo,
                autocommit=True,
                row_factory=dict_row,
                prepare_threshold=2,
            )
        )
        must_be_fit(self._conninfo, connection)
        if (seen := self._history.seen) is not None:
            query = statement(SERVER_IDENTITY.name, 2)
            found = connection.execute(query, [seen.beat, seen.token]).fetchall()
            if (why := self._history.judge(seen, SERVER_IDENTITY.read(found))) is not None:
                connection.close()
                raise WrongHistory(f"Postgres is not the one that the job has begun with: {why}")
        return connection

    @staticmethod
    def _in_turn(connect: Callable[[], R]) -> R:
        turns = Retrying(
            retry=retry_if_exception(lambda error: _ROLE_IS_FULL in str(error)),
            wait=wait_random(0.05, 0.5),
            stop=stop_after_delay(TURN_S),
            reraise=True,
        )
        return turns(connect)
