"""Objects read ahead, in order, within a bound of memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

WINDOW_BYTES = 32 * 1024 * 1024
"""Bytes that are read ahead at most, beside the object in hand; one larger object goes alone."""
THREADS = 8
"""Many objects are small: their latency, not their bytes, is what reading ahead hides."""


def read_ahead(
    objects: Sequence[tuple[str, int]],
    get: Callable[[str], bytes],
    *,
    window_bytes: int = WINDOW_BYTES,
    threads: int = THREADS,
) -> Iterator[bytes]:
    """The bodies of ``objects`` (key, size in bytes), in their order. Raises what ``get`` raises,
    at the place of the object that it concerns."""
    under_way: deque[tuple[Future[bytes], int]] = deque()
    ahead = 0
    remaining = deque(objects)
    with ThreadPoolExecutor(threads, thread_name_prefix="read-ahead") as pool:
        try:
            while remaining or under_way:
                while remaining and (not under_way or ahead + remaining[0][1] <= window_bytes):
                    key, size = remaining.popleft()
                    under_way.append((pool.submit(get, key), size))
                    ahead += size
                future, size = under_way.popleft()
                ahead -= size
                yield future.result()
        finally:
            for future, _ in under_way:
                future.cancel()
