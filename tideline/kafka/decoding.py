"""What is long is decoded and walked by another thread, so that the event loop is not held up: what
a broker says of 20,000 partitions takes some hundred milliseconds, and so does what it answers of a
log with hundreds of thousands of small batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from kio.static.protocol import ResponsePayload

from tideline.kafka.fair_thread import FairThread
from tideline.kafka.protocol import decode_response

AT_ONCE_BYTES = 64 * 1024
"""About five milliseconds of metadata; a change of threads takes a tenth of one."""
AT_ONCE_PARTITIONS = 500
"""Of answers whose bytes are records for the most part, which cost no decoding."""
AT_ONCE_ELEMENTS = 1_000
"""Of a request: two milliseconds. As many as there may be take eighty."""
WALKED_AT_ONCE_BYTES = 1024 * 1024
"""Batches of one answer that are walked on the event loop: three milliseconds of the smallest."""

T = TypeVar("T")
_BESIDE = FairThread("beside-the-loop")
"""One: several would take the interpreter from the loop in turns, and be no faster."""


async def beside_the_loop(client: object, work: Callable[..., T], *arguments: object) -> T:
    """What ``work`` returns or raises, in the process's one thread for what is long, when it is the
    turn of ``client``."""
    return await _BESIDE.run(client, partial(work, *arguments))


async def decoded_response(
    client: object, frame: bytes, api_key: int, version: int, *, partitions: int | None = None
) -> ResponsePayload:
    """As :func:`decode_response`, beside the event loop if the frame is large, or, where
    ``partitions`` is given, if there are many of them: when it is the turn of ``client``, who has
    asked. Raises as it does."""
    large = len(frame) > AT_ONCE_BYTES and (partitions is None or partitions > AT_ONCE_PARTITIONS)
    if not large:
        return decode_response(frame, api_key, version)
    return await beside_the_loop(client, decode_response, frame, api_key, version)
