"""Ranges of objects, read ahead of who takes them in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tideline.object_store.byte_ranges import ByteRange

READ_AHEAD_BYTES = 16 * 1024 * 1024
"""Bytes that are read ahead at most, beside the range in hand; one larger range goes alone."""
READERS = 8
"""Many ranges are small: their latency, not their bytes, is what reading ahead hides."""


def read_ahead(
    wanted: Sequence[ByteRange],
    get: Callable[[ByteRange], bytes],
    *,
    window_bytes: int = READ_AHEAD_BYTES,
    threads: int = READERS,
) -> Generator[bytes]:
    """The bytes of ``wanted``, in their order. Raises what ``get`` raises, at the place of the
    range that it concerns."""
    under_way: deque[tuple[Future[bytes], int]] = deque()
    ahead = 0
    remaining = deque(wanted)
    with ThreadPoolExecutor(threads, thread_name_prefix="read-ahead") as pool:
        try:
            while remaining or under_way:
                while remaining and (not under_way or ahead + remaining[0].size <= window_bytes):
                    part = remaining.popleft()
                    under_way.append((pool.submit(get, part), part.size))
                    ahead += part.size
                future, size = under_way.popleft()
                ahead -= size
                yield future.result()
        finally:
            for future, _ in under_way:
                future.cancel()
