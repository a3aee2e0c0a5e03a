"""Stock clients on classic topics through a gateway: as with a broker, and as cheap."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from itertools import count

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer

from tests.harness import CONSOLE_MS, create_topics, delete_topics, killed, until_led
from tests.integration.test_api_answers import offered
from tests.support.waiting import HANGS_S, flushed, ran, until
from tideline.stack import Stack
from tideline.stack.kafka_jars import tool_command

_names = count()


@pytest.fixture(scope="module")
def admin(stack: Stack) -> AdminClient:
    return AdminClient({"bootstrap.servers": stack.endpoints.gateway_bootstrap})


@pytest.fixture
def topic(stack: Stack, admin: AdminClient) -> Iterator[str]:
    name = f"classic-{next(_names)}-{time.monotonic_ns() % 1_000_000}"
    create_topics(admin, NewTopic(name, 2, 1))
    # Until then a Produce with acks=0 is lost without a word.
    until_led(stack.endpoints.gateways.values(), name, 2)
    yield name
    delete_topics(admin, name)


@pytest.fixture
def bootstrap(stack: Stack) -> str:
    return stack.endpoints.gateway_bootstrap


def produce(bootstrap: str, topic: str, values: list[bytes], **config: object) -> None:
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 2, **config})
    for value in values:
        producer.produce(
            topic, value, key=value[:3], on_delivery=lambda e, _: failures.append(e) if e else None
        )
    flushed(producer, 30)
    assert failures == []


def consume(bootstrap: str, topic: str, wanted: int, **config: object) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"g-{next(_names)}-{topic}",
            "auto.offset.reset": "earliest",
            **config,
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []

    def enough() -> bool:
        for message in consumer.consume(500, 0.2):
            assert message.error() is None, message.error()
            found.append(message.value())
        return len(found) >= wanted

    try:
        until(f"{wanted} records of {topic}", enough, 30)
    finally:
        consumer.close()
    return found


def test_clients_see_gateways_in_the_place_of_brokers(stack: Stack, admin: AdminClient) -> None:
    seen = admin.list_topics(timeout=HANGS_S)
    assert {f"{b.host}:{b.port}" for b in seen.brokers.values()} == set(
        stack.endpoints.gateways.values()
    )
    described = admin.describe_cluster().result(HANGS_S)
    assert {f"{n.host}:{n.port}" for n in described.nodes} == set(stack.endpoints.gateways.values())


BETWEEN_BROKERS = set(range(83, 88))
"""The state of share groups, for which brokers ask each other."""


async def test_clients_are_offered_all_that_a_stock_broker_has_for_them(stack: Stack) -> None:
    """Every API in every version; only what brokers ask each other is left out."""
    of_broker = await offered(stack.endpoints.brokers[1])
    of_gateway = await offered(stack.endpoints.gateways[1])
    assert of_broker.keys() - of_gateway.keys() == BETWEEN_BROKERS
    assert of_gateway == {key: of_broker[key] for key in of_gateway}


def too_new(address: str) -> bytes:
    """The answer to an ApiVersions request of version 5."""
    body = b"\x00\x12\x00\x05" + b"\x00\x00\x00\x07" + b"\xff\xff" + b"\x00\x02x\x02y\x00"
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), HANGS_S) as connection:
        connection.sendall(len(body).to_bytes(4, "big") + body)
        with connection.makefile("rb") as answer:
            return answer.read(int.from_bytes(answer.read(4), "big"))


def test_a_version_of_api_versions_that_is_too_new_is_answered_as_kafka_answers_it(
    stack: Stack,
) -> None:
    """franz-go asks so first, and takes a longer list for one that names no features."""
    answers = {too_new(stack.endpoints.gateways[1]), too_new(stack.endpoints.brokers[1])}
    assert len(answers) == 1


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_passes(bootstrap: str, topic: str, codec: str) -> None:
    values = [b"%05d" % n * 40 for n in range(300)]
    produce(bootstrap, topic, values, **{"compression.type": codec})
    assert sorted(consume(bootstrap, topic, 300)) == values


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_level_of_acks_passes(bootstrap: str, topic: str, acks: str) -> None:
    values = [b"%05d" % n for n in range(500)]
    produce(bootstrap, topic, values, acks=acks)
    assert sorted(consume(bootstrap, topic, 500)) == values


def test_an_idempotent_producer_with_five_requests_in_flight(bootstrap: str, topic: str) -> None:
    values = [b"%06d" % n * 20 for n in range(3000)]
    produce(
        bootstrap,
        topic,
        values,
        **{"enable.idempotence": True, "max.in.flight": 5, "batch.num.messages": 20},
    )
    assert sorted(consume(bootstrap, topic, 3000)) == values


def test_a_record_of_several_megabytes_passes(admin: AdminClient, bootstrap: str) -> None:
    name = f"large-{time.monotonic_ns()}"
    create_topics(admin, NewTopic(name, 1, 1, config={"max.message.bytes": "8000000"}))
    value = bytes(range(256)) * 20_000
    produce(bootstrap, name, [value], **{"message.max.bytes": 8_000_000})
    assert consume(bootstrap, name, 1, **{"fetch.message.max.bytes": 8_000_000}) == [value]
    admin.delete_topics([name])


def test_transactions_commit_and_abort(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(HANGS_S)
    for value, end in ((b"aborted", "abort"), (b"committed", "commit")):
        producer.begin_transaction()
        producer.produce(topic, value)
        flushed(producer, 60)
        if end == "abort":
            producer.abort_transaction(HANGS_S)
        else:
            producer.commit_transaction(HANGS_S)
    assert consume(bootstrap, topic, 1, **{"isolation.level": "read_committed"}) == [b"committed"]


def test_a_group_commits_and_goes_on_from_there(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, [b"first"] * 10)
    group = {"group.id": f"resume-{topic}"}
    assert len(consume(bootstrap, topic, 10, **group)) == 10
    produce(bootstrap, topic, [b"second"] * 10)
    assert consume(bootstrap, topic, 10, **group) == [b"second"] * 10


def test_kafka_python_produces_and_consumes(bootstrap: str, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", compression_type="gzip")
    for n in range(100):
        producer.send(topic, b"%03d" % n)
    producer.flush(HANGS_S)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=f"kp-{topic}",
        auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
    )
    found = []
    for record in consumer:
        found.append(record.value)
        if len(found) == 100:
            break
    consumer.close()
    assert sorted(found) == [b"%03d" % n for n in range(100)]


def test_the_java_console_tools_produce_and_consume(bootstrap: str, topic: str) -> None:
    lines = "".join(f"line-{n}\n" for n in range(50))
    subprocess.run(
        tool_command(
            "org.apache.kafka.tools.ConsoleProducer",
            *("--bootstrap-server", bootstrap, "--topic", topic),
            *("--request-timeout-ms", "60000"),
        ),
        input=lines,
        text=True,
        check=True,
        timeout=HANGS_S,
        capture_output=True,
    )
    read = ran(
        tool_command(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning"),
            *("--max-messages", "50", "--timeout-ms", CONSOLE_MS),
        ),
        text=True,
    )
    assert sorted(read.stdout.split()) == sorted(lines.split()), read.stderr


def test_java_transactions_work(bootstrap: str, topic: str) -> None:
    done = subprocess.run(
        tool_command(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", "2000", "--throughput", "-1"),
            *("--record-size", "100", "--transaction-duration-ms", "100"),
            *("--transactional-id", f"java-{topic}"),
            *("--producer-props", f"bootstrap.servers={bootstrap}"),
        ),
        text=True,
        timeout=HANGS_S,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(consume(bootstrap, topic, 2000, **{"isolation.level": "read_committed"})) == 2000


def test_offsets_are_found_by_time(bootstrap: str, topic: str) -> None:
    first = int(time.time() * 1000) - 60_000  # young enough for retention to leave alone
    producer = Producer({"bootstrap.servers": bootstrap})
    for n in range(10):
        producer.produce(topic, b"x", partition=0, timestamp=first + n)
    flushed(producer, 60)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "times"})
    (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, first + 5)], timeout=HANGS_S)
    consumer.close()
    assert found.offset == 5


def test_classic_traffic_needs_neither_postgres_nor_s3(
    stack: Stack, bootstrap: str, topic: str, admin: AdminClient
) -> None:
    with killed(stack, "postgres", "s3"):
        produce(bootstrap, topic, [b"dark"] * 200, acks="all")
        assert len(consume(bootstrap, topic, 200)) == 200
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"dark-{topic}"})
        producer.init_transactions(HANGS_S)
        producer.begin_transaction()
        producer.produce(topic, b"tx")
        producer.commit_transaction(HANGS_S)
        name = f"dark-{topic}"
        create_topics(admin, NewTopic(name, 1, 1))
        delete_topics(admin, name)
        born = NewTopic(name, 1, 1, config={"diskless.enable": "true"})
        (refused,) = admin.create_topics([born], request_timeout=HANGS_S).values()
        until("the creation to be refused", refused.done, 30)
        with pytest.raises(KafkaException, match="control plane does not answer"):
            refused.result()
