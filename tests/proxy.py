"""A TCP proxy that a test puts between two parts, to cut them off from each other.

Cut means that bytes stay where they are, as on a network that drops packets: nobody is told. What
was sent meanwhile goes on when the proxy is healed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Self, TypeVar

from tests.support.waiting import HANGS_S

T = TypeVar("T")

CHUNK = 65_536


class Proxy:
    """Listens on loopback and forwards to ``host:port``. Use it in a ``with`` block."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: set[asyncio.StreamWriter] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._to_server, self._to_client = asyncio.Event(), asyncio.Event()
        self._to_server.set()
        self._to_client.set()
        self._delay_s = 0.0
        self._keeps_ends = False
        self.kept = 0
        """Ends of the server that no client was told of (:meth:`ends_kept`)."""
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *error: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @contextmanager
    def cut(self, *, to_server: bool = True, to_client: bool = True) -> Iterator[None]:
        """Nothing passes in the given directions; new connections are accepted and starve."""
        self._run(self._gate(to_server=not to_server, to_client=not to_client))
        try:
            yield
        finally:
            self._run(self._gate(to_server=True, to_client=True))

    @contextmanager
    def slow(self, delay_s: float) -> Iterator[None]:
        """Each piece waits ``delay_s`` seconds before it goes on, in both directions."""
        self._delay_s = delay_s
        try:
            yield
        finally:
            self._delay_s = 0.0

    @contextmanager
    def ends_kept(self) -> Iterator[None]:
        """The last bytes of a server that ends pass, its end does not: as between a server's last
        words and its exit."""
        self._keeps_ends = True
        try:
            yield
        finally:
            self._keeps_ends = False

    def half_open(self) -> int:
        """The server's connections end; their clients are told nothing and stay connected. How
        many there were."""
        return self._run(self._end_servers())

    def end(self) -> int:
        """All connections end on both sides, and what was held back in a cut is lost. How many
        there were."""
        return self._run(self._end_all())

    def _run(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(HANGS_S)

    async def _gate(self, *, to_server: bool, to_client: bool) -> None:
        for event, is_open in ((self._to_server, to_server), (self._to_client, to_client)):
            if is_open:
                event.set()
            else:
                event.clear()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(
        self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._clients.add(to_client)
        try:
            await self._to_server.wait()
            from_server, to_server = await asyncio.open_connection(*self._target)
        except OSError:
            to_client.close()
            return
        finally:
            self._tasks.discard(task)
        self._servers.add(to_server)
        pumps = [
            asyncio.create_task(self._pump(from_client, to_server, self._to_server)),
            asyncio.create_task(self._pump(from_server, to_client, self._to_client, to_server)),
        ]
        self._tasks.update(pumps)
        for pump in pumps:
            pump.add_done_callback(self._tasks.discard)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        gate: asyncio.Event,
        server: asyncio.StreamWriter | None = None,
    ) -> None:
        """``server`` is given for what comes from it: when this test ended it, nobody is told."""
        with suppress(OSError):
            while piece := await source.read(CHUNK):
                await asyncio.sleep(self._delay_s)
                await gate.wait()
                sink.write(piece)
                await sink.drain()
        if server is not None and self._keeps_ends:
            self.kept += 1
        elif server is None or server in self._servers:
            sink.close()

    async def _end_servers(self) -> int:
        servers, self._servers = self._servers, set()
        living = [server for server in servers if not server.transport.is_closing()]
        for server in living:
            server.transport.abort()
        return len(living)

    async def _end_all(self) -> int:
        clients, self._clients = self._clients, set()
        for task in list(self._tasks):
            task.cancel()
        await self._end_servers()
        living = [client for client in clients if not client.transport.is_closing()]
        for client in living:
            client.transport.abort()
        return len(living)

    async def _close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._end_servers()
