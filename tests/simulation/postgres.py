"""Postgres and the object store as another process sees them: calls that are delayed, held or lost
on the way there or back, over the control plane in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum
from math import inf
from typing import Any

from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.milestones import Milestones
from tests.simulation.network import Network
from tideline.control_plane.errors import ControlPlaneUnavailable, LoginRefused
from tideline.control_plane.memory import MemoryControlPlane
from tideline.domain.history import HistoryWatch
from tideline.domain.ids import TopicIdPartition
from tideline.object_store.client import (
    ObjectMissing,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
    ObjectTruncated,
)

CALL_S = 2.0
ATTEMPTS = 3
PERSIST = "initialize_diskless_migration"
FIRST_PUT = "put of a newcomer"
"""The milestone of an object with batches of a producer that the suffix does not know."""
ANY = "gateway"
"""In the place of a caller: every gateway."""


class How(Enum):
    """What becomes of calls while a fault lasts."""

    FAILS = "nothing is done, and an error is answered"
    REFUSES = "nothing is done, and the caller is refused"
    HANGS = "it is done when the fault is over, whoever still waits for it"
    LATE = "it is done at once, and answered when the fault is over"
    UNHEARD = "it is done, and an error is answered"
    TURNED_DOWN = "it is done at once, and the caller is refused when the fault is over"


class Trouble:
    """A server's with one call of one caller, for so many ``calls``."""

    def __init__(self, how: How, calls: float = inf) -> None:
        self.how, self.over, self._calls = how, asyncio.Event(), calls

    def meets(self) -> bool:
        """Whether the call that is made now meets it."""
        self._calls -= 1
        return self._calls >= 0


Troubles = dict[tuple[str, str], Trouble]
"""By caller (or :data:`ANY`) and call (or ``""``: all of them)."""


class Server:
    """Postgres, or the object store, as a process of a run."""

    def __init__(self, process: Process, milestones: Milestones) -> None:
        self.process, self.milestones = process, milestones
        self.troubles: Troubles = {}
        self.stalls: dict[tuple[str, str], float] = {}
        """By caller and call: seconds that it takes before it begins."""

    def trouble(self, caller: str, call: str) -> Trouble | None:
        kind = ANY if caller.startswith(ANY) else caller
        for who, what in ((caller, call), (caller, ""), (kind, call), (kind, "")):
            if (found := self.troubles.get((who, what))) and found.meets():
                return found
        return None

    async def serve(
        self,
        caller: str,
        call: str,
        step: str,
        work: Callable[[], Awaitable[Any]],
        error: Exception,
        refusal: Exception,
    ) -> Any:
        """Do the work, or as a trouble has it; ``step`` is the milestone. Raises what the work
        raises, ``error``, ``refusal``."""
        trouble = self.trouble(caller, call) if self.troubles else None
        how = None if trouble is None else trouble.how
        if stall := self.stalls.get((caller, call)):
            await asyncio.sleep(stall)
        if how is How.FAILS:
            raise error
        if how is How.REFUSES:
            raise refusal
        if trouble is not None and how is How.HANGS:
            await trouble.over.wait()
        result = await work()
        if self.milestones.reach(f"{step} done", caller):
            await asyncio.sleep(0)
        if how is How.UNHEARD:
            raise error
        if trouble is not None and how in (How.LATE, How.TURNED_DOWN):
            await trouble.over.wait()
        if how is How.TURNED_DOWN:
            raise refusal
        return result


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
        server: Server,
        plane: MemoryControlPlane,
        network: Network,
        history: HistoryWatch | None,
    ) -> None:
        self._remote, self._server, self._plane, self._network = remote, server, plane, network
        self._history = history
        self._connected: tuple[str, int] | None = None
        """System identifier and timeline of the server that was compared."""

    async def _compare(self) -> None:
        """As the pool does it with a new connection."""
        history, plane = self._history, self._plane
        if history is None or self._connected == plane.server:
            return

        async def has_committed(key: str) -> bool | None:
            return plane.files.has_committed(key) if key in plane.files.by_key else None

        now_s = asyncio.get_running_loop().time
        if not await history.compare(plane.identity, has_committed, plane.halt_history, now_s):
            raise ControlPlaneUnavailable("nobody knows whether the last commit is there")
        self._connected = plane.server

    def __getattr__(self, name: str) -> Any:
        method, caller = getattr(self._plane, name), self._remote.caller.name

        async def call(*args: Any, **values: Any) -> Any:
            step = name
            log = getattr(args[0], "log", args[0]) if args else None
            if isinstance(log, TopicIdPartition) and log.partition:
                step = f"{name} {log.partition}"  # milestones are of partition 0

            async def compared() -> Any:
                await self._compare()
                return await method(*args, **values)

            def served() -> Awaitable[Any]:
                return self._server.serve(
                    caller,
                    name,
                    step,
                    compared,
                    ControlPlaneUnavailable(f"{name}: the connection to Postgres broke"),
                    LoginRefused(f"{name}: Postgres lets nobody in"),
                )

            if self._server.milestones.reach(step, caller):
                await asyncio.sleep(0)
            for _ in range(ATTEMPTS):
                try:
                    answer = await self._remote.call(self._server.process, served, CALL_S)
                except TimeoutError:
                    continue
                if name == "commit_file" and self._history is not None:
                    now_s = asyncio.get_running_loop().time()
                    self._history.acknowledged(values["object_key"], now_s)
                return answer
            raise ControlPlaneUnavailable(f"{name}: Postgres does not answer")

        return call

    async def listen(
        self, channels: Sequence[str], on_listening: Callable[[], None] | None = None
    ) -> AsyncIterator[tuple[str, str]]:
        heard: asyncio.Queue[tuple[str, str] | None] = asyncio.Queue()
        caller, server = self._remote.caller, self._server

        async def forward() -> None:
            async for note in self._plane.listen(channels):
                if late := server.stalls.get((caller.name, "listen"), 0.0):
                    await asyncio.sleep(late)
                self._network.send(server.process, caller, lambda note=note: heard.put_nowait(note))

        process = server.process
        self._network.send(caller, process, lambda: process.spawn(forward(), "listen"))
        if on_listening is not None:
            on_listening()
        process.on_kill.append(lambda: caller.call(heard.put_nowait, None))
        while (note := await heard.get()) is not None:
            yield note
        raise ControlPlaneUnavailable("the connection to Postgres ended")


class RemoteStore:
    """An :class:`tideline.object_store.ObjectStore` behind the network."""

    def __init__(
        self,
        remote: Remote,
        server: Server,
        objects: dict[str, bytes],
        brings_a_newcomer: Callable[[bytes], bool],
    ) -> None:
        """``brings_a_newcomer``: whether an object has batches of a producer that the suffix does
        not know."""
        self._remote, self._server, self._objects = remote, server, objects
        self._brings_a_newcomer = brings_a_newcomer

    async def put(self, key: str, body: bytes) -> None:
        async def store() -> None:
            await asyncio.sleep(0.004)
            self._objects.setdefault(key, body)

        caller, milestones = self._remote.caller.name, self._server.milestones
        awaited = milestones.reach("put", caller)
        if self._brings_a_newcomer(body):
            awaited |= milestones.reach(FIRST_PUT, caller)
        if awaited:
            await asyncio.sleep(0)
        await self._call("put", key, store)

    async def get(self, key: str, start: int, size: int, *, tiered: bool = False) -> bytes:
        async def read() -> bytes:
            await asyncio.sleep(0.002)
            if key not in self._objects:
                raise ObjectMissing(key)
            return self._objects[key][start : start + size]

        found: bytes = await self._call("get", key, read)
        if len(found) != size:
            raise ObjectTruncated(f"get {key}: {len(found)} bytes came, not {size}")
        return found

    async def _call(self, name: str, key: str, work: Callable[[], Awaitable[Any]]) -> Any:
        def served() -> Awaitable[Any]:
            return self._server.serve(
                self._remote.caller.name,
                name,
                name,
                work,
                ObjectStoreUnavailable(f"{name} {key}: 500 InternalError"),
                ObjectStoreRefused(f"{name} {key}: 403 AccessDenied"),
            )

        try:
            return await self._remote.call(self._server.process, served, CALL_S)
        except TimeoutError:
            raise ObjectStoreUnavailable(f"{name} {key}: no answer") from None
