"""An object from a byte on, in order, the next piece read while one is looked at."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

FIRST_GET_BYTES = 1024 * 1024
GET_BYTES = 8 * 1024 * 1024
"""Of the GETs of a piece each is twice as large as the one before, up to this: a few offsets cost
little, and many few requests."""


class Ahead:
    """``[start, end)`` of one object, by ``get(start, end)``. At most two pieces and what is looked
    at are in memory."""

    def __init__(self, get: Callable[[int, int], bytes], start: int, end: int) -> None:
        self._get, self._end = get, end
        self._buffer, self._at = memoryview(b""), 0
        self._next_start, self._size = start, FIRST_GET_BYTES
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="table-ahead")
        self._next: Future[bytes] | None = None
        self._ask()

    def _ask(self) -> None:
        start, end = self._next_start, min(self._next_start + self._size, self._end)
        self._size = min(2 * self._size, GET_BYTES)
        self._next = self._thread.submit(self._get, start, end) if start < end else None
        self._next_start = end

    def peek(self, size: int) -> memoryview:
        """``size`` bytes or more from here on; less at the end. Raises as the store does."""
        while len(self._buffer) - self._at < size and self._next is not None:
            more = self._next.result()
            rest = self._buffer[self._at :]
            self._buffer, self._at = memoryview(bytes(rest) + more if rest else more), 0
            self._ask()
        return self._buffer[self._at :]

    def skip(self, size: int) -> None:
        self._at += size

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
