"""Length-prefixed frames over a stream, bounded before anything is allocated."""

from __future__ import annotations

import asyncio
from typing import cast

SMALL = 16_384
"""Bytes of the buffer that every connection has; larger frames get one of their own."""
_FIRST = 1_048_576
"""A large frame's buffer begins with at most this and grows as bytes arrive, so that a peer pays
with traffic for the memory that it takes."""


class FrameProtocol(asyncio.BufferedProtocol):
    """Cuts what arrives into frames. Subclasses take them in :meth:`frame_received`."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max = max_frame_bytes
        self._small = bytearray(SMALL)
        self._view = memoryview(self._small)
        self._large: bytearray | None = None
        self._size = 0
        self._filled = 0
        self.transport: asyncio.Transport | None = None

    def frame_received(self, frame: bytes) -> None:
        """One whole frame without its length prefix, in the order of arrival."""
        raise TypeError(f"{type(self).__name__} takes no frames")

    def frame_refused(self, reason: str) -> None:
        """The peer sent a length that is not acceptable. The connection is closed after it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send_frame(self, frame: bytes) -> None:
        """Write one frame; a no-op on a closing connection."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(len(frame).to_bytes(4, "big") + frame)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return memoryview(self._large)[self._filled :]
        return self._view[self._filled :] if self._filled else self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._large is not None:
            self._continue_large(self._large)
        else:
            self._cut_small()

    def _continue_large(self, large: bytearray) -> None:
        if self._filled == self._size:
            self._large, self._filled = None, 0
            self.frame_received(bytes(large))
        elif self._filled == len(large):
            grown = bytearray(min(self._size, 2 * len(large)))
            grown[: self._filled] = large
            self._large = grown

    def _cut_small(self) -> None:
        buffer, at, filled = self._small, 0, self._filled
        while filled - at >= 4:
            size = int.from_bytes(buffer[at : at + 4], "big", signed=True)
            if not 0 < size <= self._max:
                self._reject(f"a frame of {size} bytes: 1 to {self._max} are allowed")
                return
            if filled - at - 4 < size:
                if size + 4 > SMALL:
                    self._start_large(size, at + 4, filled)
                    return
                break
            frame = bytes(self._view[at + 4 : at + 4 + size])
            at += 4 + size
            self.frame_received(frame)
            if self.transport is not None and self.transport.is_closing():
                self._filled = 0
                return  # nobody takes what follows
        rest = filled - at
        if at and rest:
            buffer[:rest] = buffer[at:filled]
        self._filled = rest

    def _reject(self, reason: str) -> None:
        self.frame_refused(reason)
        if self.transport is not None:
            self.transport.close()
        self._filled = 0

    def _start_large(self, size: int, start: int, filled: int) -> None:
        self._size, self._filled = size, filled - start
        self._large = bytearray(min(size, max(_FIRST, self._filled)))
        self._large[: self._filled] = self._view[start:filled]
