"""Large answers are decoded by another thread, so that the event loop is not held up: what a broker
says of 20,000 partitions takes some hundred milliseconds."""

from __future__ import annotations

import asyncio

from kio.static.protocol import ResponsePayload

from tideline.kafka.protocol import decode_response

AT_ONCE_BYTES = 64 * 1024
"""About five milliseconds of metadata; a change of threads takes a tenth of one."""
AT_ONCE_PARTITIONS = 500
"""Of answers whose bytes are records for the most part, which cost no decoding."""


async def decoded_response(
    frame: bytes, api_key: int, version: int, *, partitions: int | None = None
) -> ResponsePayload:
    """As :func:`decode_response`, beside the event loop if the frame is large, or, where
    ``partitions`` is given, if there are many of them. Raises as it does."""
    large = len(frame) > AT_ONCE_BYTES and (partitions is None or partitions > AT_ONCE_PARTITIONS)
    if not large:
        return decode_response(frame, api_key, version)
    return await asyncio.to_thread(decode_response, frame, api_key, version)
