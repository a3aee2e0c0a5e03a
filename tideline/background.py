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
