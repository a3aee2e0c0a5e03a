"""Exceptions that nobody planned, wherever they go: a task that ends by one, one that is logged,
and one that nobody was told of.

Planned is what somebody has given a name of its own for, and what stands for something outside of
the process: a connection, a bound, what Temporal says. A ``TypeError`` stands for nothing outside,
and is a slip also where whoever waited for it tried again.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Coroutine
from typing import Any

import structlog
from temporalio.exceptions import FailureError

from tests.history.violations import Kind, Violation
from tests.simulation.durable import ContinuedAsNew
from tests.simulation.loop import VirtualLoop, _process

PLANNED = (OSError, FailureError, ContinuedAsNew)
"""``TimeoutError`` is an ``OSError``."""
OURS = ("tideline.", "workflows.", "activities.")
"""Where errors of the product's own are."""
NEVER_PLANNED = ("wal.unexpected",)
"""What is logged so, whatever its error is."""
ENDED = "a background task ended"


def is_planned(error: BaseException) -> bool:
    return isinstance(error, PLANNED) or type(error).__module__.startswith(OURS)


class Unplanned:
    """Hears of every task of a loop, of what the loop has nobody to tell, and of what is logged."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.found: list[Violation] = []
        loop.set_task_factory(self._task)
        loop.set_exception_handler(self._untold)

    def _task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **given: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **given)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        # Not task.exception(), after which asyncio does not tell that nobody asked.
        error = task._exception  # type: ignore[attr-defined]
        if error is not None and not is_planned(error):
            self.tell(f"task {task.get_name()} ended", error)

    def _untold(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or not is_planned(error):
            self.tell(str(context.get("message")), error)

    def processor(self, logger: Any, name: str, event: Any) -> Any:
        """As structlog calls it; nothing is written anywhere."""
        said, error = str(event.get("event")), event.get("exc_info")
        if error is True:
            error = sys.exc_info()[1]
        without_reason = said == ENDED and error is None
        if without_reason or said in NEVER_PLANNED or (error and not is_planned(error)):
            self.tell(f"logged: {said}", error)
        raise structlog.DropEvent

    def tell(self, what: str, error: BaseException | None) -> None:
        """Each once: one slip is met in every request."""
        where = "".join(traceback.format_tb(error.__traceback__)[-3:]) if error else ""
        process = _process.get()
        text = f"{process.name if process else 'nobody'}: {what}: {error!r}\n{where}"
        violation = Violation(Kind.UNPLANNED, None, text.rstrip())
        if violation not in self.found:
            self.found.append(violation)
