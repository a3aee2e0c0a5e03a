"""The event loop that a gateway runs on; what uvloop does otherwise is in docs/gateway.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tideline.settings import EventLoop


def run(work: Coroutine[Any, Any, None], loop: EventLoop) -> None:
    """As :func:`asyncio.run`, on ``loop``."""
    with asyncio.Runner(loop_factory=_factory(loop)) as runner:
        runner.run(work)


def _factory(loop: EventLoop) -> Callable[[], asyncio.AbstractEventLoop]:
    if loop == "asyncio":
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop
