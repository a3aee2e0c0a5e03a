"""Tells other gateways that a log has moved which was quiet.

They ask for the logs that consumers of theirs wait for, seldom while nothing moves
(:class:`tideline.gateway.fetch.from_suffix.HighWatermarks`). A commit sends no NOTIFY: it would
hold a lock over its fsync that all notifying commits share. So a gateway notifies behind a commit,
in a transaction of its own that writes nothing, and only where its last commit to the same log was
begun over :data:`~tideline.domain.pace.QUIET_S` ago: what comes sooner is found by who has seen the
one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from tideline.background import spawn
from tideline.control_plane import ControlPlane
from tideline.domain.ids import TopicIdPartition
from tideline.domain.pace import QUIET_S
from tideline.errors import TidelineError

log = structlog.get_logger()


class CommitNews:
    """Of one gateway. A notification that fails is lost: other gateways' polls find the commit."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        self._begun: dict[TopicIdPartition, float] = {}
        """When the last commit to a log was begun, on the event loop's clock; the oldest first."""
        self._untold = False
        self._telling: asyncio.Task[None] | None = None

    def committed(self, logs: Iterable[TopicIdPartition], begun: float) -> None:
        """A commit was answered that was ``begun`` then and has moved ``logs``."""
        quiet_since = asyncio.get_running_loop().time() - QUIET_S
        while self._begun and self._begun[oldest := next(iter(self._begun))] < quiet_since:
            del self._begun[oldest]
        for moved in logs:
            self._untold |= self._begun.pop(moved, None) is None
            self._begun[moved] = begun
        if self._untold and (self._telling is None or self._telling.done()):
            self._telling = spawn(self._tell(), "commit-news")

    async def _tell(self) -> None:
        """One notification for all that were committed before it is sent."""
        while self._untold:
            self._untold = False
            try:
                await self._control_plane.tell_of_commits()
            except TidelineError as error:
                log.info("news.not_told", error=str(error))
