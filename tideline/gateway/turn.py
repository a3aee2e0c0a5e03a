"""How long the event loop is at one kind of work in one of its turns."""

from __future__ import annotations

import asyncio


class TurnBudget:
    """Seconds of one turn of the loop, for all connections together. Whoever comes when it is spent
    has its work done elsewhere, or later: what one piece takes is known only when it is done."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._used_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        """Whose turn it is."""

    @property
    def is_spent(self) -> bool:
        return self._loop is asyncio.get_running_loop() and self._used_s >= self._most_s

    def spend(self, took_s: float) -> None:
        """A piece took so long."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._used_s = loop, 0.0
            loop.call_soon(self._ends)
        self._used_s += took_s

    def _ends(self) -> None:
        self._loop = None
