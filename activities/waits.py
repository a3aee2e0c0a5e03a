"""Bounded waits that heartbeat, so that a lost worker is noticed and a cancel is heard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from temporalio import activity

from activities.services import monotonic_ms


def heartbeat(detail: str = "") -> None:
    """Tell Temporal that the activity lives; a local one needs not, and nothing outside of one."""
    if activity.in_activity() and not activity.info().is_local:
        activity.heartbeat(detail)


async def rounds(
    bound_ms: float, every_ms: float, wake: asyncio.Event | None = None
) -> AsyncIterator[int]:
    """Yield 0, 1, 2 … at once and then each time ``every_ms`` have passed or ``wake`` is set;
    ends when ``bound_ms`` have passed. Heartbeats at every round."""
    ends = monotonic_ms() + bound_ms
    number = 0
    while True:
        heartbeat()
        if wake is not None:
            wake.clear()
        yield number
        number += 1
        left = ends - monotonic_ms()
        if left <= 0:
            return
        pause = min(every_ms, left) / 1000
        if wake is None:
            await asyncio.sleep(pause)
        else:
            try:
                async with asyncio.timeout(pause):
                    await wake.wait()
            except TimeoutError:
                continue
