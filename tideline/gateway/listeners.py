"""News from one part of the gateway to others that were built after it.

The part that has news owns the list; whoever reacts is given that part by its constructor and adds
itself there. So the parts stand in one order, and none knows a part that comes later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Listeners(Generic[P]):
    """Called at once, in the order in which they were added."""

    def __init__(self) -> None:
        self._listeners: list[Callable[P, None]] = []

    def add(self, listener: Callable[P, None]) -> None:
        """Call ``listener`` with all news from now on."""
        self._listeners.append(listener)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for listener in self._listeners:
            listener(*args, **kwargs)
