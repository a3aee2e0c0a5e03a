"""Fetch of tracked partitions: which region answers, and what is never shown."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from prometheus_client import REGISTRY

from tests.support.waiting import lasts_async, set_within, within
from tests.unit.gateway.fakes import (
    LOG,
    TOPIC,
    TOPIC_ID,
    record_batch,
    tracked_row,
    tracked_topic,
    until,
)
from tests.unit.gateway.tracked_bench import (
    Fetched,
    KafkaLog,
    TrackedBench,
    fetch,
    fetched,
    forget_everything,
    leased,
    produce,
    serving,
)
from tideline.control_plane.model import TrackedPartition
from tideline.gateway.context import ApiKey
from tideline.gateway.fetch import from_kafka, from_suffix
from tideline.gateway.fetch import handler as fetch_handler
from tideline.gateway.messages import messages
from tideline.kafka.batches import patch
from tideline.kafka.decoding import WALKED_AT_ONCE_BYTES

ME = (TOPIC, 0)
PENDING = tracked_row(generation=1)
QUIESCING = tracked_row(generation=2, quiesced=True)
SUFFIX = tracked_row(generation=2, boundary=100, boundary_epoch=7)


def batches(*base_offsets: int, records: int = 10, epoch: int = 3) -> bytes:
    """Batches of ``records`` records at these offsets, as Kafka has them."""
    made = []
    for base in base_offsets:
        batch = bytearray(record_batch(records))
        patch(batch, base, epoch)
        made.append(bytes(batch))
    return b"".join(made)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    async with leased(tmp_path) as made:
        yield made


def kafka(bench: TrackedBench, log: KafkaLog) -> None:
    bench.client.broker[ApiKey.FETCH] = serving({ME: log, ("classic", 0): log})


async def ask(bench: TrackedBench, offset: int, max_wait_ms: int = 0) -> Fetched:
    response = await bench.ask(fetch((TOPIC, 0, offset), max_wait_ms=max_wait_ms))
    return fetched(response)[ME]


async def appended(bench: TrackedBench, count: int, payload: int = 50) -> None:
    for _ in range(count):
        batch = record_batch(1, payload=b"x" * payload)
        await bench.ask(produce((TOPIC, 0, batch)))


def fetch_as(replica: int, version: int) -> Any:
    """Of the tracked topic from 100 on, by who says that it is the broker ``replica``."""
    api = messages(ApiKey.FETCH, version)
    row = api.request_part(
        "FetchPartition", partition=0, fetch_offset=100, partition_max_bytes=1_000
    )
    state = (
        {"replica_id": replica}
        if version < 15
        else {"replica_state": api.request_part("ReplicaState", replica_id=replica)}
    )
    named = {"topic": TOPIC} if version < 13 else {"topic_id": TOPIC_ID}
    return api.request(
        **state,
        max_wait=timedelta(0),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=(api.request_part("FetchTopic", **named, partitions=(row,)),),
        forgotten_topics_data=(),
        rack_id="",
    )


@pytest.mark.parametrize("version", [12, 14, 17])
@pytest.mark.parametrize("row", [PENDING, QUIESCING, SUFFIX], ids=["pending", "pause", "hybrid"])
async def test_who_says_that_it_is_a_broker_is_refused_whatever_it_may(
    bench: TrackedBench, row: TrackedPartition, version: int
) -> None:
    bench.show(row)
    answer = await bench.ask(fetch_as(1, version))
    ((told,),) = [topic.partitions for topic in answer.responses]
    assert told.error_code is ErrorCode.topic_authorization_failed
    assert (told.records or b"", told.high_watermark) == (b"", -1)
    assert bench.client.forwarded == []


@pytest.mark.parametrize("version", [12, 14, 15, 17])
@pytest.mark.parametrize("replica", [-3, -2, -1, 0, 7])
def test_a_fetch_says_in_each_version_whom_it_is_from(version: int, replica: int) -> None:
    """A consumer that passes for something else is told Kafka's log end as its watermark."""
    assert from_kafka.replica_of(fetch_as(replica, version)) == replica


async def test_kafka_answers_freely_while_the_lease_is_valid(bench: TrackedBench) -> None:
    bench.show(PENDING)
    kafka(bench, KafkaLog(batches(0, 10), 20))
    answer = await ask(bench, 0)
    assert (answer.error, answer.offsets, answer.high_watermark) == ("none", [0, 10], 20)


async def test_a_leader_epoch_that_no_broker_has_judged_holds_no_reader_back(
    bench: TrackedBench,
) -> None:
    """Kafka reads the last row of a partition that is named twice, and the epoch of another one may
    be any."""
    bench.show(PENDING)
    kafka(bench, KafkaLog(batches(0), 10))
    twice = fetch((TOPIC, 0, 0), (TOPIC, 0, 0), leader_epochs=(2**31 - 1,))
    assert fetched(await bench.ask(twice))[ME].offsets == [0]
    kafka(bench, KafkaLog(batches(0, 10), 20))
    answer = await ask(bench, 0)
    assert (answer.offsets, answer.high_watermark) == ([0, 10], 20)


@pytest.mark.parametrize("epoch", [-1, -2, -(2**31)])
async def test_any_negative_leader_epoch_names_none(bench: TrackedBench, epoch: int) -> None:
    bench.show(PENDING)
    kafka(bench, KafkaLog(batches(0), 10))
    await ask(bench, 0)
    kafka(bench, KafkaLog(batches(0, 10), 20))
    answer = fetched(await bench.ask(fetch((TOPIC, 0, 0), leader_epochs=(epoch,))))[ME]
    assert (answer.offsets, answer.high_watermark) == ([0, 10], 20)


async def test_a_late_append_is_not_shown_by_a_gateway_that_quiesces(bench: TrackedBench) -> None:
    """Schedule 2: the consumer would commit B0 + 1 and skip the suffix's record at B0."""
    bench.show(PENDING)
    kafka(bench, KafkaLog(batches(80, 90), 100))
    await ask(bench, 80)
    bench.show(QUIESCING)
    await until(lambda: bench.plane.quiesce_acks)
    kafka(bench, KafkaLog(batches(90, 100), 110))
    answer = await ask(bench, 90)
    assert (answer.offsets, answer.high_watermark, answer.last_stable_offset) == ([90], 100, 100)
    kafka(bench, KafkaLog(batches(100), 110))
    at_the_end = await ask(bench, 100)
    assert (at_the_end.error, at_the_end.offsets) == ("none", [])


async def test_the_ceiling_holds_without_a_lease(bench: TrackedBench) -> None:
    """Schedules 1 and 2: B0 may be set, nobody told us."""
    bench.show(PENDING)
    kafka(bench, KafkaLog(batches(90), 100))
    await ask(bench, 90)
    bench.lapse()
    kafka(bench, KafkaLog(batches(90, 100), 110))
    assert (await ask(bench, 90)).offsets == [90]


async def test_without_a_lease_and_without_having_seen_anything_nothing_is_shown(
    bench: TrackedBench,
) -> None:
    bench.show(PENDING)
    bench.lapse()
    kafka(bench, KafkaLog(batches(90), 100))
    assert (await ask(bench, 90)).error == "not_leader_or_follower"


@pytest.mark.parametrize(
    ("row", "lease", "told"),
    [
        (PENDING, True, "offset_out_of_range"),
        (PENDING, False, "not_leader_or_follower"),
        (QUIESCING, True, "not_leader_or_follower"),
        (SUFFIX, True, "not_leader_or_follower"),
    ],
)
async def test_out_of_range_is_told_only_where_it_cannot_send_a_consumer_back(
    bench: TrackedBench, row: TrackedPartition, lease: bool, told: str
) -> None:
    """Schedule 3."""
    bench.show(row)
    if not lease:
        bench.lapse()
    kafka(bench, KafkaLog(code=ErrorCode.offset_out_of_range))
    assert (await ask(bench, 99)).error == told


async def test_a_consumer_past_the_boundary_is_not_sent_back_by_a_gateway_that_slept(
    bench: TrackedBench,
) -> None:
    """Schedule 3: fenced, B0 is set, the consumer comes; the gateway wakes and learns."""
    bench.show(PENDING)
    bench.plane.put(tracked_topic(SUFFIX))
    bench.plane.fence(bench.parts.lease.incarnation)
    bench.lapse()
    kafka(bench, KafkaLog(code=ErrorCode.offset_out_of_range))
    assert (await ask(bench, 102)).error == "not_leader_or_follower"
    await bench.lease()
    assert not bench.parts.lease.registered
    assert (await ask(bench, 102)).error == "not_leader_or_follower"
    await bench.lease()
    await appended(bench, 3)
    assert (await ask(bench, 102)).offsets == [102]


async def test_below_the_log_start_of_the_prefix_out_of_range_is_told(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def log_start(_: object, node: int) -> int:
        assert node == bench.client.broker_id
        return 50

    bench.show(SUFFIX)
    monkeypatch.setattr(bench.parts.paired_broker, "log_start", log_start)
    kafka(bench, KafkaLog(code=ErrorCode.offset_out_of_range))
    assert (await ask(bench, 49)).error == "offset_out_of_range"
    assert (await ask(bench, 50)).error == "not_leader_or_follower"


async def test_where_the_prefix_is_gone_kafka_is_not_asked_for_it(bench: TrackedBench) -> None:
    bench.show(replace(SUFFIX, prefix_gone=True))
    assert (await ask(bench, 99)).error == "offset_out_of_range"
    assert not bench.client.forwarded


async def test_a_stale_replica_is_not_believed_to_be_at_the_end(bench: TrackedBench) -> None:
    """Schedule 4."""
    bench.show(SUFFIX)
    kafka(bench, KafkaLog(b"", 95))
    assert (await ask(bench, 95)).error == "not_leader_or_follower"


@pytest.mark.parametrize("row", [PENDING, QUIESCING, SUFFIX])
async def test_a_consumer_that_is_sent_to_a_nearer_replica_is_told_at_once(
    bench: TrackedBench, row: TrackedPartition
) -> None:
    """KIP-392: the leader names the replica and no records. It was asked again and again for as
    long as the consumer would have waited."""
    bench.show(PENDING)
    kafka(bench, KafkaLog(batches(0, 90), 100))
    await ask(bench, 0)
    bench.show(row)
    kafka(bench, KafkaLog(b"", 100, preferred_read_replica=3))
    asked_before = len(bench.client.forwarded)
    response = await bench.ask(fetch((TOPIC, 0, 0), max_wait_ms=20_000))
    (answer,) = (part for topic in response.responses for part in topic.partitions)
    assert (answer.error_code, int(answer.preferred_read_replica)) == (ErrorCode.none, 3)
    assert len(bench.client.forwarded) == asked_before + 1


@pytest.mark.parametrize("row", [PENDING, QUIESCING, SUFFIX])
@pytest.mark.parametrize("topic", [TOPIC, "classic"])
async def test_a_reader_whose_log_parts_from_the_leaders_is_told_at_once(
    bench: TrackedBench, row: TrackedPartition, topic: str
) -> None:
    """KIP-595: where they part, and no records. A classic partition of the same fetch is no
    exception."""
    bench.show(PENDING)
    kafka(bench, KafkaLog(batches(0, 90), 100))
    await ask(bench, 0)
    bench.show(row)
    parted = KafkaLog(b"", 100, diverging=(2, 40))
    logs = {ME: KafkaLog(b"", 100), ("classic", 0): KafkaLog(b"", 100), (topic, 0): parted}
    bench.client.broker[ApiKey.FETCH] = serving(logs)
    asked_before = len(bench.client.forwarded)
    response = await bench.ask(fetch((TOPIC, 0, 0), ("classic", 0, 0), max_wait_ms=20_000))
    (answer,) = (
        part for found in response.responses if found.topic == topic for part in found.partitions
    )
    assert (int(answer.diverging_epoch.epoch), int(answer.diverging_epoch.end_offset)) == (2, 40)
    assert len(bench.client.forwarded) == asked_before + 1


async def test_the_prefix_ends_at_the_boundary_with_the_whole_logs_watermarks(
    bench: TrackedBench,
) -> None:
    """Schedule 6: the classic log reaches past B0, and nobody sees it."""
    bench.show(SUFFIX)
    await appended(bench, 5)
    kafka(bench, KafkaLog(batches(80, 90, 100, 110), 120))
    answer = await ask(bench, 80, max_wait_ms=10_000)
    assert answer.offsets == [80, 90]
    assert (answer.high_watermark, answer.last_stable_offset) == (105, 105)


async def test_a_read_that_the_boundary_cuts_short_waits_for_no_more_bytes(
    bench: TrackedBench,
) -> None:
    """Seed 000, "Fetch Response Boundary": nor does Kafka, which will never have them."""
    bench.show(SUFFIX)
    kafka(bench, KafkaLog(batches(80, 90), 100))
    message = fetch((TOPIC, 0, 80), max_wait_ms=30_000, min_bytes=1 << 20)
    answer = await within("the answer", bench.ask(message))
    assert fetched(answer)[ME].offsets == [80, 90]
    assert [request.min_bytes for request in bench.client.forwarded] == [1]


@pytest.mark.parametrize("epoch", [-1, 0, 6, 7, 8])
async def test_from_the_boundary_on_nobody_is_asked_which_leader_a_client_knows(
    bench: TrackedBench, epoch: int
) -> None:
    """Seed 000, "Leader epochs": the suffix has one epoch, whoever leads Kafka's log."""
    bench.show(SUFFIX)
    await appended(bench, 1)
    message = fetch((TOPIC, 0, 100))
    (topic,) = message.topics
    (row,) = topic.partitions
    named = replace(row, current_leader_epoch=epoch)
    message = replace(message, topics=(replace(topic, partitions=(named,)),))
    assert fetched(await bench.ask(message))[ME].offsets == [100]
    assert bench.client.forwarded == []


def many_batches(size: int) -> bytes:
    """Batches of one record from offset 0 on, of more than ``size`` bytes."""
    one = record_batch(1, payload=b"")
    made = [bytearray(one) for _ in range(size // len(one) + 1)]
    for base, batch in enumerate(made):
        patch(batch, base, 3)
    return b"".join(made)


@pytest.mark.parametrize("walk", ["truncate_at", "until_epoch"])
async def test_many_batches_of_one_answer_are_walked_while_the_event_loop_goes_on(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch, walk: str
) -> None:
    """55 MB of small batches were four seconds in which no lease was renewed."""
    records = many_batches(WALKED_AT_ONCE_BYTES)
    end = len(records) // len(record_batch(1, payload=b""))
    boundary = tracked_row(generation=2, boundary=end, boundary_epoch=7)
    if walk == "until_epoch":
        bench.show(PENDING)
        kafka(bench, KafkaLog(records, end))
        await ask(bench, 0)
        bench.lapse()
    else:
        bench.show(boundary)
    kafka(bench, KafkaLog(records + batches(end), end + 10))
    begun, gone_on = threading.Event(), threading.Event()
    whole: Callable[..., Any] = getattr(from_kafka, walk)

    def walked(*arguments: Any) -> Any:
        begun.set()
        set_within("something else to run while the batches are walked", gone_on)
        return whole(*arguments)

    async def go_on() -> None:
        await until(begun.is_set)
        gone_on.set()

    monkeypatch.setattr(from_kafka, walk, walked)
    asking = bench.ask(fetch((TOPIC, 0, 0), max_bytes=2 * WALKED_AT_ONCE_BYTES))
    response, _ = await asyncio.gather(asking, go_on())
    answer = fetched(response)[ME]
    assert (answer.error, answer.offsets) == ("none", list(range(end)))


@pytest.mark.parametrize(("asked", "passed_on"), [(1 << 30, 55 << 20), (1 << 20, 1 << 20)])
async def test_kafka_is_asked_for_no_more_than_one_answer_has(
    bench: TrackedBench, asked: int, passed_on: int
) -> None:
    bench.show(SUFFIX)
    kafka(bench, KafkaLog(batches(0, 90), 100))
    await bench.ask(fetch((TOPIC, 0, 0), max_bytes=asked))
    assert [int(request.max_bytes) for request in bench.client.forwarded] == [passed_on]


async def test_a_gateway_that_has_not_seen_the_suffix_shows_the_end_of_the_whole_log(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With B0 as the end a consumer that reaches it would take itself for caught up, and one that
    came from another gateway would see the end go back."""
    monkeypatch.setattr(from_suffix, "FOLLOW_EVERY_S", 0.0)
    bench.show(SUFFIX)
    bench.plane.suffix().high_watermark = 130  # by commits of other gateways
    kafka(bench, KafkaLog(batches(80, 90), 100))
    answer = await ask(bench, 80)
    assert (answer.high_watermark, answer.last_stable_offset) == (130, 130)
    bench.plane.suffix().high_watermark = 140
    await until(lambda: bench.parts.watermarks.known(LOG) == 140)
    assert (await ask(bench, 80)).high_watermark == 140


async def test_the_prefix_does_not_wait_for_postgres_again_and_again(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_suffix, "SHOWN_WITHIN_S", 0.05)
    waits: list[float] = []
    wait = bench.parts.watermarks.wait

    async def noted(positions: Any, timeout_s: float) -> bool:
        waits.append(timeout_s)
        return await wait(positions, timeout_s)

    monkeypatch.setattr(bench.parts.watermarks, "wait", noted)
    bench.show(SUFFIX)
    bench.plane.down = True
    kafka(bench, KafkaLog(batches(90), 100))
    for _ in range(3):
        answer = await ask(bench, 90)
        assert (answer.offsets, answer.high_watermark) == ([90], 100)
    assert waits == [0.05]


async def test_the_suffix_is_read_from_the_boundary_on_with_its_epoch(
    bench: TrackedBench,
) -> None:
    """Schedule 8."""
    bench.show(SUFFIX)
    await appended(bench, 3)
    answer = await ask(bench, 101)
    assert (answer.offsets, answer.high_watermark, answer.last_stable_offset) == (
        [101, 102],
        103,
        103,
    )
    assert answer.epochs == {7}
    assert not bench.client.forwarded
    assert (await ask(bench, 103)).offsets == []
    assert (await ask(bench, 104)).error == "offset_out_of_range"


async def test_an_end_that_postgres_has_left_behind_sends_no_consumer_back(
    bench: TrackedBench,
) -> None:
    """A primary that was cut off when another was promoted still answers, with where it ended."""
    bench.show(SUFFIX)
    await appended(bench, 3)
    bench.parts.watermarks.observe(LOG, 110)
    assert (await ask(bench, 105)).error == "not_leader_or_follower", "more was told here"
    assert (await ask(bench, 102)).offsets == [102]


async def test_without_a_lease_no_consumer_is_told_that_it_is_past_the_end(
    bench: TrackedBench,
) -> None:
    """It may have read through another gateway, which knows the promoted server already."""
    bench.show(SUFFIX)
    await appended(bench, 3)
    bench.lapse()
    assert (await ask(bench, 104)).error == "not_leader_or_follower"
    assert (await ask(bench, 102)).offsets == [102]
    await bench.lease()
    assert (await ask(bench, 104)).error == "offset_out_of_range"


async def test_behind_an_accepted_gap_a_reader_goes_on_at_the_boundary(
    bench: TrackedBench,
) -> None:
    """Out of range would send a reader that resets to the earliest offset round and round."""
    bench.show(replace(SUFFIX, accepted_gap_from=80))
    await appended(bench, 1)
    at_the_gap = await ask(bench, 80)
    assert at_the_gap.error == "none"
    assert at_the_gap.offsets == [100]
    for lost in (81, 99):
        assert (await ask(bench, lost)).error == "offset_out_of_range"


@pytest.mark.parametrize("offset", [-1, -2, -(2**63)])
@pytest.mark.parametrize(
    "row",
    [
        SUFFIX,
        replace(SUFFIX, ready=True),
        replace(SUFFIX, accepted_gap_from=80),
        replace(SUFFIX, prefix_gone=True),
    ],
    ids=["not ready", "ready", "accepted gap", "no prefix"],
)
async def test_a_negative_offset_is_out_of_range_in_every_state_with_a_boundary(
    bench: TrackedBench, row: TrackedPartition, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Kafka says of a fetch below the log start (``UnifiedLog.read``). Where the reader goes on
    is its own ``auto.offset.reset``."""

    async def log_start(_: object, node: int) -> int:
        return 0

    bench.show(row)
    await appended(bench, 2)
    monkeypatch.setattr(bench.parts.paired_broker, "log_start", log_start)
    kafka(bench, KafkaLog(code=ErrorCode.offset_out_of_range))
    answer = await ask(bench, offset)
    assert (answer.error, answer.offsets) == ("offset_out_of_range", [])


async def test_a_consumer_that_keeps_up_reads_from_memory(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    await appended(bench, 3)
    await ask(bench, 100)
    assert not bench.store.gets


async def test_one_answer_reads_a_bounded_number_of_objects_which_partitions_share(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch per object is what a topic with little traffic has. The rest comes with the next
    fetch."""
    monkeypatch.setattr(from_suffix, "OBJECTS_PER_ANSWER", 4)
    other = tracked_row(boundary=0, boundary_epoch=0, partition=1, generation=1)
    bench.show(SUFFIX, other)
    await appended(bench, 6)
    for _ in range(6):
        await bench.ask(produce((TOPIC, 1, record_batch(1))))
    assert (await ask(bench, 100)).offsets == [100, 101, 102, 103]
    both = fetched(await bench.ask(fetch((TOPIC, 0, 100), (TOPIC, 1, 0), max_wait_ms=0)))
    assert both[ME].offsets == [100, 101]
    assert both[TOPIC, 1].offsets == [0, 1]
    assert (await ask(bench, 104)).offsets == [104, 105]


async def test_a_long_poll_of_the_suffix_wakes_with_the_commit(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    asking = asyncio.create_task(ask(bench, 100, max_wait_ms=30_000))
    await until(lambda: bench.parts.watermarks._waiters)
    await lasts_async("the commit is waited for", lambda: not asking.done(), 0.02)
    await appended(bench, 1)
    assert (await within("the answer", asking)).offsets == [100]


async def test_a_long_poll_waits_for_min_bytes(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    message = fetch((TOPIC, 0, 100), max_wait_ms=30_000, min_bytes=300)
    asking = asyncio.create_task(bench.ask(message))
    await appended(bench, 1, payload=100)
    await lasts_async("more bytes are waited for", lambda: not asking.done(), 0.02)
    await appended(bench, 1, payload=100)
    assert fetched(await within("the answer", asking))[ME].offsets == [100, 101]


async def test_a_long_poll_at_kafka_is_served_by_the_suffix_once_the_boundary_is_known(
    bench: TrackedBench,
) -> None:
    """Schedule 9: it does not wait at the broker for what will never come there."""
    bench.show(PENDING)
    kafka(bench, KafkaLog(b"", 100))
    asking = asyncio.create_task(ask(bench, 100, max_wait_ms=30_000))
    await until(lambda: bench.client.forwarded)
    bench.show(SUFFIX)
    await appended(bench, 1)
    assert (await within("the answer", asking)).offsets == [100]


def reads(region: str) -> float:
    return REGISTRY.get_sample_value(f"inkless_hybrid_{region}_reads_total") or 0.0


async def test_a_read_of_the_prefix_is_a_tiered_one(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    kafka(bench, KafkaLog(batches(80, 90), 100))
    before = reads("tiered"), reads("local"), reads("diskless")
    assert (await ask(bench, 80)).offsets == [80, 90]
    assert (reads("tiered") - 1, reads("local"), reads("diskless")) == before


async def test_reading_of_a_prefix_that_is_tiered_can_be_switched_off(tmp_path: Path) -> None:
    bench = TrackedBench(tmp_path, hybrid_read_enabled="false")
    await bench.lease()
    kafka(bench, KafkaLog(batches(80, 90), 100))
    bench.show(SUFFIX)
    assert (await ask(bench, 80)).offsets == [80, 90], "replicas may have what is not tiered yet"
    bench.show(replace(SUFFIX, ready=True))
    asked = len(bench.client.forwarded)
    assert (await ask(bench, 80)).error == "kafka_storage_error"
    assert len(bench.client.forwarded) == asked
    await appended(bench, 1)
    assert (await ask(bench, 100)).offsets == [100]
    await bench.close()


async def test_rounds_of_a_long_poll_that_find_nothing_are_no_reads(bench: TrackedBench) -> None:
    def local_reads() -> float:
        return reads("local")

    bench.show(PENDING)
    kafka(bench, KafkaLog(b"", 20))
    before = local_reads()
    assert (await ask(bench, 20, max_wait_ms=250)).offsets == []
    assert bench.client.forwarded
    assert local_reads() == before
    kafka(bench, KafkaLog(batches(0, 10), 20))
    assert (await ask(bench, 0)).offsets == [0, 10]
    assert local_reads() == before + 1


async def test_a_topic_that_becomes_tracked_during_a_long_poll_is_clipped_in_it(
    bench: TrackedBench,
) -> None:
    """Schedules 2 and 9: later rounds of the poll were not there to be drained."""
    bench.show(
        tracked_row(boundary=0, boundary_epoch=0, topic_id=UUID(int=5)),
        name="other",
        topic_id=UUID(int=5),
    )
    logs = {("other", 0): KafkaLog(b"", 0), ME: KafkaLog(b"", 100)}
    bench.client.broker[ApiKey.FETCH] = serving(logs)
    message = fetch(("other", 0, 0), (TOPIC, 0, 100), max_wait_ms=30_000)
    asking = asyncio.create_task(bench.ask(message))
    await until(lambda: bench.client.forwarded)
    bench.show(PENDING)
    before = len(bench.client.forwarded)
    await until(lambda: len(bench.client.forwarded) > before)
    await lasts_async("the poll goes on", lambda: not asking.done(), 0.05)
    bench.show(QUIESCING)
    await until(lambda: bench.plane.quiesce_acks)
    logs[ME] = KafkaLog(batches(100), 110)

    def is_shown() -> bool:
        return asking.done() and fetched(asking.result())[ME].error != "not_leader_or_follower"

    await lasts_async("what is at B0 is not shown", lambda: not is_shown(), 0.1)
    bench.show(SUFFIX)
    await appended(bench, 1)
    if asking.done():  # Kafka's answer was under way at the quiesce: the client asks again
        asking = asyncio.create_task(bench.ask(message))
    assert fetched(await within("the answer", asking))[ME].offsets == [100]


async def test_bytes_are_bounded_but_one_batch_always_comes(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    await appended(bench, 4, payload=500)
    small = await bench.ask(fetch((TOPIC, 0, 100), max_bytes=10))
    assert fetched(small)[ME].offsets == [100]
    bounded = await bench.ask(fetch((TOPIC, 0, 100), partition_max_bytes=1300))
    assert fetched(bounded)[ME].offsets == [100, 101]


async def test_one_answer_may_hold_classic_prefix_and_suffix_partitions(
    bench: TrackedBench,
) -> None:
    bench.show(SUFFIX, tracked_row(1, boundary=50, boundary_epoch=2))
    await appended(bench, 1)
    bench.client.broker[ApiKey.FETCH] = serving(
        {("classic", 0): KafkaLog(batches(5), 15), (TOPIC, 1): KafkaLog(batches(30, 40, 50), 60)}
    )
    response = fetched(
        await bench.ask(fetch(("classic", 0, 5), (TOPIC, 0, 100), (TOPIC, 1, 30), (TOPIC, 9, 0)))
    )
    assert response["classic", 0].offsets == [5]
    assert response[ME].offsets == [100]
    assert response[TOPIC, 1].offsets == [30, 40]
    assert response[TOPIC, 9].error == "not_leader_or_follower"


PREFIX = tracked_row(1, boundary=100, boundary_epoch=7)
IN_PREFIX = (TOPIC, 1)
CLASSIC = ("classic", 0)
ONE = len(record_batch(1, payload=b"x" * 500))
"""Bytes of a batch that these tests share an answer by."""


def backlog(end: int) -> Callable[[Any], Any]:
    """A broker whose logs have a batch of :data:`ONE` bytes at each offset below ``end``; its
    answer has what fits into the request's ``max_bytes``, and one batch in any case."""

    def answer(request: Any) -> Any:
        left, logs = int(request.max_bytes), {}
        for topic in request.topics:
            for row in topic.partitions:
                offset, records = int(row.fetch_offset), b""
                while offset < end and (left >= ONE or left == int(request.max_bytes)):
                    batch = bytearray(record_batch(1, payload=b"x" * 500))
                    patch(batch, offset, 3)
                    offset, records, left = offset + 1, records + batch, left - ONE
                logs[topic.topic, row.partition] = KafkaLog(records, end)
        return serving(logs)(request)

    return answer


async def both_regions(bench: TrackedBench, in_suffix: int) -> None:
    """A partition with so many batches from B0 on, and another one with 100 below it."""
    bench.show(SUFFIX, PREFIX)
    await appended(bench, in_suffix, payload=500)
    bench.client.broker[ApiKey.FETCH] = backlog(100)


async def turns(
    bench: TrackedBench, order: list[tuple[str, int]], fetches: int, max_bytes: int, session: bool
) -> list[dict[int, int]]:
    """How many batches of which partition each of ``fetches`` got. A partition that had records
    goes to the end: of the client's next request (``SubscriptionState.movePartitionToEnd``), or of
    its session (``FetchSession``)."""
    at = {ME: 100, IN_PREFIX: 0}
    order, had, got = list(order), list(order), []
    session_id = 0
    for epoch in range(fetches):
        named = had if session else order
        response = await bench.ask(
            fetch(
                *((*log, at[log]) for log in named),
                max_bytes=max_bytes,
                session=(session_id, epoch) if session else (0, -1),
            )
        )
        session_id = response.session_id
        answer = {log: len(row.offsets) for log, row in fetched(response).items()}
        had = [log for log in order if answer.get(log)]
        for log in had:
            at[log] += answer[log]
            order.remove(log)
            order.append(log)
        got.append({log[1]: answer[log] for log in had})
    return got


@pytest.mark.parametrize("session", [False, True], ids=["full", "session"])
@pytest.mark.parametrize("order", [[ME, IN_PREFIX], [IN_PREFIX, ME]], ids=["suffix", "prefix"])
@pytest.mark.parametrize("max_bytes", [0, ONE, ONE + 100])
async def test_regions_take_turns_where_an_answer_has_room_for_one_batch(
    bench: TrackedBench, order: list[tuple[str, int]], session: bool, max_bytes: int
) -> None:
    await both_regions(bench, 4)
    got = await turns(bench, order, 8, max_bytes, session)
    assert got == [{order[n % 2][1]: 1} for n in range(8)]


@pytest.mark.parametrize("session", [False, True], ids=["full", "session"])
async def test_regions_take_turns_where_each_could_fill_the_answer(
    bench: TrackedBench, session: bool
) -> None:
    await both_regions(bench, 9)
    got = await turns(bench, [IN_PREFIX, ME], 6, 3 * ONE + 100, session)
    assert got == [{1: 3}, {0: 3}] * 3


@pytest.mark.parametrize(
    ("order", "offsets"),
    [
        ([CLASSIC, ME, IN_PREFIX], {CLASSIC: [98, 99], ME: [100, 101], IN_PREFIX: [98]}),
        ([ME, IN_PREFIX, CLASSIC], {ME: [100, 101], IN_PREFIX: [98, 99], CLASSIC: [98]}),
        ([CLASSIC, IN_PREFIX, ME], {CLASSIC: [98, 99], IN_PREFIX: [98, 99], ME: [100]}),
    ],
    ids=["between", "first", "last"],
)
async def test_partitions_of_both_regions_are_served_in_the_order_of_the_request(
    bench: TrackedBench,
    order: list[tuple[str, int]],
    offsets: dict[tuple[str, int], list[int]],
) -> None:
    """The last one gets what the others have left."""
    await both_regions(bench, 2)
    wanted = [(*log, 100 if log == ME else 98) for log in order]
    answer = fetched(await bench.ask(fetch(*wanted, max_bytes=5 * ONE + 50)))
    assert {log: row.offsets for log, row in answer.items()} == offsets


async def test_kafka_is_asked_for_partitions_in_the_order_of_the_request(
    bench: TrackedBench,
) -> None:
    """A topic is named again behind another one, as the Java client does (``FetchRequest``)."""
    await both_regions(bench, 0)
    order = [ME, CLASSIC, IN_PREFIX]
    message = fetch()
    topics = [topic for log in order for topic in fetch((*log, 98)).topics]
    response = await bench.ask(replace(message, topics=tuple(topics), max_bytes=3 * ONE))
    (asked,) = bench.client.forwarded
    assert [(t.topic, p.partition) for t in asked.topics for p in t.partitions] == order
    found = fetched(response)
    assert [found[log].offsets for log in order] == [[98, 99], [98], []]


@pytest.mark.parametrize(
    ("order", "offsets"),
    [
        ([ME, CLASSIC], {ME: [100], CLASSIC: [97, 98]}),
        ([CLASSIC, ME], {CLASSIC: [97, 98, 99], ME: []}),
    ],
    ids=["suffix", "kafka"],
)
async def test_what_a_long_poll_waited_for_is_served_in_the_order_of_the_request(
    bench: TrackedBench, order: list[tuple[str, int]], offsets: dict[tuple[str, int], list[int]]
) -> None:
    """The suffix is read at its end, when it is known what goes into the answer."""
    await both_regions(bench, 1)
    bench.client.broker[ApiKey.FETCH] = backlog(97)
    wanted = [(*log, 100 if log == ME else 97) for log in order]
    most = 3 * ONE + 50
    message = fetch(*wanted, max_wait_ms=600_000, min_bytes=3 * ONE, max_bytes=most)
    asking = asyncio.create_task(bench.ask(message))
    await until(lambda: len(bench.client.forwarded) > 1)
    bench.client.broker[ApiKey.FETCH] = backlog(100)
    answer = fetched(await within("the answer", asking))
    assert {log: row.offsets for log, row in answer.items()} == offsets


async def test_postgres_away_is_an_error_that_consumers_retry_and_the_prefix_goes_on(
    bench: TrackedBench,
) -> None:
    bench.show(SUFFIX)
    bench.plane.down = True
    bench.lapse()
    kafka(bench, KafkaLog(batches(90), 100))
    assert (await ask(bench, 100)).error == "kafka_storage_error"
    assert (await ask(bench, 90)).offsets == [90]


async def test_s3_away_is_an_error_that_consumers_retry_and_no_empty_answer(
    bench: TrackedBench,
) -> None:
    bench.show(SUFFIX)
    await appended(bench, 1)
    forget_everything(bench)
    bench.store.down = True
    assert (await ask(bench, 100)).error == "kafka_storage_error"


def something_is_tracked(bench: TrackedBench) -> None:
    """So that fetches are looked into."""
    another = UUID(int=0xA)
    bench.show(tracked_row(topic_id=another), name="another", topic_id=another)


def classic_sessions(bench: TrackedBench, *names: str) -> None:
    """The broker answers session 77 to a full fetch of these topics."""
    logs = {(name, 0): KafkaLog(batches(5), 15) for name in names}
    bench.client.broker[ApiKey.FETCH] = serving(logs, 77)


async def full(bench: TrackedBench, *names: str) -> Any:
    return await bench.ask(fetch(*((name, 0, 5) for name in names), session=(0, 0)))


async def going_on(bench: TrackedBench, epoch: int, *more: str, session: int = 77) -> str:
    """The error of an incremental fetch that adds these topics to the session."""
    answer = await bench.ask(fetch(*((name, 0, 5) for name in more), session=(session, epoch)))
    code: ErrorCode = answer.error_code
    return code.name


ENDED = "fetch_session_id_not_found"


async def test_an_old_session_that_names_nothing_is_ended_once_its_topic_is_tracked(
    bench: TrackedBench,
) -> None:
    """Schedule 9."""
    something_is_tracked(bench)
    classic_sessions(bench, "classic", TOPIC)
    assert (await full(bench, "classic", TOPIC)).session_id == 77
    assert await going_on(bench, 1) == "none"
    bench.show(PENDING)
    assert await going_on(bench, 2) == ENDED
    assert await going_on(bench, 3, session=5) == ENDED, "never seen"
    assert (await full(bench, "classic")).session_id == 77
    assert await going_on(bench, 1) == "none"


async def test_a_topic_that_an_incremental_fetch_adds_ends_its_session_too_once_it_is_tracked(
    bench: TrackedBench,
) -> None:
    """Schedule 9."""
    something_is_tracked(bench)
    classic_sessions(bench, "classic", TOPIC)
    await full(bench, "classic")
    assert await going_on(bench, 1, TOPIC) == "none"
    bench.show(PENDING)
    assert await going_on(bench, 2) == ENDED


async def test_a_topic_that_becomes_tracked_while_its_full_fetch_is_under_way_ends_the_session(
    bench: TrackedBench,
) -> None:
    """Schedule 9."""
    something_is_tracked(bench)
    answer = serving({(TOPIC, 0): KafkaLog(batches(5), 15)}, 77)

    def slow(request: Any) -> Any:
        bench.show(PENDING)
        return answer(request)

    bench.client.broker[ApiKey.FETCH] = slow
    assert (await full(bench, TOPIC)).session_id == 77
    assert await going_on(bench, 1) == ENDED


async def test_a_wave_of_topics_ends_no_session_that_names_none_of_them(
    bench: TrackedBench,
) -> None:
    """A thousand migrations begin one by one, and the consumer fetches in between."""
    something_is_tracked(bench)
    classic_sessions(bench, "classic")
    await full(bench, "classic")
    tracking = bench.parts.tracking
    for number in range(1000):
        name, topic_id = f"wave-{number}", UUID(int=10_000 + number)
        tracking.replace_named([name], [tracked_topic(name=name, topic_id=topic_id)])
        assert await going_on(bench, number + 1) == "none"
    assert len(bench.client.forwarded) == 1001


async def test_a_session_by_ids_ends_with_the_id_that_becomes_tracked(
    bench: TrackedBench,
) -> None:
    """Fetch 13 and later name topics by id."""
    something_is_tracked(bench)
    api = messages(ApiKey.FETCH, 13)
    elsewhere = UUID(int=0xC1A551C)

    def asking(session_id: int, epoch: int, *ids: UUID) -> Any:
        row = api.request_part(
            "FetchPartition", partition=0, fetch_offset=5, partition_max_bytes=1 << 20
        )
        topics = [api.request_part("FetchTopic", topic_id=one, partitions=(row,)) for one in ids]
        return api.request(
            max_wait=timedelta(0),
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=session_id,
            session_epoch=epoch,
            topics=tuple(topics),
            forgotten_topics_data=(),
            rack_id="",
        )

    bench.client.broker[ApiKey.FETCH] = lambda _: api.response(
        throttle_time=timedelta(0), error_code=ErrorCode.none, session_id=77, responses=()
    )
    bench.parts.tracking.replace_named([TOPIC], [])
    await bench.ask(asking(0, 0, elsewhere, TOPIC_ID))
    joins = tracked_topic(name="third", topic_id=UUID(int=3))
    bench.parts.tracking.replace_named(["third"], [joins])
    assert (await bench.ask(asking(77, 1))).error_code is ErrorCode.none
    bench.parts.tracking.replace_named([TOPIC], [tracked_topic(PENDING)])
    assert (await bench.ask(asking(77, 2))).error_code.name == ENDED


async def test_a_session_of_more_topics_than_are_kept_in_mind_ends_with_whatever_topic_joins(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_handler, "TOPICS_REMEMBERED", 3)
    something_is_tracked(bench)
    names = [f"classic-{number}" for number in range(4)]
    classic_sessions(bench, *names)
    await full(bench, *names)
    assert await going_on(bench, 1) == "none"
    bench.show(PENDING)
    assert await going_on(bench, 2) == ENDED
    await full(bench, *names[:3])
    bench.parts.tracking.replace_named(["more"], [tracked_topic(name="more", topic_id=UUID(int=9))])
    assert await going_on(bench, 1) == "none", "what the session before it named is forgotten"


async def test_kafka_has_no_session_of_a_fetch_that_names_a_tracked_topic(
    bench: TrackedBench,
) -> None:
    """Schedule 9: it would hide partitions from the gateway."""
    bench.show(PENDING)
    bench.client.broker[ApiKey.FETCH] = serving({ME: KafkaLog(batches(5), 15)}, 77)
    full = await bench.ask(fetch((TOPIC, 0, 5), session=(0, 0)))
    assert full.session_id not in (0, 77)
    assert bench.client.forwarded[0].session_epoch == -1
    joined = await bench.ask(fetch((TOPIC, 0, 5), session=(77, 1)))
    assert joined.error_code is ErrorCode.fetch_session_id_not_found


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    boundary=st.integers(0, 12),
    kafka_end=st.integers(0, 15),
    offset=st.integers(0, 14),
    in_suffix=st.integers(0, 3),
)
async def test_no_answer_crosses_the_boundary(
    tmp_path: Path, boundary: int, kafka_end: int, offset: int, in_suffix: int
) -> None:
    """Whatever Kafka has and wherever the consumer is (schedules 2, 4 and 6)."""
    bench = TrackedBench(tmp_path)
    await bench.lease()
    bench.show(tracked_row(boundary=boundary, boundary_epoch=7))
    await appended(bench, in_suffix)
    kafka(bench, KafkaLog(batches(*range(offset, kafka_end), records=1), kafka_end))
    answer = await ask(bench, offset)
    if offset < boundary:
        expected = list(range(offset, min(kafka_end, boundary)))
        assert answer.offsets == expected
        if not expected:
            assert answer.error == "not_leader_or_follower"
    elif offset <= boundary + in_suffix:
        assert answer.offsets == list(range(offset, boundary + in_suffix))
        assert answer.epochs <= {7}
    else:
        assert answer.error == "offset_out_of_range"
    if answer.error == "none":
        assert answer.high_watermark == boundary + in_suffix
    await bench.close()
