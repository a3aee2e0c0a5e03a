"""Frames over a stream."""

from __future__ import annotations

import pytest

from tideline.kafka.framing import FrameProtocol


class Frames(FrameProtocol):
    def __init__(self) -> None:
        super().__init__(10_000_000)
        self.frames: list[bytes] = []

    def frame_received(self, frame: bytes) -> None:
        self.frames.append(frame)

    def feed(self, data: bytes, most: int) -> None:
        """Bytes that arrive, at most so many at once."""
        at = 0
        while at < len(data):
            buffer = self.get_buffer(-1)
            size = min(len(buffer), len(data) - at, most)
            buffer[:size] = data[at : at + size]
            at += size
            self.buffer_updated(size)


def framed(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


@pytest.mark.parametrize("most", [1, 3, 1000, 16_384, 1_000_000])
def test_frames_are_cut_from_whatever_pieces_arrive(most: int) -> None:
    sizes = (1, 2, 16_380, 5, 16_381, 40_000, 3) if most > 3 else (1, 2, 5, 300)
    frames = [bytes([number]) * size for number, size in enumerate(sizes)]
    peer = Frames()
    peer.feed(framed(*frames), most)
    assert peer.frames == frames
