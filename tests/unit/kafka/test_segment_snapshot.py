"""Producer snapshots and leader-epoch checkpoints go out and come back, or are refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.remote_log import EpochStart
from tideline.kafka.segment_files import (
    UPLOAD_ORDER,
    MalformedCheckpoint,
    MalformedSnapshot,
    ProducerSnapshotEntry,
    SegmentFile,
    decode_leader_epochs,
    decode_snapshot,
    encode_leader_epochs,
    encode_snapshot,
    object_keys,
    offset_name,
)

longs = st.integers(-1, 2**63 - 1)
ints = st.integers(-1, 2**31 - 1)
entries = st.builds(
    ProducerSnapshotEntry, longs, st.integers(-1, 2**15 - 1), ints, longs, ints, longs, ints, longs
)


@given(st.lists(entries, max_size=20))
def test_snapshots_come_back_as_they_went_out(given_entries: list[ProducerSnapshotEntry]) -> None:
    assert decode_snapshot(encode_snapshot(given_entries)) == tuple(given_entries)


def test_an_empty_snapshot_is_kafkas_ten_bytes() -> None:
    assert encode_snapshot([]) == bytes.fromhex("0001 48674bc7 00000000")


@given(st.binary(max_size=200))
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedSnapshot):
        decode_snapshot(data)


@given(st.lists(entries, min_size=1, max_size=3), st.data())
def test_a_flipped_bit_is_refused(given: list[ProducerSnapshotEntry], data: st.DataObject) -> None:
    good = bytearray(encode_snapshot(given))
    good[data.draw(st.integers(0, len(good) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(MalformedSnapshot):
        decode_snapshot(bytes(good))


def test_a_count_that_does_not_fit_is_refused() -> None:
    data = bytearray(encode_snapshot([]))
    struct.pack_into(">i", data, 6, -1)
    with pytest.raises(MalformedSnapshot, match="do not hold -1 entries"):
        decode_snapshot(data)


def test_checkpoints_come_back_as_they_went_out() -> None:
    epochs = (EpochStart(0, 0), EpochStart(3, 12), EpochStart(4, 99))
    assert encode_leader_epochs(epochs) == b"0\n3\n0 0\n3 12\n4 99\n"
    assert decode_leader_epochs(encode_leader_epochs(epochs)) == epochs


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"0\n",
        b"1\n0\n",
        b"0\n2\n0 0\n",
        b"0\n1\n0\n",
        b"0\n1\nx 0\n",
        b"0\n2\n4 0\n3 5\n",
        b"\xff",
    ],
)
def test_a_malformed_checkpoint_is_refused(text: bytes) -> None:
    with pytest.raises(MalformedCheckpoint):
        decode_leader_epochs(text)


def test_the_log_is_uploaded_last_and_every_file_has_a_key() -> None:
    assert set(UPLOAD_ORDER) == set(SegmentFile)
    keys = object_keys("orders-id/0/" + offset_name(42) + "-seg")
    assert list(keys.values())[-1] == "orders-id/0/00000000000000000042-seg.log"


def test_names_need_an_offset_that_exists() -> None:
    with pytest.raises(ValueError, match="negative"):
        offset_name(-1)
