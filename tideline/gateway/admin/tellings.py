"""What Kafka did to tracked topics, told to the control plane by tasks of the gateway's own.

A client that leaves ends the handlers of its requests (``ServedConnection._end_served``); what
Kafka has done by then stays done. So whatever must be known to Postgres runs here, where no client
and no closed connection ends it, and is repeated while Postgres or Kafka is away, until the process
ends. What is lost with the process the worker's reconciler finds (``tideline/worker/identity.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    wait_random_exponential,
)

from tideline.background import cancel_and_wait, spawn
from tideline.errors import TidelineError, UnreachableError
from tideline.gateway.metrics import TELLINGS_LOST, TELLINGS_PENDING

T = TypeVar("T")
MAX_TELLINGS = 1_000
"""More than an admin client deletes while Postgres restarts; what is beyond is the reconciler's."""
MAX_SHIELDED = 1_000
"""Requests whose work goes on without their clients."""
ANSWER_WAITS_S = 2.0
"""How long an answer waits until the control plane knows; then it leaves, and telling goes on."""
LONGEST_PAUSE_S = 5.0

log = structlog.get_logger()


@dataclass(slots=True)
class Telling:
    """One thing that the control plane has to know."""

    what: str
    task: asyncio.Task[None]
    why_not_yet: str = ""


class Tellings:
    """One per process."""

    def __init__(self, most: int = MAX_TELLINGS, most_shielded: int = MAX_SHIELDED) -> None:
        self._most, self._most_shielded = most, most_shielded
        self._pending: dict[str, Telling] = {}
        self._shielded: set[asyncio.Task[Any]] = set()

    def pending(self) -> dict[str, str]:
        """What is not told yet, and why."""
        return {t.what: t.why_not_yet for t in self._pending.values()}

    def tell(self, what: str, call: Callable[[], Awaitable[None]]) -> asyncio.Task[None] | None:
        """Begin to tell it; the same ``what`` is told once at a time. ``None``: there is no room,
        which is logged, and the worker's reconciler has to find it."""
        if (known := self._pending.get(what)) is not None:
            return known.task
        if len(self._pending) >= self._most:
            TELLINGS_LOST.inc()
            log.error("telling.no_room", what=what, pending=len(self._pending))
            return None
        telling = Telling(what, spawn(self._tell(what, call), "telling"))
        self._pending[what] = telling
        TELLINGS_PENDING.set(len(self._pending))
        return telling.task

    async def tell_and_wait(self, what: str, call: Callable[[], Awaitable[None]]) -> bool:
        """The same, and wait a moment. Whether it has ended by then."""
        task = self.tell(what, call)
        if task is None:
            return False
        done, _ = await asyncio.wait({task}, timeout=ANSWER_WAITS_S)
        return bool(done)

    async def whatever_the_client_does(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, which goes on when the caller is cancelled, unless too much goes
        on already: then it ends with its client, and what is lost the reconciler has to find."""
        if len(self._shielded) >= self._most_shielded:
            log.warning("telling.not_shielded", under_way=len(self._shielded))
            return await work
        task = spawn(work, "admin-request")
        self._shielded.add(task)
        task.add_done_callback(self._end_of_shielded)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Give up what is not told yet: the process ends."""
        for what, why in self.pending().items():
            log.warning("telling.given_up", what=what, why=why)
        await cancel_and_wait(*(t.task for t in self._pending.values()), *self._shielded)

    async def _tell(self, what: str, call: Callable[[], Awaitable[None]]) -> None:
        def report(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome is not None else None
            if (telling := self._pending.get(what)) is not None:
                telling.why_not_yet = str(error)
            log.warning("telling.waits", what=what, why=str(error), attempt=state.attempt_number)

        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(UnreachableError),
                wait=wait_random_exponential(0.1, max=LONGEST_PAUSE_S),
                before_sleep=report,
            ):
                with attempt:
                    await call()
        except TidelineError as error:
            log.error("the control plane refused what Kafka did", what=what, error=str(error))
        finally:
            del self._pending[what]
            TELLINGS_PENDING.set(len(self._pending))

    def _end_of_shielded(self, task: asyncio.Task[Any]) -> None:
        self._shielded.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("telling.work_ended", error=str(error))
