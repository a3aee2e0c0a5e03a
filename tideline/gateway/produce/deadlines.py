"""Which of many things that wait have waited too long, found without looking at the others."""

from __future__ import annotations

import heapq

from tideline.domain.ids import TopicIdPartition

STRUCK_KEPT = 64
"""Places of what waits no longer that are kept beside as many as there are of what waits."""


class Deadlines:
    """A heap of deadlines. What is struck off leaves its place in the heap, two numbers, for later:
    striking costs nothing, and nothing that was let through is kept alive by its deadline."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._logs: dict[int, TopicIdPartition] = {}
        self._last = 0

    def add(self, log: TopicIdPartition, deadline: float) -> int:
        """Something of ``log`` waits until ``deadline``; its number, for :meth:`strike`."""
        self._last += 1
        self._logs[self._last] = log
        heapq.heappush(self._heap, (deadline, self._last))
        return self._last

    def strike(self, number: int) -> None:
        """It waits no longer."""
        del self._logs[number]
        if len(self._heap) > 2 * len(self._logs) + STRUCK_KEPT:
            self._heap = [item for item in self._heap if item[1] in self._logs]
            heapq.heapify(self._heap)

    def earliest(self) -> float | None:
        """``None``: nothing waits."""
        while self._heap and self._heap[0][1] not in self._logs:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_late(self, now: float) -> list[TopicIdPartition]:
        """The logs of what was to wait until ``now`` at most, each once, the one with the earliest
        deadline first. They are not reported again: the caller strikes off all of it."""
        late: dict[TopicIdPartition, None] = {}
        while (earliest := self.earliest()) is not None and earliest <= now:
            _, number = heapq.heappop(self._heap)
            late[self._logs[number]] = None
        return list(late)
