"""Merged segments answer as the WAL objects did whose batches they hold."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.gateway.fakes import LOG
from tests.unit.gateway.merged_log import ANYBODY, BOUNDARY, MergedLog, Record, merge
from tests.unit.kafka.segment_batches import CODECS, EPOCH, Spec, empty, sized, spec_lists
from tideline.control_plane.model import (
    FindBatchesRequest,
    FoundBatches,
    ListOffsetsKind,
    SuffixOffset,
)
from tideline.gateway.fetch.object_reader import ObjectCache, ObjectReader
from tideline.gateway.fetch.record_search import RecordSearch
from tideline.gateway.fetch.segment_reader import (
    MAX_BATCHES,
    READ_AHEAD,
    SegmentReader,
    SegmentUnreadable,
)
from tideline.gateway.fetch.suffix_reader import UNREADABLE, SuffixReader
from tideline.gateway.unpacking import Unpacking
from tideline.kafka.batches import iter_batches, verify_crc
from tideline.kafka.record_search import FoundRecord
from tideline.kafka.segment_files import SegmentFile
from tideline.object_store import ObjectMissing

INTERVALS = st.sampled_from([0, 300, 4096])
SEGMENTS = st.lists(st.integers(0, 20), max_size=4)


def log_keys(log: MergedLog) -> list[str]:
    """Of the GETs so far that read a ``.log``."""
    return [key for key, _, _ in log.store.gets if key.endswith(SegmentFile.LOG)]


@settings(deadline=None, max_examples=35)
@given(
    specs=spec_lists(),
    segments=SEGMENTS,
    interval=INTERVALS,
    max_bytes=st.sampled_from([1, 700, 5_000, 1 << 20]),
    cache_bytes=st.sampled_from([0, 2_000, 1 << 20]),
    data=st.data(),
)
async def test_a_consumer_reads_the_same_bytes_wherever_they_lie(
    specs: list[Spec],
    segments: list[int],
    interval: int,
    max_bytes: int,
    cache_bytes: int,
    data: st.DataObject,
) -> None:
    """Every codec, from any offset on, across segments into the WAL."""
    log = MergedLog(specs, segments, interval=interval, cache_bytes=cache_bytes)
    offset = data.draw(st.integers(BOUNDARY, log.end - 1))
    answers = await log.read_on(offset, max_bytes)
    assert b"".join(answers) == b"".join(log.expected(offset))
    for answer in answers:
        headers = list(iter_batches(answer))
        assert len(answer) <= max_bytes or len(headers) == 1
        ends = {s.last_offset for s in log.suffix.segments}
        assert not any(h.last_offset in ends for h in headers[:-1]), "no answer crosses an end"


@pytest.mark.parametrize("codec", sorted(CODECS))
async def test_a_search_that_every_record_meets_tells_the_time_of_the_first(codec: str) -> None:
    log = MergedLog([Spec((0, 7), 10, codec)], (), interval=0)
    _, found = await log.reader.first_at_or_after(LOG, -1, ANYBODY)
    assert as_record(found) == Record(BOUNDARY, 0)


@settings(deadline=None, max_examples=40)
@given(
    specs=spec_lists(),
    segments=SEGMENTS,
    interval=INTERVALS,
    data=st.data(),
)
async def test_a_search_by_time_finds_what_a_scan_finds(
    specs: list[Spec], segments: list[int], interval: int, data: st.DataObject
) -> None:
    """Timestamps in any order, both timestamp types, retention anywhere in a segment or batch."""
    log = MergedLog(specs, segments, interval=interval)
    log.suffix.start = data.draw(st.integers(BOUNDARY, log.end))
    records = log.records()
    some = data.draw(st.lists(st.integers(-1, 502), max_size=5))
    for timestamp in {0, 250, *some, *(r.timestamp for r in records[:3])}:
        wanted = next((r for r in records if r.timestamp >= timestamp), None)
        _, found = await log.reader.first_at_or_after(LOG, timestamp, ANYBODY)
        assert as_record(found) == wanted
    largest = max(records, key=lambda r: (r.timestamp, -r.offset), default=None)
    _, found = await log.reader.record_of_max_timestamp(LOG, ANYBODY)
    assert as_record(found) == largest


async def test_offsets_that_a_rebuild_has_filled_have_no_largest_timestamp() -> None:
    """A batch without records is all that lies behind the segments."""
    log = MergedLog([Spec((5,)), Spec((7,)), empty(3)], [2])
    _, found = await log.reader.record_of_max_timestamp(LOG, ANYBODY)
    assert as_record(found) == Record(BOUNDARY + 1, 7)
    log.suffix.start = BOUNDARY + 3
    _, found = await log.reader.record_of_max_timestamp(LOG, ANYBODY)
    assert found is None


def as_record(found: FoundRecord | None) -> Record | None:
    return Record(found.offset, found.timestamp) if found is not None else None


@pytest.mark.parametrize("codec", sorted(CODECS))
async def test_first_middle_and_last_offsets_of_batches_and_segments(codec: str) -> None:
    log = MergedLog([Spec((5, 6, 7), 50, codec)] * 9, (3, 3), interval=100)
    for offset in range(BOUNDARY, log.end):
        _, body = await log.fetch(offset, 1)
        assert body == log.expected(offset)[0]


async def test_a_read_through_a_segment_costs_one_get_per_chunk() -> None:
    log = MergedLog([sized(10, 1_000)] * 400, (400,))
    await log.read_on(BOUNDARY, 64 * 1024)
    chunks = -(-log.segment.size_bytes // READ_AHEAD)
    assert chunks == 4
    assert len(log_keys(log)) == chunks
    assert len(log.store.gets) == chunks + 1, "and one for the index"
    starts = [start for key, start, _ in log.store.gets if key.endswith(SegmentFile.LOG)]
    reread = sum(size for key, _, size in log.store.gets if key.endswith(SegmentFile.LOG))
    assert starts == sorted(starts)
    assert reread - log.segment.size_bytes < chunks * 11_000, "cut off batches, and no more"


async def test_consumers_of_one_segment_share_what_was_read() -> None:
    log = MergedLog([sized(10, 100)] * 30, (30,))
    await asyncio.gather(*(log.fetch(BOUNDARY + n) for n in range(20)))
    assert len(log_keys(log)) <= 20
    log.store.gets.clear()
    await asyncio.gather(*(log.fetch(BOUNDARY + n) for n in range(300)))
    assert not log.store.gets


async def test_a_batch_larger_than_everything_is_answered_whole() -> None:
    large = Spec((7,), 3 * READ_AHEAD)
    log = MergedLog([sized(3, 10), large, sized(3, 10)], (3,))
    for offset in (BOUNDARY + 3, BOUNDARY + 4):
        _, body = await log.fetch(offset, 100)
        assert body == log.expected(offset)[0]
    log.forget()
    _, body = await log.fetch(BOUNDARY + 4, 100)
    sizes = [size for key, _, size in log.store.gets if key.endswith(SegmentFile.LOG)]
    assert max(sizes) < 2 * READ_AHEAD, "a batch that is not wanted is stepped over"


async def test_one_answer_has_a_bounded_number_of_batches() -> None:
    log = MergedLog([Spec((1,), 1)] * (MAX_BATCHES + 50), (MAX_BATCHES + 50,))
    _, body = await log.fetch(BOUNDARY)
    assert len(list(iter_batches(body))) == MAX_BATCHES


async def test_after_an_early_timestamp_in_the_future_a_search_stays_near_its_answer() -> None:
    """Kafka's own search would scan from the spike on."""
    ordinary = [Spec((n, n + 1), 2_000) for n in range(600)]
    log = MergedLog([Spec((400,)), *ordinary], (601,))
    _, found = await log.reader.first_at_or_after(LOG, 500, ANYBODY)
    assert as_record(found) == next(r for r in log.records() if r.timestamp >= 500)
    read = sum(size for key, _, size in log.store.gets if key.endswith(SegmentFile.LOG))
    assert read <= 64 * 1024
    assert log.segment.size_bytes > 20 * read


async def test_what_was_found_in_the_wal_is_read_though_it_was_merged_meanwhile() -> None:
    """Coordinates of before, bytes of after: the WAL object is still there until gc has waited."""
    log = MergedLog([sized(3, 10)] * 4)
    request = FindBatchesRequest(LOG, BOUNDARY, 1 << 20)
    (before,) = await log.reader.find([request])
    merge(log.store, log.suffix, 4)
    (read,) = await log.reader.read([(before.batches, EPOCH)])
    assert (await log.fetch(BOUNDARY))[1] == read.records
    log.store.objects.clear()
    log.forget()
    (read,) = await log.reader.read([(before.batches, EPOCH)])
    assert read.records == b""
    assert isinstance(read.failure, ObjectMissing)


async def test_a_segment_that_retention_took_is_looked_up_once_more() -> None:
    log = MergedLog([sized(3, 10)] * 6, (3,))
    request = FindBatchesRequest(LOG, BOUNDARY + 2, 1 << 20)
    found = await log.reader.find([request])
    log.store.tiered.clear()
    log.suffix.segments.clear()
    log.suffix.start = BOUNDARY + 9
    (rows,) = await log.reader.locate([request], found, 1 << 20)
    assert rows.error == "OFFSET_OUT_OF_RANGE"


async def test_a_segment_without_its_objects_is_an_error_and_others_are_answered() -> None:
    log = MergedLog([sized(3, 10)] * 6, (2, 2))
    lost = log.segment.object_key_stem
    for key in [key for key in log.store.tiered if key.startswith(lost)]:
        del log.store.tiered[key]
    requests = [FindBatchesRequest(LOG, BOUNDARY + n, 1 << 20) for n in (0, 6, 12)]
    found = await log.reader.find(requests)
    located = await log.reader.locate(requests, found, 1 << 20)
    assert [rows.error for rows in located] == [UNREADABLE, "NONE", "NONE"]
    assert [len(rows.batches) for rows in located] == [0, 2, 2]
    with pytest.raises(ObjectMissing):
        await log.reader.first_at_or_after(LOG, 1_000, ANYBODY)


async def test_a_search_whose_segment_is_gone_looks_once_more() -> None:
    log = MergedLog([sized(3, 10)] * 6, (3,))
    before = await log.plane.list_offsets(LOG, ListOffsetsKind.TIMESTAMP, 1_000)
    log.suffix.segments.clear()
    log.suffix.start = BOUNDARY + 9
    log.store.tiered.clear()
    answers = [await log.plane.list_offsets(LOG, ListOffsetsKind.TIMESTAMP, 1_000), before]

    async def stale_at_first(*asked: object) -> SuffixOffset:
        return answers.pop()

    log.plane.list_offsets = stale_at_first  # type: ignore[method-assign, assignment]
    _, found = await log.reader.first_at_or_after(LOG, 1_000, ANYBODY)
    assert as_record(found) == Record(BOUNDARY + 9, 1_000)
    assert not answers


async def test_a_search_that_meets_a_merge_on_its_way_begins_anew() -> None:
    """Retention took the record that the first batch was found for; the rest is looked through."""
    log = MergedLog([Spec((9, 1)), Spec((2, 2)), Spec((3, 9))])
    log.suffix.start = BOUNDARY + 1
    log.suffix.batches[0] = replace(log.suffix.batches[0], max_timestamp=9)
    find, calls = log.plane.find_batches, 0

    async def merged_before(requests: list[FindBatchesRequest]) -> list[FoundBatches]:
        nonlocal calls
        calls += 1
        if calls == 1:
            merge(log.store, log.suffix, 3)
        return await find(requests)

    log.plane.find_batches = merged_before  # type: ignore[method-assign, assignment]
    _, found = await log.reader.first_at_or_after(LOG, 5, ANYBODY)
    assert (as_record(found), calls) == (Record(BOUNDARY + 5, 9), 1)


@settings(deadline=None, max_examples=60)
@given(
    file=st.sampled_from([SegmentFile.LOG, SegmentFile.OFFSET_INDEX, SegmentFile.TIME_INDEX]),
    at=st.floats(0, 1, exclude_max=True),
    change=st.binary(min_size=1, max_size=12),
    offset=st.integers(0, 59),
)
async def test_damaged_bytes_are_an_error_or_harmless_and_never_another_offset(
    file: SegmentFile, at: float, change: bytes, offset: int
) -> None:
    log = MergedLog([sized(3, 100)] * 20, (20,), interval=600)
    key = log.segment.object_key_stem + file
    whole = bytearray(log.store.tiered[key])
    start = int(at * len(whole))
    whole[start : start + len(change)] = change[: len(whole) - start]
    log.store.tiered[key] = bytes(whole)
    error, body = await log.fetch(BOUNDARY + offset)
    if error == "NONE":
        headers = list(iter_batches(body))
        assert headers[0].base_offset <= BOUNDARY + offset <= headers[0].last_offset
        assert headers[-1].last_offset <= log.segment.last_offset
        assert all(verify_crc(body, header) for header in headers)
    reader = SegmentReader(ObjectReader(log.store, ObjectCache(1 << 20)), RecordSearch(Unpacking()))
    with suppress(SegmentUnreadable):
        record = await reader.first_at_or_after(log.segment, 1_001, BOUNDARY + offset, ANYBODY)
        assert as_record(record) in log.records()


@pytest.mark.parametrize(
    "change",
    [
        {"size_bytes": 999_999},
        {"size_bytes": 100},
        {"last_offset": BOUNDARY + 13},
        {"base_offset": BOUNDARY + 1},
    ],
)
async def test_metadata_that_the_objects_contradict_is_an_error(change: dict[str, int]) -> None:
    log = MergedLog([sized(3, 100)] * 6, (6,), interval=300)
    wrong = replace(log.segment, **change)
    reader = SegmentReader(ObjectReader(log.store, ObjectCache(1 << 20)), RecordSearch(Unpacking()))

    async def read_everything() -> None:
        for offset in range(wrong.base_offset, wrong.last_offset + 1):
            await reader.batches(wrong, offset, 1 << 20)
        await reader.first_at_or_after(wrong, 10_000, BOUNDARY, ANYBODY)

    with pytest.raises(SegmentUnreadable, match="its objects are damaged"):
        await read_everything()


async def test_a_store_that_is_away_is_an_error_of_that_partition() -> None:
    log = MergedLog([sized(3, 10)] * 6, (3,))
    log.store.down = True
    assert (await log.fetch(BOUNDARY))[0] == UNREADABLE
    log.store.down = False
    assert (await log.fetch(BOUNDARY))[0] == "NONE"


async def test_no_more_is_read_ahead_than_the_answer_may_hold() -> None:
    log = MergedLog([sized(3, 100)] * 30, (30,))
    requests = [FindBatchesRequest(LOG, BOUNDARY, 2_000)] * 10
    located = await log.reader.locate(requests, await log.reader.find(requests), 3_000)
    filled = [rows for rows in located if rows.batches]
    assert 2 <= len(filled) <= 4, "one round of GETs at most"
    assert all(rows.error == "NONE" and rows.segment is not None for rows in located)


async def test_reads_of_segments_can_be_switched_off_and_say_so_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = MergedLog([sized(3, 10)] * 6, (3,))
    log.reader = SuffixReader(
        log.store, log.plane, ObjectCache(1 << 20), Unpacking(), hybrid_read_enabled=False
    )
    assert [(await log.fetch(BOUNDARY))[0] for _ in range(3)] == [UNREADABLE] * 3
    assert capsys.readouterr().out.count("TIDELINE_HYBRID_READ_ENABLED") == 1
    assert (await log.fetch(BOUNDARY + 9))[0] == "NONE"
    assert not log_keys(log)


async def test_nothing_of_a_segment_is_asked_when_there_is_none() -> None:
    log = MergedLog([sized(3, 10)] * 2)
    rows = FoundBatches("NONE", 0, 0)
    assert await log.reader.locate([FindBatchesRequest(LOG, 0, 1)], [rows], 10) == [rows]
