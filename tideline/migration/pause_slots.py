"""How many partitions are inside their write pause at once, in this worker process.

Purely about time: pauses that overlap share the same cores, gateways and Postgres, so four at
once last four times as long as four in turn. A partition waits *before* its generation is closed,
while its producers go on. Nothing depends on it for correctness: a slot ends by itself with the
quiesce's hold, and a wait that lasts too long goes on without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tideline.domain.ids import TopicIdPartition


class PauseSlots:
    """A bounded number of holders, each until it leaves or its hold is over."""

    def __init__(self, clock_ms: Callable[[], float], slots: int = 1) -> None:
        self._clock_ms = clock_ms
        self._slots = slots
        self._ends: dict[TopicIdPartition, float] = {}
        self._freed = asyncio.Condition()

    async def enter(self, key: TopicIdPartition, hold_ms: float, bound_ms: float) -> None:
        """Take a slot for at most ``hold_ms``; after ``bound_ms`` go on without a free one."""
        gives_up = self._clock_ms() + bound_ms
        async with self._freed:
            while not self._free_for(key) and (now := self._clock_ms()) < gives_up:
                until = min(gives_up, *self._ends.values())
                try:
                    async with asyncio.timeout(max(until - now, 1) / 1000):
                        await self._freed.wait()
                except TimeoutError:
                    continue
            self._ends[key] = self._clock_ms() + hold_ms

    def _free_for(self, key: TopicIdPartition) -> bool:
        now = self._clock_ms()
        self._ends = {holder: end for holder, end in self._ends.items() if end > now}
        return key in self._ends or len(self._ends) < self._slots

    async def leave(self, key: TopicIdPartition) -> None:
        """The pause of ``key`` is over, or given up."""
        async with self._freed:
            if self._ends.pop(key, None) is not None:
                self._freed.notify(1)

    @asynccontextmanager
    async def left_on_failure(self, key: TopicIdPartition) -> AsyncIterator[None]:
        """A step of the pause that fails ends it: the attempt begins anew outside."""
        try:
            yield
        except BaseException:
            await self.leave(key)
            raise
