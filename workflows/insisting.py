"""Calls that are tried until they succeed, and say why they have not yet."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from workflows.calls import Call, CallFailed, perform
    from workflows.phases import pause_before_next_try


def never() -> bool:
    """Nothing interrupts."""
    return False


class Insistent:
    """Retries of one workflow. ``show`` gets the reason, and an empty one at the end."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._nudged = False

    def nudge(self) -> None:
        """Try at once what is being waited for."""
        self._nudged = True

    async def call(
        self,
        call: Call,
        given: Any,
        interrupted: Callable[[], bool] = never,
        leave: Collection[str] = (),
    ) -> Any:
        """The result of ``call``. Raises :class:`CallFailed` only for a kind in ``leave``, and
        ``Interrupted`` when ``interrupted()`` comes to hold."""
        tries = 0
        while True:
            try:
                result = await perform(call, given, interrupted)
            except CallFailed as failure:
                if failure.kind in leave:
                    raise
                tries += 1
                self._show(failure.message)
                await self.rest(tries, interrupted)
            else:
                if tries:
                    self._show("")
                return result

    async def rest(self, tries: int, interrupted: Callable[[], bool]) -> None:
        """Before the next try; an interruption or a nudge cuts it short."""
        self._nudged = False
        try:
            await workflow.wait_condition(
                lambda: self._nudged or interrupted(), timeout=pause_before_next_try(tries)
            )
        except TimeoutError:
            return
