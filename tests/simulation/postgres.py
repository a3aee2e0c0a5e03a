"""Postgres and the object store as another process sees them: calls that are delayed, held or lost
on the way there or back, over the control plane in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.network import Network
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.memory import MemoryControlPlane
from tideline.object_store.client import (
    ObjectMissing,
    ObjectStoreUnavailable,
    ObjectTruncated,
)

CALL_S = 2.0
ATTEMPTS = 3


class Remote:
    """A call from one process to another, whose outcome the caller may never hear."""

    def __init__(self, loop: VirtualLoop, network: Network, caller: Process) -> None:
        self._loop, self._network, self.caller = loop, network, caller

    async def call(
        self, server: Process, work: Callable[[], Awaitable[Any]], bound_s: float
    ) -> Any:
        """The result, or what was raised. Raises ``TimeoutError``: the outcome is not known."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        given_up = False

        def arrived() -> None:
            # A statement that waits in a cut link goes with its connection: nobody sends it again.
            if not given_up:
                server.spawn(serve(), "call")

        async def serve() -> None:
            result: Any = None
            error: Exception | None = None
            try:
                result = await work()
            except Exception as raised:
                error = raised
            self._network.send(server, self.caller, lambda: resolve(result, error))

        def resolve(result: Any, error: Exception | None) -> None:
            if not answer.done():
                if error is None:
                    answer.set_result(result)
                else:
                    answer.set_exception(error)

        self._network.send(self.caller, server, arrived)
        try:
            async with asyncio.timeout(bound_s):
                return await answer
        finally:
            given_up = True


class RemotePlane:
    """A :class:`tideline.control_plane.ControlPlane` behind the network. Every call of it is a
    coroutine, but for ``listen``."""

    def __init__(
        self,
        remote: Remote,
        server: Process,
        plane: MemoryControlPlane,
        network: Network,
        stalls: Mapping[tuple[str, str], float],
    ) -> None:
        self._stalls = stalls
        self._remote, self._server, self._plane, self._network = remote, server, plane, network

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._plane, name)

        async def done(args: Any, values: Any) -> Any:
            stall = self._stalls.get((self._remote.caller.name, name), 0.0)
            if stall:
                await asyncio.sleep(stall)
            return await method(*args, **values)

        async def call(*args: Any, **values: Any) -> Any:
            for _ in range(ATTEMPTS):
                try:
                    return await self._remote.call(self._server, lambda: done(args, values), CALL_S)
                except TimeoutError:
                    continue
            raise ControlPlaneUnavailable(f"{name}: Postgres does not answer")

        return call

    async def listen(
        self, channels: Sequence[str], on_listening: Callable[[], None] | None = None
    ) -> AsyncIterator[tuple[str, str]]:
        heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        caller = self._remote.caller

        async def forward() -> None:
            async for note in self._plane.listen(channels):
                if late := self._stalls.get((caller.name, "listen"), 0.0):
                    await asyncio.sleep(late)
                self._network.send(self._server, caller, lambda note=note: heard.put_nowait(note))

        self._network.send(caller, self._server, lambda: self._server.spawn(forward(), "listen"))
        if on_listening is not None:
            on_listening()
        while True:
            yield await heard.get()


class RemoteStore:
    """An :class:`tideline.object_store.ObjectStore` behind the network."""

    def __init__(self, remote: Remote, server: Process, objects: dict[str, bytes]) -> None:
        self._remote, self._server, self._objects = remote, server, objects

    async def put(self, key: str, body: bytes) -> None:
        async def store() -> None:
            await asyncio.sleep(0.004)
            self._objects.setdefault(key, body)

        try:
            await self._remote.call(self._server, store, CALL_S)
        except TimeoutError:
            raise ObjectStoreUnavailable(f"put {key}: no answer") from None

    async def get(self, key: str, start: int, size: int, *, tiered: bool = False) -> bytes:
        async def read() -> bytes:
            await asyncio.sleep(0.002)
            if key not in self._objects:
                raise ObjectMissing(key)
            return self._objects[key][start : start + size]

        try:
            found: bytes = await self._remote.call(self._server, read, CALL_S)
        except TimeoutError:
            raise ObjectStoreUnavailable(f"get {key}: no answer") from None
        if len(found) != size:
            raise ObjectTruncated(f"get {key}: {len(found)} bytes came, not {size}")
        return found
