"""Messages of magic 0 and 1, which a log may keep for years: walked, not decoded."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.kafka.test_batches import batch
from tideline.kafka.batches import (
    InvalidBatch,
    UnsupportedMagic,
    iter_batches,
    iter_fetched,
    newest_epoch,
    truncate_at,
    until_epoch,
)
from tideline.kafka.log_reader import tail_batches

GZIP = 1


def legacy(
    first: int, count: int = 1, *, magic: int = 1, codec: int = 0, value: bytes = b"v"
) -> bytes:
    """``count`` messages from offset ``first`` on; with a codec, in one wrapper, which carries the
    last offset as brokers have it."""
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for n in range(count):
        builder.append(first + n if not codec else n, 1_000 + n, b"key", value)
    built = bytearray(builder.build())
    if codec:
        struct.pack_into(">q", built, 0, first + count - 1)
    return bytes(built)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, GZIP])
@pytest.mark.parametrize("boundary", range(9))
def test_a_prefix_in_the_old_formats_ends_at_the_boundary(
    magic: int, codec: int, boundary: int
) -> None:
    entries = [legacy(n, 2, magic=magic, codec=codec) for n in (0, 2, 4)]
    log = b"".join(entries) + batch(6, 2)
    kept = truncate_at(log, boundary)
    lasts = [header.last_offset for header in iter_fetched(kept)]
    step = 2 if codec else 1
    below = [n for n in range(step - 1, 6, step) if n < boundary] + [7] * (boundary > 7)
    assert lasts == below
    assert bytes(kept) == log[: len(kept)], "what is left is as it came"


def test_a_log_that_was_upgraded_is_walked_through_all_its_formats() -> None:
    log = legacy(0, 2, magic=0) + legacy(2, 3, codec=GZIP) + legacy(5) + batch(6, 3)
    assert [(h.magic, h.last_offset) for h in iter_fetched(log)] == [
        (0, 0), (0, 1), (1, 4), (1, 5), (2, 8),
    ]  # fmt: skip
    assert [h.max_timestamp for h in iter_fetched(log)][:2] == [-1, -1], "magic 0 has no time"
    assert [h.compression for h in iter_fetched(log)] == ["none", "none", "gzip", "none", "none"]
    assert not any(h.is_transactional or h.is_control for h in iter_fetched(log))


def test_a_message_shorter_than_the_header_of_today_is_not_taken_for_a_cut_one() -> None:
    log = legacy(0, 1, magic=0, value=b"") + legacy(1, 1, value=b"")
    assert len(log) < 2 * 61
    assert [h.last_offset for h in iter_fetched(log)] == [0, 1]
    assert truncate_at(log, 2) == log


@given(st.integers(0, 200))
def test_a_message_that_is_cut_off_at_the_end_is_left_out(kept: int) -> None:
    log = legacy(0, 3) + batch(3)
    cut = log[: min(kept, len(log))]
    whole = [h for h in iter_fetched(log) if h.end <= len(cut)]
    assert [h.last_offset for h in iter_fetched(cut)] == [h.last_offset for h in whole]


def test_messages_without_a_leader_epoch_hold_nothing_back() -> None:
    log = legacy(0, 2) + batch(2)
    assert newest_epoch(log) == 7
    assert newest_epoch(legacy(0, 2)) == -1
    assert until_epoch(log, 7) == log
    assert until_epoch(log, 3) == legacy(0, 2)


def test_the_tail_of_an_old_log_has_no_producers() -> None:
    found = list(tail_batches(legacy(0, 2, magic=0) + legacy(2, 2, codec=GZIP)))
    assert [one.last_offset for one in found] == [0, 1, 3]
    assert {one.producer_id for one in found} == {-1}


@pytest.mark.parametrize(("magic", "length"), [(0, 13), (1, 21), (0, -1), (1, -20)])
def test_a_length_that_no_message_has_is_an_error_and_no_endless_walk(
    magic: int, length: int
) -> None:
    broken = bytearray(legacy(0, 2, magic=magic))
    struct.pack_into(">i", broken, 8, length)
    with pytest.raises(InvalidBatch):
        list(iter_fetched(broken))


def test_nobody_may_produce_them() -> None:
    for magic in (0, 1):
        with pytest.raises(UnsupportedMagic):
            list(iter_batches(legacy(0, magic=magic)))


@given(st.binary(max_size=200), st.sampled_from([0, 1, 2, 3]))
@example(bytes(17), 0)
def test_random_bytes_end_or_are_refused(data: bytes, magic: int) -> None:
    changed = bytearray(data)
    if len(changed) > 16:
        changed[16] = magic
    try:
        ends = [h.end for h in iter_fetched(changed)]
    except InvalidBatch:
        return
    assert ends == sorted(set(ends))


ENTRIES = st.one_of(
    st.builds(lambda n: lambda at: (batch(at, n), n), st.integers(1, 3)),
    st.builds(
        lambda n, magic, codec: lambda at: (legacy(at, n, magic=magic, codec=codec), n),
        st.integers(1, 3), st.sampled_from([0, 1]), st.sampled_from([0, GZIP]),
    ),
)  # fmt: skip


@given(
    st.lists(ENTRIES, max_size=6),
    st.integers(-1, 20),
    st.integers(0, 80),
    st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), max_size=3),
)
def test_the_walk_of_large_answers_keeps_what_reading_every_header_keeps(
    entries: list[Any], boundary: int, cut: int, damage: list[tuple[int, int]]
) -> None:
    made, at = [], 0
    for entry in entries:
        data, count = entry(at)
        made.append(data)
        at += count
    log = bytearray(b"".join(made))
    for where, value in damage:
        if where < len(log):
            log[where] = value
    log = log[: len(log) - cut] if cut < len(log) else log
    try:
        end = 0
        for header in iter_fetched(log):
            if header.last_offset >= boundary:
                break
            end = header.end
    except InvalidBatch as refused:
        with pytest.raises(type(refused)):
            truncate_at(log, boundary)
    else:
        assert truncate_at(log, boundary) == log[:end]
