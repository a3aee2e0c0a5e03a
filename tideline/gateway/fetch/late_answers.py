"""What the broker still owes a connection: the answer to a fetch that was answered without it.

A question cannot be taken back, and Kafka answers a connection's requests one by one. So the next
fetch of the connection waits for that answer before it asks again, and a broker that is slower than
its clients' patience still gets them on. What always holds: of a late answer only records count,
which are true for ever; that there are none, or an error, is asked for anew.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

from tideline.gateway.metrics import BOUND_REACHED
from tideline.gateway.room import Room

KEPT_S = 5.0
"""How long an answer that nobody waits for is kept in memory."""


@dataclass(frozen=True, slots=True)
class LateAnswer:
    request: Any
    """As Kafka was sent it."""
    frame: bytes


class LateAnswers:
    """Of one connection: it is made by :meth:`ClientConnection.state`."""

    def __init__(self) -> None:
        self._owed: dict[asyncio.Future[bytes], Any] = {}
        """No more than fetches of the connection that ran at the same time: the next one waits."""
        self._kept: LateAnswer | None = None
        self._room: Room | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.went_without = False
        """Whether the last fetch was answered before both sides had looked."""

    def leave(self, request: Any, answer: asyncio.Future[bytes], room: Room) -> None:
        """The fetch that asked ``request`` goes on without ``answer``."""
        self._owed[answer] = request
        answer.add_done_callback(partial(self._arrived, room))

    def _arrived(self, room: Room, answer: asyncio.Future[bytes]) -> None:
        request = self._owed.pop(answer)
        if answer.cancelled() or answer.exception() is not None:
            return  # the connection has ended
        self.keep(LateAnswer(request, answer.result()), room)

    def keep(self, late: LateAnswer, room: Room) -> None:
        """For the next fetch, if there is room; what was kept before goes."""
        if len(late.frame) > room.left:
            BOUND_REACHED.labels("memory").inc()
            return
        self.taken()
        room.take("answers", len(late.frame))
        self._kept, self._room = late, room
        self._timer = asyncio.get_running_loop().call_later(KEPT_S, self.taken)

    async def settled(self) -> None:
        """Until nothing is owed."""
        while self._owed:
            await asyncio.wait(list(self._owed))

    def taken(self) -> LateAnswer | None:
        """The last answer that came late. It is kept no more."""
        kept, self._kept = self._kept, None
        if kept is not None and self._room is not None and self._timer is not None:
            self._room.give("answers", len(kept.frame))
            self._timer.cancel()
        return kept
