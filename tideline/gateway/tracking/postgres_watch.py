"""Whether the Postgres that answers is the one that this gateway, and the fleet, have seen.

Asked with each reading of what is tracked, or after it, and by the pool on each new connection.
Another Postgres, or one that lacks a commit that was acknowledged here, stops tracked traffic and
the lease; a promotion that lost nothing goes on by itself (schedule 16).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import structlog

from tideline.control_plane import ControlPlane
from tideline.domain.history import HistoryWatch, ServerIdentity, WrongHistory
from tideline.gateway.tracking.lease import Lease
from tideline.gateway.tracking.seen import SeenFile
from tideline.gateway.tracking.snapshot import PostgresIdentity
from tideline.gateway.tracking.view import TrackingView

log = structlog.get_logger()
SEEN_EVERY_S = 30.0
"""How often a newer beat is put to disk."""
REMEDY = (
    'docs/failures.md, "I have two Postgres", says how to compare. If this one is right, run '
    "`tideline installation adopt`, then restart the gateways."
)


class NotEstablished(WrongHistory):
    """Found at the start, before anything is served: the process ends with it."""


class PostgresWatch:
    """One per gateway."""

    def __init__(
        self,
        control_plane: ControlPlane,
        tracking: TrackingView,
        lease: Lease,
        *,
        history: HistoryWatch | None = None,
        file: SeenFile | None = None,
        establish: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``history``: what the connections are compared with. ``establish``: whether Kafka,
        Postgres and the buckets belong together; awaited before the first registration."""
        self._control_plane, self._tracking, self._lease = control_plane, tracking, lease
        self._history = history or HistoryWatch()
        self._file = file
        self._establish = establish
        self._written_at = float("-inf")
        self._missing: str | None = None
        """What Postgres has lost; it stays so, whatever comes after it."""
        self.pinned: PostgresIdentity | None = None
        """Whose rows are shown, and kept in the snapshot."""
        lease.went_back.add(self._lost)

    async def recall(self, pinned: PostgresIdentity | None) -> None:
        """What was seen before a restart."""
        self.pinned = pinned
        if self._file is not None:
            self._history.seen = await asyncio.to_thread(self._file.read)

    async def establish(self) -> None:
        """Once, also by a gateway that has started from its snapshot. Raises
        :class:`NotEstablished`, an ``UnreachableError``, or a ``RefusedError`` where Postgres has
        no connections for a gateway."""
        if self._establish is None:
            return
        try:
            await self._establish()
        except WrongHistory as error:
            self._stop(str(error))
            raise NotEstablished(str(error)) from error
        self._establish = None

    @property
    def seen(self) -> ServerIdentity | None:
        """The newest that was seen."""
        return self._history.seen

    async def is_the_same(
        self, answered: tuple[ServerIdentity | None, ServerIdentity] | None = None
    ) -> bool:
        """Whether the rows just read came from the Postgres that was seen. ``answered``: what was
        seen when they were asked for, and what the same statement has said of its server; without
        it that is asked for after the read, so that a failover in between is noticed. Raises
        :class:`ControlPlaneUnavailable`."""
        try:
            await self.establish()
            before = self._history.seen
            if answered is not None:
                before, now = answered
            else:
                now = await self._control_plane.identity(before)
        except WrongHistory as error:
            self._stop(str(error))
            return False
        why = self._history.judge(before, now) or self._unlike_pinned(before, now)
        if self._missing is not None:
            why = self._missing
            # An operator who has begun another one has compared, and starts this gateway again.
            await self._control_plane.halt_history((before or now).history_id, why)
        if why is not None:
            self._stop(f"Postgres is {now}: {why}")
            return False
        self._go_on(now)
        await self._keep(now)
        return True

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """Around a reading: where every connection is to another Postgres the pool gives none, and
        what is read raises :class:`WrongHistory` before anybody could ask who answered."""
        try:
            yield
        except WrongHistory as error:
            self._stop(str(error))
            raise

    def _unlike_pinned(self, before: ServerIdentity | None, now: ServerIdentity) -> str | None:
        """The snapshot's pin is all there is when no beat was seen yet."""
        if self.pinned is None or before is not None:
            return None
        if (now.system_identifier, now.timeline) == (
            self.pinned.system_identifier,
            self.pinned.timeline,
        ):
            return None
        return f"this gateway pinned {self.pinned}, commits may be missing"

    def _go_on(self, now: ServerIdentity) -> None:
        pinned = PostgresIdentity(now.system_identifier, now.timeline)
        if self.pinned not in (None, pinned):
            log.warning("tracking.promotion_adopted", before=str(self.pinned), now=str(now))
        self.pinned = pinned
        if self._tracking.stopped is not None:
            log.info("tracking.resumed", postgres=str(now))
            self._tracking.resume()
            self._lease.stopped = False

    def _stop(self, why: str) -> None:
        if self._tracking.stopped is None:
            reason = f"{why}. {REMEDY}"
            log.error("tracking.stopped", reason=reason)
            self._tracking.stop(reason)
            self._lease.stopped = True

    def _lost(self, what: str) -> None:
        self._missing = what
        self._stop(f"Postgres has lost commits: {what}")

    async def _keep(self, now: ServerIdentity) -> None:
        clock = asyncio.get_running_loop().time()
        if self._file is None or clock - self._written_at < SEEN_EVERY_S:
            return
        try:
            await asyncio.to_thread(self._file.write, now)
            self._written_at = clock
        except OSError as error:
            log.error("tracking.history_not_written", error=str(error))
