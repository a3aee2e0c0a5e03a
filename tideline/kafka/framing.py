"""Length-prefixed frames over a stream, bounded before anything is allocated."""

from __future__ import annotations

import asyncio
from typing import cast

_SMALL = 16_384
"""Bytes of the buffer that every connection has; larger frames get one of their own."""
_JOINED = 131_072
"""Frames below this go to the socket in one call, joined with their length."""
FIRST = 1_048_576
"""A large frame's buffer begins with at most this and grows as bytes arrive, so that a peer pays
with traffic for the memory that it takes."""
_HEAD = 4
"""Bytes of a large frame that have to be there before it is begun."""


class FrameProtocol(asyncio.BufferedProtocol):
    """Cuts what arrives into frames. Subclasses take them in :meth:`frame_received`."""

    def __init__(self, max_frame_bytes: int, first_buffer_bytes: int = FIRST) -> None:
        """``first_buffer_bytes``: of a large frame, before more of it has arrived."""
        self._max = max_frame_bytes
        self.first_buffer_bytes = first_buffer_bytes
        self._small = bytearray(_SMALL)
        self._view = memoryview(self._small)
        self._corked: list[bytes] | None = None
        self._large: bytearray | None = None
        self._size = 0
        self._filled = 0
        self.transport: asyncio.Transport | None = None

    def allow(self, max_frame_bytes: int) -> None:
        """Frames that begin from now on may have so many bytes."""
        self._max = max_frame_bytes

    def frame_received(self, frame: bytes) -> None:
        """One whole frame without its length prefix, in the order of arrival."""
        raise TypeError(f"{type(self).__name__} takes no frames")

    def frame_refused(self, reason: str) -> None:
        """The peer sent a length that is not acceptable. The connection is closed after it."""

    def large_frame_begins(self, size: int, head: bytes) -> str | None:
        """Why a frame of ``size`` bytes, more than every connection has a buffer for, that begins
        with the four bytes ``head`` is refused; ``None`` if it is not."""
        return None

    def buffer_changed(self, size: int) -> None:
        """The buffer of a large frame that is half read has ``size`` bytes now; 0: it is whole."""

    @property
    def within_frame(self) -> bool:
        """Whether a frame is half read."""
        return self._filled > 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send_frame(self, frame: bytes) -> None:
        """Write one frame; a no-op on a closing connection."""
        if self.transport is not None and not self.transport.is_closing():
            prefix = len(frame).to_bytes(4, "big")
            if self._corked is not None and len(frame) < _SMALL:
                self._corked += (prefix, frame)
            elif len(frame) < _JOINED:
                self._uncork()
                self.transport.write(prefix + frame)
            else:
                self._uncork()
                # The rest is not joined, sliced or copied but into the transport's own buffer:
                # each copy of the largest frames takes the event loop 60 ms.
                self.transport.write(prefix + frame[:_SMALL])
                self.transport.write(memoryview(frame)[_SMALL:])

    def cork(self) -> None:
        """Gather the small frames that are sent from now on, in their order, until :meth:`release`:
        what one read brings causes one write. Whoever corks releases in the same step."""
        if self._corked is None:
            self._corked = []

    def release(self) -> None:
        """Write what was gathered, and from now on each frame when it is sent."""
        self._uncork()
        self._corked = None

    def _uncork(self) -> None:
        if self._corked:
            gathered = b"".join(self._corked)
            self._corked.clear()
            if self.transport is not None and not self.transport.is_closing():
                self.transport.write(gathered)

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
            self.buffer_changed(0)
            self.frame_received(bytes(large))
        elif self._filled == len(large):
            grown = bytearray(min(self._size, 2 * len(large)))
            grown[: self._filled] = large
            self._large = grown
            self.buffer_changed(len(grown))

    def _cut_small(self) -> None:
        buffer, at, filled = self._small, 0, self._filled
        while filled - at >= 4:
            size = int.from_bytes(buffer[at : at + 4], "big", signed=True)
            if not 0 < size <= self._max:
                self._reject(f"a frame of {size} bytes: 1 to {self._max} are allowed")
                return
            if filled - at - 4 < size:
                if size + 4 > _SMALL and filled - at >= 4 + _HEAD:
                    head = bytes(buffer[at + 4 : at + 4 + _HEAD])
                    if (reason := self.large_frame_begins(size, head)) is not None:
                        self._reject(reason)
                    else:
                        self._start_large(size, at + 4, filled)
                    return
                break
            frame = bytes(self._view[at + 4 : at + 4 + size])
            at += 4 + size
            self.frame_received(frame)
            if self.transport is not None and self.transport.is_closing():
                self._filled = 0
                return  # nobody takes what follows, nor gives back the room of a buffer for it
        rest = filled - at
        if at and rest:
            buffer[:rest] = buffer[at:filled]
        self._filled = rest

    def _reject(self, reason: str) -> None:
        self.frame_refused(reason)
        self._uncork()
        if self.transport is not None:
            self.transport.close()
        self._filled = 0

    def _start_large(self, size: int, start: int, filled: int) -> None:
        self._size, self._filled = size, filled - start
        self._large = bytearray(min(size, max(self.first_buffer_bytes, self._filled)))
        self._large[: self._filled] = self._view[start:filled]
        self.buffer_changed(len(self._large))
