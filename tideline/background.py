"""Ending background tasks for certain."""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_AFTER_S = 1.0


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel ``tasks`` until they have ended. What they raise stays with them.

    Once is not enough: before Python 3.12 :func:`asyncio.wait_for`, and psycopg with it, swallows a
    cancellation that arrives together with what it waits for (cpython gh-86296), and a task that
    loops goes on for ever.
    """
    for task in tasks:
        task.cancel()
    while running := [task for task in tasks if not task.done()]:
        _, late = await asyncio.wait(running, timeout=AGAIN_AFTER_S)
        for task in late:
            task.cancel()
    for task in tasks:
        if not task.cancelled():
            task.exception()


async def done_before(task: asyncio.Task[Any], stop: asyncio.Event) -> bool:
    """Whether ``task`` has ended before ``stop`` was set; otherwise it is cancelled, and has ended
    when this returns. What it raises stays with it."""
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        return True
    await cancel_and_wait(task)
    return False
