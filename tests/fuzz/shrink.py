"""The smallest part of a finding that still is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

TRIES = 400


def one_of(frames: Sequence[bytes], shows: Callable[[bytes], bool]) -> bytes | None:
    """The first of the frames that shows it on a connection of its own."""
    return next((frame for frame in frames if shows(frame)), None)


def shrunk(frame: bytes, shows: Callable[[bytes], bool]) -> bytes:
    """A frame that shows the same and is not longer: first pieces are left out, the larger ones
    first, then bytes are made zero. At most :data:`TRIES` frames are tried."""
    tried = 0

    def still(candidate: bytes) -> bool:
        nonlocal tried
        tried += 1
        return tried <= TRIES and shows(candidate)

    piece = len(frame) // 2
    while piece >= 1:
        at = 0
        while at < len(frame):
            candidate = frame[:at] + frame[at + piece :]
            if candidate and still(candidate):
                frame = candidate
            else:
                at += piece
        piece //= 2
    for at in range(len(frame)):
        if frame[at] and still(candidate := frame[:at] + b"\0" + frame[at + 1 :]):
            frame = candidate
    return frame
