"""Requests as a network may bring them."""

from __future__ import annotations

from hypothesis import strategies as st

from tideline.kafka.protocol import parse_header


def damaged(whole: bytes, data: st.DataObject) -> bytes:
    """A request with some bytes behind its header changed, cut, or with more behind them."""
    frame = bytearray(whole)
    start = parse_header(whole).body_start
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(start, len(frame) - 1))
        frame[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF, frame[at] ^ 1]))
    cut = data.draw(st.integers(start, len(frame)) | st.just(len(frame)))
    return bytes(frame[:cut]) + data.draw(st.binary(max_size=5))
