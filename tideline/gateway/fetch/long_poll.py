"""Fetches of the suffix that wait for records to come.

Commits of this gateway wake them at once; those of others are found by one batched query of high
watermarks for everything that is waited for, every ``suffix_poll_ms``. There is no NOTIFY in a
commit: it would serialise the commits of all gateways.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from tideline.background import cancel_and_wait
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.domain.ids import TopicIdPartition
from tideline.domain.routing import RouteKind
from tideline.gateway.tracking.view import TrackingView


class WatermarkSource(Protocol):
    async def high_watermarks(
        self, logs: Sequence[TopicIdPartition]
    ) -> Mapping[TopicIdPartition, int]: ...


class _Waiter:
    __slots__ = ("event", "positions")

    def __init__(self, positions: Mapping[TopicIdPartition, int]) -> None:
        self.positions = positions
        self.event = asyncio.Event()


class HighWatermarks:
    """What is known of the suffixes' high watermarks (next offsets), and who waits for more."""

    def __init__(self, source: WatermarkSource, tracking: TrackingView, *, poll_s: float) -> None:
        self._source = source
        self._poll_s = poll_s
        self._known: dict[TopicIdPartition, int] = {}
        self._waiters: dict[TopicIdPartition, set[_Waiter]] = {}
        self._polling: asyncio.Task[None] | None = None
        self._tracking = tracking
        tracking.changed.add(self._routes_changed)

    def known(self, log: TopicIdPartition) -> int:
        """The highest high watermark observed, or -1."""
        return self._known.get(log, -1)

    def observe(self, log: TopicIdPartition, high_watermark: int) -> None:
        """A commit, a fetch or a poll has shown ``high_watermark``: wakes who waits for it."""
        if high_watermark <= self._known.get(log, -1):
            return
        self._known[log] = high_watermark
        for waiter in self._waiters.get(log, ()):
            if high_watermark > waiter.positions[log]:
                waiter.event.set()

    def _routes_changed(self, logs: frozenset[TopicIdPartition]) -> None:
        """Whoever waits looks again. What is no suffix is not served here any more, or begins
        anew after a reset."""
        for log in logs:
            for waiter in self._waiters.get(log, ()):
                waiter.event.set()
            if self._tracking.partition(log.topic_id, log.partition).kind is not RouteKind.SUFFIX:
                self._known.pop(log, None)

    async def wait(self, positions: Mapping[TopicIdPartition, int], timeout_s: float) -> bool:
        """Until one of ``positions`` (next offsets wanted) is below its high watermark, or the
        time is over. Returns whether something changed."""
        waiter = _Waiter(positions)
        for log in positions:
            self._waiters.setdefault(log, set()).add(waiter)
        if any(self.known(log) > at for log, at in positions.items()):
            waiter.event.set()
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll(), name="suffix-poll")
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.event.wait()
            return True
        except TimeoutError:
            return False
        finally:
            for log in positions:
                waiters = self._waiters[log]
                waiters.discard(waiter)
                if not waiters:
                    del self._waiters[log]

    async def _poll(self) -> None:
        """While anybody waits. A query that fails is asked again: waiting is bounded elsewhere."""
        while self._waiters:
            await asyncio.sleep(self._poll_s)
            if not self._waiters:
                return
            try:
                found = await self._source.high_watermarks(list(self._waiters))
            except ControlPlaneUnavailable:
                continue
            for log, high_watermark in found.items():
                self.observe(log, high_watermark)

    async def close(self) -> None:
        if self._polling is not None:
            await cancel_and_wait(self._polling)
