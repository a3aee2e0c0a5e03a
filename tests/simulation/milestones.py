"""What has happened in a run, how often, and who waits for the next time.

A milestone is named by what happens and, where several do it, by who: ``crossed``, ``gateway2
put``. What happens to one of several of a kind is reached for the kind, too: ``gateway put``.
"""

from __future__ import annotations

import asyncio
from collections import Counter

THEN = " > "
"""``quiesce > gateway2 put``: the first put after quiesce was reached."""


class Milestones:
    def __init__(self) -> None:
        self.times: Counter[str] = Counter()
        self._waiting: dict[str, list[tuple[int, asyncio.Event]]] = {}

    def reach(self, what: str, who: str = "") -> bool:
        """It happens now. Whether somebody waited for it, and is to act before anything else
        does: then give up the loop once."""
        if not who:
            return self._reach(what)
        named = self._reach(f"{who} {what}")
        return self._reach(f"{who.rstrip('0123456789')} {what}") or named

    def _reach(self, name: str) -> bool:
        self.times[name] += 1
        waiting = self._waiting.get(name)
        if not waiting:
            return False
        due = [event for nth, event in waiting if nth <= self.times[name]]
        self._waiting[name] = [entry for entry in waiting if entry[0] > self.times[name]]
        for event in due:
            event.set()
        return bool(due)

    async def wait(self, path: str, nth: int = 1) -> None:
        """Until the last of ``path`` has happened for the ``nth`` time since the one before it was
        reached, or since the run began; at once if it has."""
        *before, last = path.split(THEN)
        for name in before[:1]:
            await self._until(name, 1)
        for name in before[1:]:
            await self.next(name)
        await self._until(last, nth + (self.times[last] if before else 0))

    async def next(self, path: str) -> None:
        """Until each of ``path`` has happened again, one after the other."""
        for name in path.split(THEN):
            await self._until(name, self.times[name] + 1)

    async def _until(self, name: str, times: int) -> None:
        if self.times[name] < times:
            event = asyncio.Event()
            self._waiting.setdefault(name, []).append((times, event))
            await event.wait()
