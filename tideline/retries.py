"""Calls that are repeated when they fail, and nearly never fail."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type
from tenacity.stop import StopBaseT
from tenacity.wait import WaitBaseT

T = TypeVar("T")


async def retried(
    call: Callable[[], Awaitable[T]],
    on: type[Exception] | tuple[type[Exception], ...],
    *,
    wait: WaitBaseT,
    stop: StopBaseT | None = None,
) -> T:
    """What ``call`` returns, called again after ``wait`` while it raises one of ``on`` and ``stop``
    does not say otherwise. Raises what the last attempt raised.

    It is tenacity that repeats it, and counts attempts and time from the first one on; but that one
    costs nothing beside itself, as tenacity's own takes as long as a small commit.
    """
    began = time.monotonic()
    failed: list[Exception] = []
    try:
        return await call()
    except on as error:
        failed.append(error)
    attempts = AsyncRetrying(retry=retry_if_exception_type(on), wait=wait, reraise=True)
    if stop is not None:
        attempts.stop = stop
    async for attempt in attempts:
        with attempt:
            if failed:
                attempt.retry_state.start_time = began
                raise failed.pop()
            return await call()
    raise AssertionError("unreachable: the last attempt returns or raises")
