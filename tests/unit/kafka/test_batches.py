"""Headers of record batches, against aiokafka's own codec."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from tideline.kafka.batches import (
    START_BYTES,
    InvalidBatch,
    UnsupportedMagic,
    is_batch,
    iter_batches,
    iter_fetched,
    parse_at,
    patch,
    patched_start,
    truncate_at,
    verify_crc,
)


def batch(
    base_offset: int = 0, records: int = 3, *, producer: int = -1, sequence: int = -1
) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=sequence,
        batch_size=1 << 20,
    )
    for n in range(records):
        builder.append(n, timestamp=1_000 + n, key=b"k", value=b"v%d" % n, headers=[])
    built = bytearray(builder.build())
    patch(built, base_offset, 7)
    return bytes(built)


def test_a_header_is_read_as_it_was_written() -> None:
    (header,) = iter_batches(batch(40, 3, producer=9, sequence=2**31 - 2))
    assert (header.base_offset, header.last_offset, header.record_count) == (40, 42, 3)
    assert (header.base_timestamp, header.max_timestamp) == (1_000, 1_002)
    assert (header.producer_id, header.base_sequence) == (9, 2**31 - 2)
    assert header.last_sequence == 0, "sequences wrap at 2^31"
    assert (header.compression, header.timestamp_type) == ("none", "CreateTime")
    assert not header.is_transactional
    assert not header.is_control


def test_offset_and_epoch_can_be_patched_without_touching_the_crc() -> None:
    patched = bytearray(batch())
    patch(patched, 1_000, 12)
    (header,) = iter_batches(patched)
    assert (header.base_offset, header.partition_leader_epoch) == (1_000, 12)
    assert verify_crc(patched, header)


def test_log_append_time_is_patched_with_a_right_crc() -> None:
    patched = bytearray(batch())
    patch(patched, 5, 1, log_append_time=9_999)
    (header,) = iter_batches(patched)
    assert verify_crc(patched, header)
    assert (header.timestamp_type, header.max_timestamp) == ("LogAppendTime", 9_999)
    read = DefaultRecordBatch(bytes(patched))
    assert [record.timestamp for record in read] == [9_999] * 3


def test_a_flipped_bit_is_seen_by_the_crc() -> None:
    damaged = bytearray(batch())
    damaged[-1] ^= 1
    (header,) = iter_batches(damaged)
    assert not verify_crc(damaged, header)


@pytest.mark.parametrize("boundary", range(11))
def test_truncation_keeps_whole_batches_below_the_boundary(boundary: int) -> None:
    log = batch(0) + batch(3) + batch(6)
    kept = truncate_at(log, boundary)
    assert len(kept) == len(batch(0)) * (boundary // 3 if boundary < 9 else 3)


def test_a_batch_cut_off_at_the_end_is_left_out() -> None:
    log = batch(0) + batch(3)[:-1]
    assert [h.base_offset for h in iter_fetched(log)] == [0]
    assert truncate_at(log, 100) == batch(0)
    with pytest.raises(InvalidBatch):
        list(iter_batches(log))


def test_an_old_message_format_is_told_apart() -> None:
    old = bytearray(batch())
    old[16] = 1
    with pytest.raises(UnsupportedMagic):
        list(iter_batches(old))


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_read(data: bytes) -> None:
    for walk in (iter_batches, iter_fetched):
        try:
            for header in walk(data):
                assert 0 <= header.position < header.end <= len(data)
        except InvalidBatch:
            pass


@given(st.data())
def test_a_batch_is_told_in_one_look_as_in_two(data: st.DataObject) -> None:
    """Whole, cut off, followed by something, damaged in any byte, or asked for as another one."""
    records = data.draw(st.integers(1, 4))
    stored = bytearray(batch(5, records))
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(stored) - 1))
        stored[place] ^= 1 << data.draw(st.integers(0, 7))
    size = len(stored) + data.draw(st.sampled_from([0, 0, 0, -1, 1]))
    found = bytes(stored)[: len(stored) + data.draw(st.sampled_from([0, 0, 0, -1, -400]))]
    delta = records - 1 + data.draw(st.sampled_from([0, 0, 0, 1]))

    def in_two() -> bool:
        try:
            header = parse_at(found, 0)
        except InvalidBatch:
            return False
        fits = header.size == size == len(found) and header.last_offset_delta == delta
        return fits and verify_crc(found, header)

    assert is_batch(memoryview(found), size, delta) == in_two()


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1))
def test_the_start_of_a_batch_is_made_as_it_is_patched(base_offset: int, epoch: int) -> None:
    stored = batch()
    patched = bytearray(stored)
    patch(patched, base_offset, epoch)
    assert patched_start(base_offset, len(stored), epoch) + stored[START_BYTES:] == patched
