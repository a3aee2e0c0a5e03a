"""Whole batches from a stream whose pieces are cut anywhere, in bounded memory."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from tideline.kafka.batches import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    Buffer,
    InvalidBatch,
    UnsupportedMagic,
)

MAX_BATCH_BYTES = 128 * 1024 * 1024
"""A batch that says to be larger is damage, not data: Kafka's own default limit is 1 MiB, and no
client's request gets past ``socket.request.max.bytes`` (100 MiB)."""
_LENGTH = struct.Struct(">i")
_LENGTH_AT, _MAGIC_AT = 8, 16


def whole_batches(
    pieces: Iterable[Buffer], *, max_batch_bytes: int = MAX_BATCH_BYTES
) -> Iterator[bytes]:
    """Regroup ``pieces`` so that each buffer holds one or more whole batches.

    Holds at most one piece and one batch. Raises :class:`InvalidBatch` for a length that no batch
    has and for a stream that ends inside a batch.
    """
    rest = bytearray()
    position = 0
    for piece in pieces:
        rest += piece
        end = _end_of_whole(rest, position, max_batch_bytes)
        if end:
            yield bytes(memoryview(rest)[:end])
            del rest[:end]
            position += end
    if rest:
        raise InvalidBatch(
            f"the stream ends inside a batch: {len(rest)} bytes after byte {position}"
        )


def _end_of_whole(data: Buffer, position: int, max_batch_bytes: int) -> int:
    """Where the last whole batch of ``data`` ends; ``position`` is that of ``data`` itself."""
    end = 0
    while len(data) - end > _MAGIC_AT:
        if (magic := data[end + _MAGIC_AT]) != MAGIC:
            raise UnsupportedMagic(f"magic {magic} at byte {position + end}")
        size = _LENGTH.unpack_from(data, end + _LENGTH_AT)[0] + LOG_OVERHEAD
        if not HEADER_BYTES <= size <= max_batch_bytes:
            raise InvalidBatch(
                f"a batch at byte {position + end} says {size} bytes; "
                f"{HEADER_BYTES} to {max_batch_bytes} are possible"
            )
        if end + size > len(data):
            break
        end += size
    return end
