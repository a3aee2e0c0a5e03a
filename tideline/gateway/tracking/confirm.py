"""Asks Postgres, after Kafka has answered, how partitions without B0 stand.

What always holds: what :meth:`Confirmations.standing` answers was read in a snapshot that was taken
after it was called. The rule that needs this is at :mod:`tideline.domain.ack_gate`.

One question is under way at a time, about all partitions that wait by then, and the next one begins
no sooner than a few milliseconds after the last one began: a gateway costs Postgres some hundred
small queries a second while something migrates, and none otherwise.
"""

from __future__ import annotations

import asyncio
from itertools import islice

import structlog

from tideline.background import cancel_and_wait, spawn
from tideline.control_plane import ControlPlane
from tideline.domain.ack_gate import Standing
from tideline.domain.ids import TopicIdPartition
from tideline.errors import TidelineError
from tideline.gateway.metrics import CONFIRM_SECONDS, CONFIRMATIONS
from tideline.gateway.tracking.lease import Lease

log = structlog.get_logger()
WINDOW_S = 0.003
PATIENCE_S = 10.0
"""Of one question. Not shorter: Postgres goes on with a question that was given up, and the next
one would wait behind it."""
LARGEST_QUESTION = 1_000
"""partitions"""
MOST_WAITING = 20_000
"""partitions; those beyond it are answered at once that nothing is known."""


class Confirmations:
    """The questions of one gateway."""

    def __init__(self, control_plane: ControlPlane, lease: Lease) -> None:
        self._control_plane = control_plane
        self._lease = lease
        self._waiting: dict[TopicIdPartition, asyncio.Future[Standing | None]] = {}
        self._asking: asyncio.Task[None] | None = None
        self._not_before = 0.0

    async def standing(self, at: TopicIdPartition) -> Standing | None:
        """How ``at`` stands in Postgres at some moment of this call; ``None`` if Postgres did not
        say, or does not track it."""
        answer = self._waiting.get(at)
        if answer is None:
            if len(self._waiting) >= MOST_WAITING:
                CONFIRMATIONS.labels("refused").inc()
                return None
            answer = self._waiting[at] = asyncio.get_running_loop().create_future()
        if self._asking is None:
            self._asking = spawn(self._ask(), "confirmations", vital=True)
        found = await asyncio.shield(answer)
        CONFIRMATIONS.labels(_outcome(found)).inc()
        return found

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            await asyncio.sleep(max(0.0, self._not_before - loop.time()))
            began = loop.time()
            self._not_before = began + WINDOW_S
            asked = dict(islice(self._waiting.items(), LARGEST_QUESTION))
            for at in asked:
                del self._waiting[at]
            found: dict[TopicIdPartition, Standing] = {}
            try:
                async with asyncio.timeout(PATIENCE_S):
                    found = await self._control_plane.confirm_partitions(
                        self._lease.gateway_id, self._lease.incarnation, list(asked)
                    )
            except (TidelineError, TimeoutError) as error:
                log.warning("confirmation.not_answered", partitions=len(asked), error=str(error))
            finally:
                for at, answer in asked.items():
                    if not answer.done():
                        answer.set_result(found.get(at))
            CONFIRM_SECONDS.observe(loop.time() - began)
        self._asking = None

    async def close(self) -> None:
        """Nothing is known any more: whoever waits is answered so."""
        if self._asking is not None:
            await cancel_and_wait(self._asking)
        for answer in self._waiting.values():
            answer.set_result(None)
        self._waiting.clear()


def _outcome(standing: Standing | None) -> str:
    if standing is None:
        return "unanswered"
    return "confirmed" if standing.confirms else "withheld"
