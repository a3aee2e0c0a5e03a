"""What the indexes find is what a scan finds; damaged indexes are errors, never wrong answers."""

from __future__ import annotations

import struct
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from aiokafka.record import MemoryRecords
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kafka.segment_batches import Built, Spec, header_list, segment, sized, spec_lists
from tideline.kafka.segment_lookup import (
    CorruptIndex,
    OffsetPosition,
    SegmentExtent,
    TimestampOffset,
    lookup_offset,
    lookup_timestamp,
    offset_entries,
    position_for_offset,
    position_for_timestamp,
    time_entries,
)


def records(log: bytes) -> list[tuple[int, int]]:
    """(offset, timestamp) of every record."""
    found, batches = [], MemoryRecords(log)
    while (batch := batches.next_batch()) is not None:
        found += [(record.offset, record.timestamp) for record in batch]
    return found


def build_one(specs: list[Spec], base: int, interval: int) -> Built:
    with tempfile.TemporaryDirectory() as directory:
        return segment(Path(directory), specs, base_offset=base, interval=interval)


@settings(deadline=None, max_examples=40)
@given(
    specs=spec_lists(),
    base=st.sampled_from([0, 7, 2**40]),
    interval=st.sampled_from([0, 1, 300, 4096]),
)
def test_every_offset_is_found_in_the_batch_that_a_scan_finds(
    specs: list[Spec], base: int, interval: int
) -> None:
    built = build_one(specs, base, interval)
    headers = header_list(built.data[".log"])
    starts = {position for _, _, position, _ in headers}
    for first, last, position, _ in headers:
        for offset in (first, last):
            found = position_for_offset(built.data[".index"], built.extent, offset)
            assert found in starts, "a lookup answers the start of a batch"
            assert found <= position
            between = sum(
                p2 - p1
                for (_, _, p1, _), (_, _, p2, _) in pairwise(headers)
                if found <= p1 < position
            )
            largest = max(len(batch) for batch in built.batches)
            assert between <= interval + largest, "no more than an interval to scan"


@settings(deadline=None, max_examples=40)
@given(
    specs=spec_lists(),
    interval=st.sampled_from([0, 300, 4096]),
    timestamps=st.lists(st.integers(-1, 510), min_size=1, max_size=20),
)
def test_every_timestamp_is_found_where_a_scan_finds_it(
    specs: list[Spec], interval: int, timestamps: list[int]
) -> None:
    built = build_one(specs, 5, interval)
    log, every = built.data[".log"], records(built.data[".log"])
    for wanted in timestamps:
        position = position_for_timestamp(
            built.data[".index"], built.data[".timeindex"], built.extent, wanted
        )
        scanned = next((record for record in every if record[1] >= wanted), None)
        through_index = next((r for r in records(log[position:]) if r[1] >= wanted), None)
        assert through_index == scanned


@settings(deadline=None, max_examples=40)
@given(specs=spec_lists(), start=st.integers(0, 200), wanted=st.integers(0, 510))
def test_a_timestamp_is_sought_from_a_start_offset_on(
    specs: list[Spec], start: int, wanted: int
) -> None:
    built = build_one(specs, 0, 300)
    if start > built.written.last_offset:
        return
    log = built.data[".log"]
    position = position_for_timestamp(
        built.data[".index"], built.data[".timeindex"], built.extent, wanted, start
    )

    def first(found: list[tuple[int, int]]) -> tuple[int, int] | None:
        return next((r for r in found if r[1] >= wanted and r[0] >= start), None)

    assert first(records(log[position:])) == first(records(log))


@settings(deadline=None, max_examples=40)
@given(specs=spec_lists())
def test_what_is_written_passes_the_full_check(specs: list[Spec]) -> None:
    built = build_one(specs, 3, 0)
    entries = list(offset_entries(built.data[".index"], built.extent))
    assert len(entries) == len(specs) - 1, "every batch but the first"
    times = list(time_entries(built.data[".timeindex"], built.extent))
    largest = TimestampOffset(built.written.max_timestamp, built.written.max_timestamp_offset)
    has_records = any(spec.timestamps for spec in specs)
    assert times[-1:] == ([largest] if has_records else []), "as Kafka, which notes no -1"


EXTENT = SegmentExtent(base_offset=100, last_offset=199, log_bytes=10_000)


def index(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def timeindex(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


def test_an_empty_index_begins_at_the_start() -> None:
    assert lookup_offset(b"", EXTENT, 150) == OffsetPosition(100, 0)
    assert lookup_timestamp(b"", EXTENT, 150) == TimestampOffset(-1, 100)


def test_the_largest_entry_at_or_below_is_taken() -> None:
    data = index((10, 500), (20, 900), (30, 1_500))
    found = {o: lookup_offset(data, EXTENT, o).position for o in (100, 109, 110, 119, 120, 199)}
    assert found == {100: 0, 109: 0, 110: 500, 119: 500, 120: 900, 199: 1_500}


@pytest.mark.parametrize(
    "data",
    [
        index((10, 500))[:-1],
        index((-1, 500)),
        index((100, 500)),
        index((10, -1)),
        index((10, 10_000)),
        index((0, 0)),
        index((10, 500), (10, 900), (30, 1_500)),
        index((10, 500), (20, 400), (30, 1_500)),
        index((30, 500), (20, 900), (10, 1_500)),
    ],
    ids=["cut", "before", "past", "negative", "outside", "first", "same", "back", "reversed"],
)
def test_a_damaged_offset_index_is_an_error(data: bytes) -> None:
    with pytest.raises(CorruptIndex):
        [lookup_offset(data, EXTENT, offset) for offset in range(100, 200)]
    with pytest.raises(CorruptIndex):
        list(offset_entries(data, EXTENT))


@pytest.mark.parametrize(
    "data",
    [
        timeindex((50, 1))[:-1],
        timeindex((-1, 1)),
        timeindex((50, -1)),
        timeindex((50, 100)),
        timeindex((50, 1), (50, 2), (60, 3)),
        timeindex((50, 2), (60, 1), (70, 3)),
    ],
    ids=["cut", "no time", "before", "past", "same", "back"],
)
def test_a_damaged_time_index_is_an_error(data: bytes) -> None:
    with pytest.raises(CorruptIndex):
        [lookup_timestamp(data, EXTENT, timestamp) for timestamp in range(40, 80)]
    with pytest.raises(CorruptIndex):
        list(time_entries(data, EXTENT))


@given(data=st.binary(max_size=400), offset=st.integers(0, 300))
def test_hostile_bytes_give_a_position_inside_or_an_error(data: bytes, offset: int) -> None:
    try:
        found = lookup_offset(data, EXTENT, offset)
        assert 0 <= found.position < EXTENT.log_bytes
        assert EXTENT.base_offset <= found.offset <= EXTENT.last_offset
    except CorruptIndex:
        pass
    try:
        when = lookup_timestamp(data, EXTENT, offset)
        assert EXTENT.base_offset <= when.offset <= EXTENT.last_offset
    except CorruptIndex:
        pass


def test_one_large_batch_needs_no_index(tmp_path: Path) -> None:
    built = segment(tmp_path, [sized(100, 1_000)])
    assert position_for_offset(built.data[".index"], built.extent, 99) == 0
