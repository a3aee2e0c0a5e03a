"""Objects that hold no batches and carry outcomes of earlier commits (decision 0019).

They are beside the commits of the gateway: no produce waits for one. What always holds: what is to
be told is tried again, ever more slowly, until it is told or the incarnation is over; one object at
a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from tideline.background import spawn
from tideline.control_plane import ControlPlane
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.errors import TidelineError
from tideline.gateway import metrics
from tideline.gateway.produce.commit_stream import CommitStream, Inherited
from tideline.gateway.tracking.lease import Lease

log = structlog.get_logger()
TELL_AFTER_S = 0.75
"""Without a new object for so long, the last outcomes get one of their own."""
LONGEST_PAUSE_S = 30.0
CARRIED_AT_ONCE = 64
"""So many commits get a carrier also without a pause."""
Put = Callable[[bytes, Callable[[str], None]], Awaitable[None]]
"""Stores an object, and names each key that it tries before it does."""


class Teller:
    """Sees to it that the outcome of every commit is in an object that collection keeps."""

    def __init__(
        self, stream: CommitStream, control_plane: ControlPlane, lease: Lease, put: Put
    ) -> None:
        self._stream = stream
        self._control_plane = control_plane
        self._lease = lease
        self._put = put
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._finished = False

    def object_begins(self) -> None:
        """A new object will tell the last outcomes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def committed(self, *, idle: bool) -> None:
        """A commit has ended, and with ``idle`` there is no other one to come."""
        if self._stream.untold >= CARRIED_AT_ONCE:
            self._begin()
        elif idle:
            self._after_a_pause()

    def _after_a_pause(self) -> None:
        if self._stream.untold and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TELL_AFTER_S, self._begin)

    def inherit(self) -> None:
        """Tell what earlier incarnations of this gateway had no time to tell."""
        self._begin()

    async def finish(self, patience_s: float) -> None:
        """Tell what is left within ``patience_s``, and then nothing any more."""
        loop = asyncio.get_running_loop()
        end = loop.time() + patience_s
        # Again when it has told: what was under way may have begun before the last commit.
        while not self._finished:
            if self._stream.untold:
                self._begin()
            if self._task is None or self._task.done():
                break
            _, waits = await asyncio.wait([self._task], timeout=max(0.0, end - loop.time()))
            if waits:
                break
        self._finished = True
        self.stop()

    def stop(self) -> None:
        self.object_begins()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _begin(self) -> None:
        self.object_begins()
        if not self._finished and (self._task is None or self._task.done()):
            self._task = spawn(self._until_told(), "wal-teller")

    async def _until_told(self) -> None:
        pause, incarnation = TELL_AFTER_S, self._lease.incarnation
        while self._lease.incarnation == incarnation:
            try:
                await self._tell()
                self._after_a_pause()  # Of what was committed meanwhile.
                return
            except TidelineError as error:
                metrics.WAL_OBJECTS.labels("failed").inc()
                log.warning("wal.outcomes_not_told", again_after_s=pause, error=str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _tell(self) -> None:
        """Raises what the store and the control plane raise."""
        if self._stream.untold:
            await self._carry(None)
        # Every time: a commit that was under way when its incarnation ended may end after one.
        while found := await self._stream.inherited(self._control_plane):
            for inherited in found:
                await self._carry(inherited)

    async def _carry(self, inherited: Inherited | None) -> None:
        """Put and commit one object; again and again while the outcome of its commit is unknown."""
        incarnation, sequence = self._lease.incarnation, self._stream.next()
        ending = await self._stream.ending(sequence, (), inherited)
        keys: list[str] = []
        await self._put(ending.footer, keys.append)
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(ControlPlaneUnavailable),
            wait=wait_random_exponential(multiplier=0.05, max=1.0),
            reraise=True,
        ):
            with attempt:
                await self._control_plane.commit_file(
                    self._lease.gateway_id,
                    incarnation=incarnation,
                    object_key=keys[-1],
                    size=len(ending.footer),
                    batches=(),
                    stream=self._stream.carrying(sequence, ending),
                )
        metrics.WAL_OBJECTS.labels("carrier").inc()
        if self._lease.incarnation == incarnation:
            self._stream.carried(ending)
