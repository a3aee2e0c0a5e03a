"""Frames over a stream: how they are gathered into writes."""

from __future__ import annotations

from typing import cast

import pytest

from tideline.kafka.framing import FrameProtocol


class Written:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class Frames(FrameProtocol):
    def __init__(self) -> None:
        super().__init__(10_000_000)
        self.frames: list[bytes] = []
        self.written = Written()
        self.connection_made(cast(object, self.written))  # type: ignore[arg-type]

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


def test_small_frames_that_are_sent_between_cork_and_release_are_one_write() -> None:
    peer = Frames()
    peer.cork()
    for frame in (b"a", b"bc", b"def"):
        peer.send_frame(frame)
    assert peer.written.writes == []
    peer.release()
    assert peer.written.writes == [framed(b"a", b"bc", b"def")]
    peer.send_frame(b"g")
    assert peer.written.writes[1:] == [framed(b"g")]


@pytest.mark.parametrize("size", [16_384, 131_071, 131_072, 400_000])
def test_a_larger_frame_keeps_its_place_among_gathered_ones(size: int) -> None:
    peer = Frames()
    peer.cork()
    frames = (b"before", b"x" * size, b"behind")
    for frame in frames:
        peer.send_frame(frame)
    peer.release()
    assert b"".join(peer.written.writes) == framed(*frames)


def test_nothing_is_written_to_a_transport_that_closes() -> None:
    peer = Frames()
    peer.cork()
    peer.send_frame(b"a")
    peer.written.close()
    peer.release()
    assert peer.written.writes == []


@pytest.mark.parametrize("most", [1, 3, 1000, 16_384, 1_000_000])
def test_frames_are_cut_from_whatever_pieces_arrive(most: int) -> None:
    sizes = (1, 2, 16_380, 5, 16_381, 40_000, 3) if most > 3 else (1, 2, 5, 300)
    frames = [bytes([number]) * size for number, size in enumerate(sizes)]
    peer = Frames()
    peer.feed(framed(*frames), most)
    assert peer.frames == frames
