"""Which topics one name has meant, for whoever is told something by name.

A name is ambiguous from the creation of a second topic until no broker knows the first one any
more: what is told by name meanwhile may be of either. Before and after it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from uuid import UUID


@dataclass
class Life:
    id: UUID
    begins: float
    ends: float = inf
    """Another topic has its name, and no broker knows this one."""


class Lives:
    """The topics of one name, in the order of their creation. Times in s of the loop."""

    def __init__(self, now: Callable[[], float], is_known: Callable[[UUID], bool]) -> None:
        """``is_known``: whether any broker has a partition of the topic."""
        self._now, self._is_known = now, is_known
        self._lives: list[Life] = []
        self.hold = False
        """Whoever stands between brokers and clients may not know it yet."""

    def begin(self, topic_id: UUID) -> None:
        self._lives.append(Life(topic_id, self._now()))

    def possible(self, since: float, until: float = inf) -> list[UUID]:
        """What an answer by name may be of that was asked for at ``since`` and came at ``until``;
        an attempt that was given up may be done at any time, also later than now."""
        for life in self._lives[:-1]:
            if life.ends == inf and not self.hold and not self._is_known(life.id):
                life.ends = self._now()
        return [life.id for life in self._lives if life.begins <= until and since <= life.ends]
