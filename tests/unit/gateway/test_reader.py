"""Batches of the suffix as consumers get them: offsets, epochs, times, few GETs."""

from __future__ import annotations

import asyncio
from dataclasses import astuple
from itertools import pairwise

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.waiting import lasts_async, within
from tests.unit.gateway.fakes import (
    LOG,
    TOPIC_ID,
    FakeObjectStore,
    GatewayPlane,
    tracked_row,
    tracked_topic,
    until,
)
from tests.unit.gateway.merged_log import ANYBODY
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.model import BatchCoordinates, FindBatchesRequest
from tideline.domain.ids import TopicIdPartition
from tideline.gateway.fetch import from_suffix
from tideline.gateway.fetch.from_suffix import HighWatermarks
from tideline.gateway.fetch.object_reader import ObjectCache, ObjectReader
from tideline.gateway.fetch.suffix_reader import SuffixReader
from tideline.gateway.tracking.view import TrackingView
from tideline.gateway.unpacking import Unpacking
from tideline.kafka.batches import (
    iter_batches,
    verify_crc,
)
from tideline.kafka.record_search import found_by_append_time
from tideline.object_store import ObjectStoreUnavailable
from tideline.object_store.byte_ranges import ByteRange


def records(*timestamps: int, compression: int = 0) -> bytes:
    """A batch whose records are real."""
    builder = DefaultRecordBatchBuilder(2, compression, False, -1, -1, -1, 1 << 20)
    for number, timestamp in enumerate(timestamps):
        builder.append(number, timestamp, b"key", b"value", [])
    return bytes(builder.build())


def coordinates(
    key: str, start: int, batch: bytes, base: int, **values: object
) -> BatchCoordinates:
    (header,) = iter_batches(batch)
    return BatchCoordinates(
        object_key=key,
        byte_offset=start,
        byte_size=len(batch),
        base_offset=base,
        last_offset=base + header.last_offset_delta,
        max_timestamp=header.max_timestamp,
        **{"timestamp_type": "CreateTime", "append_time": 9_000, **values},  # type: ignore[arg-type]
    )


class Bench:
    def __init__(self, cache_bytes: int = 1 << 20) -> None:
        self.store = FakeObjectStore()
        self.plane = GatewayPlane()
        self.plane.put(tracked_topic(tracked_row(boundary=100, boundary_epoch=1)))
        self.suffix = self.plane.suffix()
        self.cache = ObjectCache(cache_bytes)
        self.reader = SuffixReader(self.store, self.plane, self.cache, Unpacking())


async def test_a_batch_carries_the_offset_of_its_commit_and_the_epoch_at_the_boundary() -> None:
    """Schedule 8: whoever leads the partition by now."""
    bench = Bench()
    batch = records(1, 2, 3)
    bench.store.objects["k"] = b"....." + batch
    found = coordinates("k", 5, batch, base=140)
    ((body, _),) = map(astuple, await bench.reader.read([([found], 7)]))
    (header,) = iter_batches(body)
    assert (header.base_offset, header.partition_leader_epoch) == (140, 7)
    assert verify_crc(body, header)
    assert [record.offset for record in DefaultRecordBatch(body)] == [140, 141, 142]
    assert bench.store.objects["k"][5:] == batch, "the object is not changed"


async def test_log_append_time_is_the_commits_time_and_the_crc_is_right() -> None:
    bench = Bench()
    batch = records(1, 2)
    bench.store.objects["k"] = batch
    found = coordinates("k", 0, batch, 100, timestamp_type="LogAppendTime", append_time=77_000)
    ((body, _),) = map(astuple, await bench.reader.read([([found], 0)]))
    (header,) = iter_batches(body)
    assert verify_crc(body, header)
    assert header.timestamp_type == "LogAppendTime"
    assert [record.timestamp for record in DefaultRecordBatch(body)] == [77_000, 77_000]


async def test_neighbours_of_one_object_are_read_by_one_get_and_then_from_memory() -> None:
    bench = Bench()
    batch = records(1)
    bench.store.objects["k"] = batch * 3
    wanted = [coordinates("k", n * len(batch), batch, 100 + n) for n in (0, 2, 1)]
    await bench.reader.read([(wanted, 0)])
    assert bench.store.gets == [("k", 0, 3 * len(batch))]
    await bench.reader.read([(wanted, 0)])
    assert len(bench.store.gets) == 1


async def test_consumers_that_want_the_same_bytes_share_one_get() -> None:
    bench = Bench()
    batch = records(1)
    bench.store.objects["k"] = batch
    wanted = [([coordinates("k", 0, batch, 100)], 0)]
    await asyncio.gather(*(bench.reader.read(wanted) for _ in range(5)))
    assert len(bench.store.gets) == 1


async def test_bytes_that_cannot_be_read_are_an_error_and_not_an_empty_answer() -> None:
    bench = Bench()
    batch = records(1)
    bench.store.down = True
    (read,) = await bench.reader.read([([coordinates("k", 0, batch, 100)], 0)])
    assert read.records == b""
    assert isinstance(read.failure, ObjectStoreUnavailable)


async def test_the_record_of_a_timestamp_is_found_inside_its_batch() -> None:
    bench = Bench()
    batch = records(10, 30, 20)
    bench.store.objects["k"] = batch
    bench.suffix.batches.append(coordinates("k", 0, batch, 100))
    _, record = await bench.reader.first_at_or_after(LOG, 15, ANYBODY)
    assert record is not None
    assert (record.offset, record.timestamp) == (101, 30)
    _, largest = await bench.reader.record_of_max_timestamp(LOG, ANYBODY)
    assert largest is not None
    assert (largest.offset, largest.timestamp) == (101, 30)
    assert (await bench.reader.first_at_or_after(LOG, 31, ANYBODY))[1] is None


async def test_below_the_boundary_the_suffix_finds_nothing() -> None:
    """A fetch that reached it by mistake must not get the batch at B0 (facts, lesson 3)."""
    bench = Bench()
    (found,) = await bench.reader.find([FindBatchesRequest(LOG, 99, 1000)])
    assert (found.error, found.batches) == ("BELOW_BOUNDARY", ())


def test_a_batch_of_log_append_time_needs_no_look_inside() -> None:
    found = found_by_append_time(600, 500, base_offset=70, not_before=0)
    assert found is not None
    assert (found.offset, found.timestamp) == (70, 600)
    assert found_by_append_time(600, 700, base_offset=70, not_before=0) is None


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(1, 60)), max_size=40),
    st.integers(0, 120),
)
def test_the_cache_is_bounded_and_never_wrong(puts: list[tuple[int, int, int]], limit: int) -> None:
    objects = {f"k{n}": bytes((n * 7 + i) % 256 for i in range(200)) for n in range(4)}
    cache = ObjectCache(limit)
    for number, start, size in puts:
        key = f"k{number}"
        cache.put(key, start, objects[key][start : start + size])
        assert cache.size <= limit
        if (found := cache.get(key, start + 1, size // 2)) is not None:
            assert bytes(found) == objects[key][start + 1 : start + 1 + size // 2]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 90), st.integers(1, 40)), max_size=8),
    st.lists(
        st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 90), st.integers(1, 30)),
        max_size=12,
    ),
)
@example(puts=[(1, 0, 2), (1, 1, 2)], asked=[(1, False, 1, 2), (1, False, 1, 1)])
def test_many_ranges_are_found_in_memory_as_each_alone(
    puts: list[tuple[int, int, int]], asked: list[tuple[int, bool, int, int]]
) -> None:
    readers = [ObjectReader(FakeObjectStore(), ObjectCache(1 << 20)) for _ in range(2)]
    body = bytes(range(140))
    for key, start, size in puts:
        for reader in readers:
            reader._cache.put(f"object-{key}", start, body[start : start + size])
    places = [(f"object-{key}", tiered, start, size) for key, tiered, start, size in asked]
    together, alone = readers
    assert together.all_cached(places) == [
        alone.cached(ByteRange(key, start, start + size, tiered))
        for key, tiered, start, size in places
    ]
    pieces = [(key, start, start + len(p)) for (key, start), p in alone._cache._pieces.items()]
    if all(a[0] != b[0] or a[2] <= b[1] for a, b in pairwise(sorted(pieces))):
        # Of pieces that overlap either may be the one that is used.
        assert list(together._cache._pieces) == list(alone._cache._pieces), "used in the same order"


class Source:
    def __init__(self) -> None:
        self.ends: dict[TopicIdPartition, int] = {}
        self.asked = 0
        self.down = False

    async def high_watermarks(
        self, logs: object, known: object = None
    ) -> dict[TopicIdPartition, int]:
        self.asked += 1
        if self.down:
            raise ControlPlaneUnavailable("away")
        return self.ends


async def test_a_commit_here_wakes_a_long_poll_at_once() -> None:
    source = Source()
    watermarks = HighWatermarks(source, TrackingView(lambda: True), poll_s=60)
    waiting = asyncio.create_task(watermarks.wait({LOG: 100}, 60))
    await asyncio.sleep(0)
    watermarks.observe(LOG, 100)
    await asyncio.sleep(0)
    assert not waiting.done(), "nothing is there yet that was not"
    watermarks.observe(LOG, 101)
    assert await within("the long poll to wake", waiting)
    await watermarks.close()


async def test_commits_elsewhere_are_found_by_one_query_for_all_who_wait() -> None:
    source = Source()
    watermarks = HighWatermarks(source, TrackingView(lambda: True), poll_s=0.01)
    source.down = True
    waiting = [asyncio.create_task(watermarks.wait({LOG: 100}, 60)) for _ in range(20)]
    await until(lambda: source.asked >= 3)
    source.down, source.ends = False, {LOG: 105}
    assert all(await asyncio.gather(*waiting))
    assert source.asked < 15
    asked = source.asked
    await lasts_async("nobody waits, nothing is asked", lambda: source.asked == asked, 0.06)


async def test_the_more_is_waited_for_the_less_often_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As often as the setting says with a thousand logs, and 40,000 logs in a second at most."""
    sleep, pauses = asyncio.sleep, list[float]()

    async def no_pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", no_pause)
    for count, pause in ((1_000, 0.05), (10_000, 0.25)):
        source = Source()
        watermarks = HighWatermarks(source, TrackingView(lambda: True), poll_s=0.05)
        logs = [TopicIdPartition(TOPIC_ID, number) for number in range(count)]
        pauses.clear()
        waiting = asyncio.create_task(watermarks.wait(dict.fromkeys(logs, 100), 60))
        while source.asked < 3:
            await sleep(0)
        assert pauses[1:3] == [pause, pause]
        watermarks.observe(logs[0], 101)
        assert await waiting
        await watermarks.close()


async def test_a_route_that_changes_wakes_a_long_poll_and_a_reset_suffix_is_forgotten() -> None:
    tracking = TrackingView(lambda: True)
    tracking.replace_all([tracked_topic(tracked_row(boundary=100, boundary_epoch=1))])
    watermarks = HighWatermarks(Source(), tracking, poll_s=60)
    watermarks.observe(LOG, 120)
    waiting = asyncio.create_task(watermarks.wait({LOG: 120}, 60))
    await asyncio.sleep(0)
    tracking.replace_all([tracked_topic(tracked_row(generation=2))])
    assert await within("the long poll to wake", waiting)
    assert watermarks.known(LOG) == -1
    await watermarks.close()


async def test_polls_are_slow_while_nothing_moves_and_notifications_are_heard() -> None:
    source = Source()
    watermarks = HighWatermarks(source, TrackingView(lambda: True), poll_s=0.005, quiet_s=60)
    waiting = asyncio.create_task(watermarks.wait({LOG: 100}, 60))
    await until(lambda: source.asked > 10, "polls of who would hear of nothing")
    watermarks.hear(True)
    await until(lambda: watermarks._asked_at > watermarks._due_after)
    asked = source.asked
    await lasts_async("nothing moves", lambda: source.asked == asked, 0.1)
    watermarks.hear(True)
    await until(lambda: source.asked > asked, "the poll behind a notification")
    source.down = True
    asked = source.asked
    watermarks.hear(True)
    await until(lambda: source.asked > asked + 3, "polls until one is answered")
    source.down, source.ends = False, {LOG: 101}
    assert await within("what has moved", waiting)
    await watermarks.close()


async def test_what_has_moved_is_asked_for_often_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Commits that follow one another within a second are told of once."""
    monkeypatch.setattr(from_suffix, "MOVES_FOR_S", 60.0)
    source = Source()
    watermarks = HighWatermarks(source, TrackingView(lambda: True), poll_s=0.005, quiet_s=60)
    watermarks.hear(True)
    waiting = asyncio.create_task(watermarks.wait({LOG: 100}, 60))
    await until(lambda: watermarks._asked_at > watermarks._due_after)
    watermarks.observe(LOG, 100)  # a fetch has seen a commit of which nobody was told
    asked = source.asked
    await until(lambda: source.asked > asked + 3, "polls as of what moves")
    source.ends = {LOG: 101}
    assert await within("what follows", waiting)
    await watermarks.close()


async def test_who_looked_before_a_notification_asks_once_more() -> None:
    """It came between the look of a fetch and its long poll: nobody waited for the log then."""
    source = Source()
    watermarks = HighWatermarks(source, TrackingView(lambda: True), poll_s=0.005, quiet_s=60)
    loop = asyncio.get_running_loop()
    elsewhere = asyncio.create_task(watermarks.wait({TopicIdPartition(TOPIC_ID, 9): 100}, 60))
    looked_at = loop.time()
    watermarks.hear(True)
    await until(lambda: watermarks._asked_at > watermarks._due_after)
    await lasts_async("nothing moves", lambda: source.asked == 1, 0.05)
    source.ends = {LOG: 101}
    assert await within("the news", watermarks.wait({LOG: 100}, 60, looked_at))
    elsewhere.cancel()
    await watermarks.close()


async def test_the_end_of_a_prefix_that_is_read_does_not_wait_for_the_next_slow_poll() -> None:
    source = Source()
    watermarks = HighWatermarks(source, TrackingView(lambda: True), poll_s=0.005, quiet_s=60)
    watermarks._known[LOG] = 100  # a while ago
    watermarks.hear(True)
    elsewhere = asyncio.create_task(watermarks.wait({TopicIdPartition(TOPIC_ID, 9): 100}, 60))
    await until(lambda: watermarks._asked_at > watermarks._due_after)
    asked = source.asked
    await lasts_async("nothing moves", lambda: source.asked == asked, 0.05)
    source.ends = {LOG: 105}
    await watermarks.follow([LOG])
    await until(lambda: watermarks.known(LOG) == 105, "where the log ends")
    elsewhere.cancel()
    await watermarks.close()


async def test_a_long_poll_ends_with_its_time() -> None:
    watermarks = HighWatermarks(Source(), TrackingView(lambda: True), poll_s=60)
    assert not await watermarks.wait({LOG: 100}, 0.01)
    await watermarks.close()
