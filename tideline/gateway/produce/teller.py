"""Objects that hold no batches and tell of other objects (decision 0022).

*Carriers* are committed, so that collection keeps them while what they tell of is read. They are
beside the commits of the gateway: no produce waits for one, and one is under way at a time.
*Statements* are put and nobody commits them, so that they need no Postgres, and stay for days: of
what was given up or not answered, before the next commit is sent; of what no stored object tells
after a second, as while Postgres does not answer; and of what is left when the stream ends.
What always holds: what is to be told is tried again until it is told or the incarnation is over, by
carriers ever more slowly; a statement at most a second later, because the store may be back and
Postgres away by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import structlog

from tideline.background import cancel_and_wait, spawn
from tideline.control_plane import ControlPlane
from tideline.control_plane.model import BatchToCommit, CommittedBatch, StreamPlace
from tideline.domain.pace import paced
from tideline.domain.wal_footer import EarlierCommit
from tideline.errors import TidelineError
from tideline.gateway import metrics
from tideline.gateway.produce.commit_stream import CommitStream, Ending, Inherited
from tideline.gateway.tracking.lease import Lease

log = structlog.get_logger()
TELL_AFTER_S = 0.75
"""Without a new object for so long, the last outcomes get one of their own."""
TELL_WITHIN_S = 0.9
"""What no stored object tells for so long is stated."""
LEAVE_WITHIN_S = 2.0
"""How long the last statement of a stream may take."""
LONGEST_PAUSE_S = 30.0
CARRIED_AT_ONCE = 64
"""So many commits get a carrier also without a pause."""
TELL_APART_S = 10.0
"""Between two objects that only tell, as each costs a request: unless a commit waits for one, the
lease is not renewed, or the stream begins or ends."""
Put = Callable[[bytes, Callable[[str], None]], Awaitable[None]]
"""Stores an object, and names each key that it tries before it does."""
PutAside = Callable[[bytes], Awaitable[None]]
"""Stores an object under a key of which Postgres knows nothing."""
Commit = Callable[
    [UUID, str, int, Sequence[BatchToCommit], StreamPlace], Awaitable[Sequence[CommittedBatch]]
]
"""Commits an object until its outcome is known: incarnation, key, bytes, batches, place."""


class Teller:
    """Sees to it that the outcome of every commit is in an object that collection keeps."""

    def __init__(
        self,
        stream: CommitStream,
        control_plane: ControlPlane,
        lease: Lease,
        put: Put,
        put_aside: PutAside,
        commit: Commit,
    ) -> None:
        self._stream = stream
        self._control_plane = control_plane
        self._lease = lease
        self._put = put
        self._put_aside = put_aside
        self._commit = commit
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._look_again: asyncio.TimerHandle | None = None
        self._stating: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._finished = False
        self._told_at = float("-inf")
        """When the last object that only tells was begun, in the loop's seconds."""
        stream.hides.add(self._watch)
        lease.missed.add(self._state_hidden)

    def object_begins(self) -> None:
        """A new object will tell the last outcomes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def committed(self, *, idle: bool) -> None:
        """A commit has ended, and with ``idle`` there is no other one to come."""
        now = asyncio.get_running_loop().time()
        if (
            self._stream.untold >= CARRIED_AT_ONCE
            and paced(now, self._told_at, TELL_APART_S) <= now
        ):
            self._begin()
        elif idle:
            self._after_a_pause()

    def _after_a_pause(self) -> None:
        if self._stream.untold and self._timer is None:
            loop = asyncio.get_running_loop()
            at = paced(loop.time() + TELL_AFTER_S, self._told_at, TELL_APART_S)
            self._timer = loop.call_at(at, self._begin)

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
        if self._look_again is not None:
            self._look_again.cancel()
            self._look_again = None
        for task in (self._task, self._stating):
            if task is not None:
                task.cancel()
        self._task = self._stating = None

    async def state(self, told: Sequence[EarlierCommit], incarnation: UUID | None = None) -> None:
        """Put what is ``told`` of the stream of ``incarnation``, or of the present one. Raises what
        the store raises."""
        ending = await self._stream.statement(told, incarnation or self._stream.incarnation)
        await self._put_aside(ending.footer)
        self._stated(ending)

    def leave(self, told: Sequence[EarlierCommit]) -> None:
        """The stream has ended: the last thing that is said of it."""
        if told:
            task = spawn(self._leave(told, self._stream.incarnation), "wal-statement")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def left(self) -> None:
        """Until everything is said, or cannot be."""
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=LEAVE_WITHIN_S)
        await cancel_and_wait(*self._leaving)

    async def _leave(self, told: Sequence[EarlierCommit], incarnation: UUID) -> None:
        try:
            async with asyncio.timeout(LEAVE_WITHIN_S):
                await self.state(told, incarnation)
        except (TidelineError, TimeoutError) as error:
            log.warning("wal.last_outcomes_not_told", commits=len(told), error=str(error))

    def _stated(self, ending: Ending) -> None:
        self._stream.stated(ending)
        metrics.WAL_OBJECTS.labels("statement").inc()

    def _watch(self) -> None:
        """Look whether something stays hidden for too long."""
        since = self._stream.hidden_since
        states = self._stating is not None and not self._stating.done()
        if self._look_again is None and not states and since is not None:
            loop = asyncio.get_running_loop()
            if not self._finished:
                self._look_again = loop.call_at(self._stated_by(since), self._look)

    def _stated_by(self, since: float) -> float:
        """A carrier that is due at the same pace goes first."""
        margin = TELL_WITHIN_S - TELL_AFTER_S
        return paced(since + TELL_WITHIN_S, self._told_at, TELL_APART_S + margin)

    def _look(self) -> None:
        self._look_again = None
        since = self._stream.hidden_since
        if since is None or asyncio.get_running_loop().time() < self._stated_by(since):
            self._watch()
        else:
            self._state_hidden()

    def _state_hidden(self) -> None:
        """At once: also when the lease was not renewed, so that who outlives Postgres has told."""
        states = self._stating is not None and not self._stating.done()
        if self._stream.hidden and not states and not self._finished:
            self._told_at = asyncio.get_running_loop().time()
            self._stating = spawn(self._until_stated(), "wal-statement")

    async def _until_stated(self) -> None:
        pause, incarnation = TELL_WITHIN_S, self._lease.incarnation
        while self._lease.incarnation == incarnation and (hidden := self._stream.hidden):
            try:
                await self.state(hidden)
                break
            except TidelineError as error:
                log.warning("wal.outcomes_not_told", again_after_s=pause, error=str(error))
            await asyncio.sleep(pause)
        self._stating = None
        self._watch()

    def _begin(self) -> None:
        self.object_begins()
        if not self._finished and (self._task is None or self._task.done()):
            self._told_at = asyncio.get_running_loop().time()
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
        """Put and commit one object."""
        incarnation, sequence = self._lease.incarnation, self._stream.next()
        ending = await self._stream.ending(sequence, (), inherited)
        keys: list[str] = []
        await self._put(ending.footer, keys.append)
        self._stream.stored(ending)
        stream = self._stream.carrying(sequence, ending)
        await self._commit(incarnation, keys[-1], len(ending.footer), (), stream)
        metrics.WAL_OBJECTS.labels("carrier").inc()
        if self._lease.incarnation == incarnation:
            self._stream.carried(ending)
