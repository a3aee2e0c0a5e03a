"""Stock clients on topics born diskless: every byte in object storage, no client notices."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition

from tests.harness import CONSOLE_MS, LASTING_SESSION, create_topics, delete_topics, until_led
from tests.support.waiting import (
    HANGS_S,
    flushed,
    for_seconds,
    joined,
    ran,
    until,
    until_still,
)
from tideline.stack import Stack
from tideline.stack.kafka_jars import tool_command

_names = count()
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
OUTAGE_S = 10.0
SETTLES_S = 6.0
"""Longer than a statement of Postgres may take: what was told of before is told by then."""
Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]


@pytest.fixture
def bootstrap(stack: Stack) -> str:
    return stack.endpoints.gateway_bootstrap


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def create(stack: Stack, admin: AdminClient, partitions: int, **configs: str) -> str:
    name = f"diskless-{next(_names)}-{time.monotonic_ns() % 1_000_000}"
    settings = {"diskless.enable": "true"} | {k.replace("_", "."): v for k, v in configs.items()}
    create_topics(admin, NewTopic(name, partitions, 1, config=settings))
    # Until then a Produce with acks=0 is lost without a word.
    until_led(stack.endpoints.gateways.values(), name, partitions)
    return name


@pytest.fixture
def topic(stack: Stack, admin: AdminClient) -> Iterator[str]:
    name = create(stack, admin, 3)
    yield name
    delete_topics(admin, name)


def records(count_: int, tag: str = "") -> list[Record]:
    """Keys, values and headers with everything that may be null or empty."""
    made: list[Record] = []
    for n in range(count_):
        key = None if n % 5 == 0 else f"{tag}key-{n}".encode()
        value = None if n % 7 == 0 else (f"{tag}value-{n}-" * (1 + n % 9)).encode()
        headers: list[tuple[str, bytes | None]] = [("n", str(n).encode()), ("null", None)]
        made.append((key, value, headers if n % 3 else []))
    return made


def produce(
    bootstrap: str, topic: str, wanted: list[Record], **config: Any
) -> dict[int, list[Any]]:
    """Send everything; (offset, record) by partition, in the order of the acknowledgements."""
    acknowledged: dict[int, list[Any]] = {}
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 2, **config})

    def settled(record: Record) -> Any:
        def told(error: object, message: Message) -> None:
            if error is not None:
                failures.append(error)
                return
            acknowledged.setdefault(message.partition(), []).append((message.offset(), record))

        return told

    for n, (key, value, headers) in enumerate(wanted):
        producer.produce(
            topic,
            value,
            key,
            partition=n % 3,
            headers=headers,
            on_delivery=settled((key, value, headers)),
        )
    flushed(producer, 60)
    assert failures == []
    return acknowledged


def consume(bootstrap: str, topic: str, wanted: int, **config: Any) -> dict[int, list[Any]]:
    """(offset, record) by partition, in the order of their arrival."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"g-{next(_names)}-{topic}",
            "auto.offset.reset": "earliest",
            **config,
        }
    )
    consumer.subscribe([topic])
    found: dict[int, list[Any]] = {}

    def enough() -> bool:
        for message in consumer.consume(500, 0.2):
            assert message.error() is None, message.error()
            record = (message.key(), message.value(), message.headers() or [])
            found.setdefault(message.partition(), []).append((message.offset(), record))
        return sum(map(len, found.values())) >= wanted

    try:
        until(f"{wanted} records of {topic}", enough, 40)
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_an_idempotent_librdkafka_producer_gets_every_byte_back(
    bootstrap: str, topic: str, codec: str
) -> None:
    sent = produce(
        bootstrap, topic, records(900), **{"enable.idempotence": True, "compression.type": codec}
    )
    assert [offset for offset, _ in sent[0]] == list(range(300))
    assert consume(bootstrap, topic, 900) == sent


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_kafka_python_produces_and_consumes(bootstrap: str, topic: str, acks: Any) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks=acks, enable_idempotence=False)
    wanted = [record for record in records(200, f"{acks}-") if record[:2] != (None, None)]
    for key, value, headers in wanted:
        producer.send(topic, value, key, headers=[h for h in headers if h[1] is not None])
    producer.flush(HANGS_S)
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        group_id=None,
        consumer_timeout_ms=60_000,
    )
    found = []
    for message in consumer:
        found.append((message.key, message.value))
        if len(found) == len(wanted):
            break
    producer.close()
    consumer.close()
    assert sorted(found, key=repr) == sorted(((k, v) for k, v, _ in wanted), key=repr)


def test_the_java_tools_produce_and_consume(bootstrap: str, topic: str) -> None:
    lines = [f"java-{n}" for n in range(500)]
    produced = subprocess.run(
        tool_command(
            "org.apache.kafka.tools.ConsoleProducer",
            "--bootstrap-server",
            bootstrap,
            "--topic",
            topic,
            "--compression-codec",
            "zstd",
            *("--request-timeout-ms", "60000"),
        ),
        input="\n".join(lines) + "\n",
        text=True,
        capture_output=True,
        timeout=HANGS_S,
    )
    assert produced.returncode == 0, produced.stderr
    consumed = ran(
        tool_command(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            "--bootstrap-server",
            bootstrap,
            "--topic",
            topic,
            "--from-beginning",
            "--max-messages",
            "500",
            "--timeout-ms",
            CONSOLE_MS,
        ),
        text=True,
    )
    assert sorted(consumed.stdout.split()) == sorted(lines), consumed.stderr


def test_the_java_perf_tool_fills_a_partition(bootstrap: str, topic: str) -> None:
    """Idempotent, acks=all, five requests in flight: the Java client's defaults."""
    result = subprocess.run(
        tool_command(
            "org.apache.kafka.tools.ProducerPerformance",
            "--topic",
            topic,
            "--num-records",
            "20000",
            "--record-size",
            "500",
            "--throughput",
            "-1",
            "--producer-props",
            f"bootstrap.servers={bootstrap}",
        ),
        text=True,
        capture_output=True,
        timeout=HANGS_S,
    )
    assert "20000 records sent" in result.stdout, result.stdout + result.stderr
    found = consume(bootstrap, topic, 20_000)
    assert sum(map(len, found.values())) == 20_000
    for rows in found.values():
        assert [offset for offset, _ in rows] == list(range(len(rows)))


def test_a_group_goes_on_where_it_stopped(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, records(300))
    group = f"group-{topic}"
    first = consume(bootstrap, topic, 300, **{"group.id": group})
    assert sum(map(len, first.values())) == 300
    sent = produce(bootstrap, topic, records(30, "later-"))
    assert consume(bootstrap, topic, 30, **{"group.id": group}) == sent


def test_two_members_share_the_partitions_and_long_polls_wake(bootstrap: str, topic: str) -> None:
    found: list[bytes | None] = []
    stop = threading.Event()

    def member() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"shared-{topic}",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 5_000,
                **LASTING_SESSION,
            }
        )
        consumer.subscribe([topic])
        while not stop.is_set():
            for message in consumer.consume(100, 0.1):
                assert message.error() is None, message.error()
                found.append(message.value())
        consumer.close()

    members = [threading.Thread(target=member) for _ in range(2)]
    for thread in members:
        thread.start()
    try:
        for wave in range(3):
            produce(bootstrap, topic, records(60, f"wave-{wave}-"))
        until("all records", lambda: len(found) >= 180, 30)
    finally:
        stop.set()
        for thread in members:
            joined(thread, 20)
    assert len(found) == 180


def test_log_append_time_is_the_time_of_the_commit(
    stack: Stack, admin: AdminClient, bootstrap: str
) -> None:
    name = create(stack, admin, 3, message_timestamp_type="LogAppendTime")
    producer = Producer({"bootstrap.servers": bootstrap})
    before = int(time.time() * 1000)
    for n in range(10):
        producer.produce(name, f"{n}", partition=0, timestamp=1_000)
    flushed(producer, 20)
    after = int(time.time() * 1000)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "check.crcs": True})
    consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
    messages: list[Message] = []

    def all_read() -> bool:
        messages.extend(m for m in consumer.consume(10, 0.5) if m.error() is None)
        return len(messages) >= 10

    until("all records", all_read)
    consumer.close()
    assert {message.timestamp()[0] for message in messages} == {2}
    assert all(before - 1_000 <= message.timestamp()[1] <= after + 1_000 for message in messages)


def test_offsets_are_found_by_time_and_at_both_ends(
    admin: AdminClient, bootstrap: str, topic: str
) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for n in range(100):
        producer.produce(topic, f"{n}", partition=0, timestamp=1_000_000 + n * 10)
        if n % 10 == 9:
            flushed(producer, 10)
    flushed(producer, 20)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    at = PythonTopicPartition(topic, 0)
    assert consumer.beginning_offsets([at]) == {at: 0}
    assert consumer.end_offsets([at]) == {at: 100}
    found = consumer.offsets_for_times({at: 1_000_455})[at]
    assert (found.offset, found.timestamp) == (46, 1_000_460)
    assert consumer.offsets_for_times({at: 9_000_000})[at] is None
    consumer.close()
    (latest,) = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.max_timestamp()}).values()
    assert latest.result(HANGS_S).offset == 99


def test_deleted_records_are_gone_and_the_rest_stays(
    admin: AdminClient, bootstrap: str, topic: str
) -> None:
    produce(bootstrap, topic, records(300))
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 40)]).values()
    assert deleted.result(HANGS_S).low_watermark == 40
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    at = PythonTopicPartition(topic, 0)
    assert consumer.beginning_offsets([at]) == {at: 40}
    consumer.close()
    found = consume(bootstrap, topic, 260)
    assert [offset for offset, _ in found[0]] == list(range(40, 100))
    (too_far,) = admin.delete_records([TopicPartition(topic, 0, 5_000)]).values()
    with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
        too_far.result(HANGS_S)


def test_a_batch_past_the_topics_limit_is_refused(
    stack: Stack, admin: AdminClient, bootstrap: str
) -> None:
    name = create(stack, admin, 3, max_message_bytes="1000")
    producer = Producer({"bootstrap.servers": bootstrap})
    errors: list[str] = []
    producer.produce(
        name, b"x" * 5_000, on_delivery=lambda e, _: errors.append(e.name() if e else "none")
    )
    flushed(producer, 20)
    assert errors == ["MSG_SIZE_TOO_LARGE"]


@pytest.mark.parametrize("part", ["s3", "postgres"])
def test_an_outage_of_a_store_costs_time_and_no_record(
    stack: Stack, bootstrap: str, topic: str, part: str
) -> None:
    """Ten seconds without it, an idempotent producer and a consumer at work all the while."""
    acknowledged: list[tuple[int, int]] = []
    failures: list[object] = []
    stop = threading.Event()

    def settled(error: object, message: Message) -> None:
        if error is not None:
            failures.append(error)
        else:
            acknowledged.append((message.partition(), message.offset()))

    def write() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        number = 0
        while not stop.is_set():
            producer.produce(topic, f"{number}", partition=number % 3, on_delivery=settled)
            producer.poll(0)
            number += 1
            stop.wait(0.005)
        flushed(producer, 60)

    writer = threading.Thread(target=write, name="the producer")
    writer.start()
    try:
        until("records before the outage", lambda: len(acknowledged) >= 100, 20)
        stack.stop(part)
        try:
            # What was on its way when it stopped is told first.
            during = until_still("acknowledgements", lambda: len(acknowledged), SETTLES_S)
            for_seconds("the outage", OUTAGE_S - SETTLES_S)
            assert len(acknowledged) == during, "the outage was one"
        finally:
            stack.start(part)
        after = len(acknowledged)
        until("records after the outage", lambda: len(acknowledged) > after + 400, 40)
    finally:
        stop.set()
        joined(writer, 70)
    assert failures == []
    found = consume(bootstrap, topic, len(acknowledged))
    for partition in range(3):
        offsets = [offset for offset, _ in found[partition]]
        assert offsets == list(range(len(offsets)))
        assert offsets == sorted(o for p, o in acknowledged if p == partition)
        values = [int(record[1]) for _, record in found[partition]]
        assert values == sorted(set(values)), "in order, and none twice"
