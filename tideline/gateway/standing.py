"""How a gateway stands: ``/health`` for whoever restarts it, ``/ready`` for whoever waits for it,
as a rolling restart does before the next one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from tideline import __version__
from tideline.domain.answers import LeaseState
from tideline.gateway.metrics import LOOP_LATENESS
from tideline.pages import MOST_KEPT, Kept, Page

BEAT_S = 0.5
STATE_S = 5.0
STUCK_S = 30.0
"""An event loop that has not turned for so long will not serve again by itself. Longer than a
machine that is overloaded lets one wait."""


class Standing:
    """Written by the event loop, read by the threads that answer probes."""

    def __init__(self, gateway_id: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._gateway_id, self._clock = gateway_id, clock
        self._turned_at = clock()
        self._phase: str | None = "starting: it reads what is tracked"
        self._listening: Callable[[], bool] = lambda: False
        self._lease: Callable[[], LeaseState] = lambda: LeaseState.LAPSED
        self._stopped: Callable[[], str | None] = lambda: None
        self._ask_state: Callable[[str | None], Mapping[str, object]] = lambda topic: {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._states = Kept(self._state_of, clock)

    def serves(
        self,
        listening: Callable[[], bool],
        lease: Callable[[], LeaseState],
        stopped: Callable[[], str | None],
        state: Callable[[str | None], Mapping[str, object]],
    ) -> None:
        """From now on. ``stopped``: why tracked traffic is, if it is; ``state``: what is believed,
        of one topic or of all, asked on the event loop."""
        self._listening, self._lease, self._stopped = listening, lease, stopped
        self._ask_state = state
        self._phase = None

    def stops(self) -> None:
        """No connection is accepted any more."""
        self._phase = "stopping"

    async def turn(self) -> None:
        """Notes that the event loop turns, and how late it comes, until cancelled. ``/state`` is
        asked on this loop."""
        self._loop = asyncio.get_running_loop()
        while True:
            due = self._clock() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self._turned_at = self._clock()
            LOOP_LATENESS.set(max(0.0, self._turned_at - due))

    def why_not_ready(self) -> list[str]:
        """Empty: clients of classic and of tracked topics are served."""
        if self._phase is not None:
            return [self._phase]
        reasons = []
        if not self._listening():
            reasons.append("the paired broker does not answer: no connection is accepted")
        if (why := self._stopped()) is not None:
            reasons.append(f"tracked traffic is stopped: {why}")
        elif self._lease() is not LeaseState.HELD:
            reasons.append("the lease is not held: tracked topics are refused until it is renewed")
        return reasons

    def why_not_healthy(self) -> list[str]:
        """Empty: a restart would mend nothing."""
        silent = self._clock() - self._turned_at
        if silent <= STUCK_S:
            return []
        return [f"the event loop has not turned for {silent:.0f} s"]

    def pages(self) -> dict[str, Page]:
        return {
            "/health": lambda query: self._page("healthy", self.why_not_healthy()),
            "/state": self._state,
            "/ready": lambda query: self._page(
                "ready", [*self.why_not_healthy(), *self.why_not_ready()]
            ),
        }

    def _state(self, query: Mapping[str, str]) -> tuple[bool, Mapping[str, object]]:
        told = self._states.get(query.get("topic"))
        why = f"the states of {MOST_KEPT} topics were asked for within a second: ask again"
        return self._page("known", [why]) if told is None else told

    def _state_of(self, topic: str | None) -> tuple[bool, Mapping[str, object]]:
        if self._loop is None or self._phase is not None:
            return self._page("known", self.why_not_ready() or ["starting"])

        async def ask() -> Mapping[str, object]:
            return self._ask_state(topic)

        asked = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        try:
            found = asked.result(STATE_S)
        except TimeoutError:
            asked.cancel()
            return self._page("known", [f"the event loop did not answer within {STATE_S:.0f} s"])
        why = self.why_not_ready()
        return True, {**self._page("ready", why)[1], **found}

    def _page(self, name: str, why: list[str]) -> tuple[bool, Mapping[str, object]]:
        body = {name: not why, "why": why, "gateway": self._gateway_id, "version": __version__}
        return not why, body
