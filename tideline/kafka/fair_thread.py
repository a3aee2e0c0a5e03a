"""One thread that takes work from many clients by turns.

What always holds: between two pieces of work of one client, every other client that has work
waiting has one piece done, so that nobody waits for more than one of anybody else's. The pieces of
one client are done in the order in which they came. Work that nobody waits for any more is
forgotten at once, with what it holds in memory: what waits is bounded by who waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")


class FairThread:
    """Round robin between clients."""

    def __init__(self, name: str, thread: Executor | None = None) -> None:
        """``thread`` runs one piece after the other; ``None``: one of its own, called ``name``."""
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix=name)
        self._lock = Lock()
        self._waiting: dict[object, deque[tuple[Future[Any], Callable[[], Any]]]] = {}
        """By client, the next one's first."""

    async def run(self, client: object, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises, when it is the turn of ``client``."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting.setdefault(client, deque()).append((future, work))
        future.add_done_callback(lambda done: self._forget(client, done))
        asyncio.get_running_loop().run_in_executor(self._thread, self._next)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Ends the thread; what waits for it is cancelled."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            waiting = [future for some in self._waiting.values() for future, _ in some]
        for future in waiting:
            future.cancel()

    def _forget(self, client: object, future: Future[Any]) -> None:
        if not future.cancelled():
            return
        with self._lock:
            left = deque(one for one in self._waiting.get(client, ()) if one[0] is not future)
            if left:
                self._waiting[client] = left
            else:
                self._waiting.pop(client, None)

    def _next(self) -> None:
        """One piece of work, if there is one that is still waited for."""
        with self._lock:
            if not self._waiting:
                return
            client = next(iter(self._waiting))
            some = self._waiting.pop(client)
            future, work = some.popleft()
            if some:
                self._waiting[client] = some  # behind all others
        if not future.set_running_or_notify_cancel():
            return
        try:
            found = work()
        except BaseException as error:
            future.set_exception(error)
            del future, work  # the error's traceback has this frame
        else:
            future.set_result(found)
