"""Stock clients on a log of three regions: Kafka's prefix, merged segments, WAL objects."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import uuid4

import aiokafka
import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.harness import CONSOLE_MS, Case, create_topics, id_of, migration_case
from tests.raw_batches import raw_batches
from tests.support.waiting import HANGS_S, WITHIN_S, bounded, flushed, ran, until
from tests.tiering_now import tier
from tideline.demo.ledger import Ledger
from tideline.stack import Stack
from tideline.stack.kafka_jars import tool_command

HISTORY = 200
Seen = tuple[int, int, bytes]
"""offset, timestamp, value"""


def produce(case: Case, codec: str, count: int, seed: int) -> None:
    """Batches of many sizes with timestamps out of order."""
    producer = Producer(
        {"bootstrap.servers": case.bootstrap, "compression.type": codec, "linger.ms": 1,
         "enable.idempotence": True}
    )  # fmt: skip
    chance, now = random.Random(seed), int(time.time() * 1000)
    failures: list[object] = []
    for n in range(count):
        producer.produce(
            case.topic, f"{codec}-{n}-".encode() * chance.randint(1, 40), f"k{n}".encode(),
            timestamp=now + chance.randint(-60_000, 60_000),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )  # fmt: skip
        if n % chance.randint(1, 12) == 0:
            flushed(producer, 30)
    flushed(producer, 30)
    assert failures == []


def read(case: Case, start: int, end: int) -> list[Seen]:
    """Everything from ``start`` up to ``end`` (exclusive), as librdkafka gets it."""
    consumer = Consumer(
        {"bootstrap.servers": case.bootstrap, "group.id": str(uuid4()),
         "auto.offset.reset": "error", "fetch.message.max.bytes": 30_000}
    )  # fmt: skip
    consumer.assign([TopicPartition(case.topic, 0, start)])
    seen: list[Seen] = []

    def all_read() -> bool:
        for message in consumer.consume(500, 0.2):
            assert message.error() is None, message.error()
            offset, value = message.offset(), message.value()
            assert offset is not None
            assert value is not None
            seen.append((offset, message.timestamp()[1], value))
        return start + len(seen) >= end

    try:
        if start < end:
            until(f"records from {start} up to {end}", all_read)
    finally:
        consumer.close()
    return seen


@dataclass
class Log:
    """A log of three regions and what was in it before any of it was merged."""

    case: Case
    boundary: int
    wal_batches: list[bytes] = field(default_factory=list)
    merged_to: int = -1
    end: int = -1
    segment_ends: list[int] = field(default_factory=list)

    def listed(self, spec: OffsetSpec) -> int:
        """An answer of ListOffsets."""
        at = TopicPartition(self.case.topic, 0)
        (answer,) = self.case.admin.list_offsets({at: spec}).values()
        return int(answer.result(HANGS_S).offset)


@pytest.fixture(scope="module")
def log(stack: Stack) -> Iterator[Log]:
    with migration_case(stack, name="merged", history=HISTORY) as case:
        case.trigger()
        case.until_ready()
        (boundary,) = case.boundaries()
        made = Log(case, boundary)
        for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
            produce(case, codec, 150, number)
        made.merged_to = made.listed(OffsetSpec.latest())
        made.wal_batches = raw_batches(case.stack, case.topic, 0, boundary, made.merged_to)
        assert tier(stack, case.topic) >= 3
        produce(case, "lz4", 150, 99)
        made.end = made.listed(OffsetSpec.latest())
        ends = "(SELECT array_agg(last_offset ORDER BY last_offset) FROM tideline.merged_segments"
        ((found,),) = case.rows(f"{ends} AS m WHERE m.log_id = logs.log_id)")
        made.segment_ends = list(found)  # type: ignore[call-overload]
        yield made


def test_a_segment_answers_the_bytes_that_the_wal_answered(log: Log) -> None:
    assert (
        raw_batches(log.case.stack, log.case.topic, 0, log.boundary, log.merged_to)
        == log.wal_batches
    )


def test_the_regions_are_where_the_test_believes_them(log: Log) -> None:
    assert log.segment_ends[-1] == log.merged_to - 1
    (row,) = log.case.rows("tiered_high_offset, migration_state, diskless_log_start_offset")
    assert row == (log.merged_to - 1, "HYBRID", log.boundary)
    assert log.boundary == HISTORY < log.merged_to < log.end


async def aiokafka_reads(case: Case, end: int) -> list[Seen]:
    """Everything up to ``end`` (exclusive), as aiokafka gets it."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=case.bootstrap,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=5_000,
    )
    at = aiokafka.TopicPartition(case.topic, 0)
    await consumer.start()
    try:
        consumer.assign([at])
        seen: list[Seen] = []
        async with bounded("aiokafka to read everything", WITHIN_S):
            while len(seen) < end:
                for message in (await consumer.getmany(timeout_ms=200)).get(at, ()):
                    seen.append((message.offset, message.timestamp, message.value))
        return seen
    finally:
        await consumer.stop()


async def test_librdkafka_and_aiokafka_read_the_whole_log(log: Log) -> None:
    seen = await asyncio.to_thread(read, log.case, 0, log.end)
    assert [offset for offset, _, _ in seen] == list(range(log.end))
    assert await aiokafka_reads(log.case, log.end) == seen


def test_the_java_consumer_reads_the_whole_log(log: Log) -> None:
    done = ran(
        tool_command(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            "--bootstrap-server", log.case.bootstrap, "--topic", log.case.topic,
            "--from-beginning", "--max-messages", str(log.end), "--timeout-ms", CONSOLE_MS,
            "--formatter-property", "print.offset=true",
            "--formatter-property", "print.timestamp=true",
        )
    )  # fmt: skip
    wanted = [
        f"CreateTime:{timestamp}\tOffset:{offset}\t".encode() + value
        for offset, timestamp, value in read(log.case, 0, log.end)
    ]
    assert done.stdout.splitlines() == wanted, done.stderr[-500:]


def offset_for_time(consumer: Consumer, at: TopicPartition) -> int:
    """As an application asks: librdkafka leaves the retriable errors of a partition to it, beside
    an offset of -1, which without an error is the end. That of a broker which times a search of its
    remote log out at once it does not call retriable."""
    answers: list[TopicPartition] = []

    def answered() -> bool:
        answers[:] = consumer.offsets_for_times([at], HANGS_S)
        error = answers[0].error
        if error is not None and error.code() == KafkaError.REQUEST_TIMED_OUT:
            return False
        return error is None or not error.retriable()

    until(f"an answer for time {at.offset}", answered)
    assert answers[0].error is None, answers[0].error
    return answers[0].offset


def test_offsets_for_times_are_those_of_a_scan(log: Log) -> None:
    seen = read(log.case, 0, log.end)
    chance = random.Random(5)
    points = {timestamp + d for _, timestamp, _ in chance.sample(seen, 60) for d in (-1, 0, 1)}
    points |= {0, max(t for _, t, _ in seen) + 1}
    consumer = Consumer({"bootstrap.servers": log.case.bootstrap, "group.id": str(uuid4())})
    found, wanted = {}, {}
    for point in sorted(points):
        found[point] = offset_for_time(consumer, TopicPartition(log.case.topic, 0, point))
        # Without one librdkafka says -1, the end.
        wanted[point] = next((o for o, timestamp, _ in seen if timestamp >= point), -1)
    consumer.close()
    assert found == wanted
    largest = max(timestamp for _, timestamp, _ in seen)
    first = next(offset for offset, timestamp, _ in seen if timestamp == largest)
    assert log.listed(OffsetSpec.max_timestamp()) == first
    assert log.listed(OffsetSpec.earliest()) == 0


def test_the_log_begins_where_the_last_deletion_said_through_all_regions(log: Log) -> None:
    """Retention across B0, by hand: earliest at each step, out of range below, the rest whole."""
    seen = read(log.case, 0, log.end)
    first, last = log.segment_ends[0], log.segment_ends[-1]
    steps = [
        (log.boundary - 10, "HYBRID"),
        (log.boundary, "HYBRID"),
        ((log.boundary + first) // 2, "HYBRID"),
        (first + 1, "HYBRID"),
        (last, "HYBRID"),
        (last + 1, "DISKLESS_ONLY"),
        ((last + log.end) // 2, "DISKLESS_ONLY"),
        (log.end, "DISKLESS_ONLY"),
    ]
    for start, state in steps:
        at = TopicPartition(log.case.topic, 0, start)
        (answer,) = log.case.admin.delete_records([at]).values()
        assert answer.result(HANGS_S).low_watermark == start
        assert log.listed(OffsetSpec.earliest()) == start
        assert log.case.rows("migration_state") == [(state,)]
        assert out_of_range(log.case, start - 1)
        assert read(log.case, start, log.end) == seen[start:]
    assert log.listed(OffsetSpec.latest()) == log.end
    produce(log.case, "none", 10, 7)
    assert [offset for offset, _, _ in read(log.case, log.end, log.end + 10)] == list(
        range(log.end, log.end + 10)
    )


def out_of_range(case: Case, offset: int) -> bool:
    """Whether a consumer at ``offset`` is told so."""
    consumer = Consumer(
        {"bootstrap.servers": case.bootstrap, "group.id": str(uuid4()),
         "auto.offset.reset": "error"}
    )  # fmt: skip
    consumer.assign([TopicPartition(case.topic, 0, offset)])
    try:
        message = until("an answer", lambda: consumer.poll(0.2), 20)
        error = message.error()
        return error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET
    finally:
        consumer.close()


def test_readers_do_not_notice_that_the_suffix_is_tiered_under_them(stack: Stack) -> None:
    admin = AdminClient({"bootstrap.servers": stack.endpoints.gateway_bootstrap})
    name = f"tiering-{time.monotonic_ns() % 1_000_000}"
    create_topics(admin, NewTopic(name, 1, 1, config={"diskless.enable": "true"}))
    case = Case(
        stack, name, 1, id_of(admin, name), Ledger(), admin,
        stack.endpoints.gateway_bootstrap,
    )  # fmt: skip
    try:
        # Few WAL objects: a loaded machine splits them one after the other.
        case.produce(rate=100, **{"linger.ms": 200})
        case.consume()
        for _ in range(4):
            case.until_acknowledged(60)
            assert tier(stack, name, 2_000) >= 1
            end = case.ledger.acknowledged_through(0)
            assert [offset for offset, _, _ in read(case, 0, end)][:end] == list(range(end))
        assert case.rows("migration_state") == [("HYBRID",)]
        case.settle()
    finally:
        case.stop()
