"""Gateways and brokers that die from B0 on: another gateway is named, and clients go on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness import (
    create_topics,
    delete_topics,
    gateways,
    killed,
    leader_of,
    migration_case,
    start_gateway,
)
from tests.support.waiting import HANGS_S, flushed, lasts, until
from tideline.stack import Stack
from tideline.stack.kafka_jars import tool_command

LOOK_S = 20.0
"""A client may have been led to whom it does not reach: the next one is led to another."""
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


def admin(stack: Stack) -> AdminClient:
    return AdminClient({"bootstrap.servers": stack.endpoints.gateway_bootstrap})


@contextmanager
def diskless_topic(stack: Stack, name: str, replicas: int) -> Iterator[str]:
    """A topic born diskless with one partition."""
    made = NewTopic(name, 1, replicas, config={"diskless.enable": "true"})
    client = admin(stack)
    create_topics(client, made)
    yield name
    delete_topics(client, name)


def named_leader(stack: Stack, topic: str) -> int:
    """Whom clients are told to ask for partition 0; -1: nobody."""
    try:
        found = admin(stack).list_topics(topic, timeout=LOOK_S).topics[topic]
    except KafkaException:
        return -1
    return int(found.partitions[0].leader) if 0 in found.partitions else -1


def produced(stack: Stack, topic: str, values: list[bytes]) -> list[int]:
    """The offsets at which partition 0 has acknowledged these."""
    offsets: list[int] = []
    failures: list[object] = []

    def told(error: object, message: Message) -> None:
        if error is None:
            offsets.append(message.offset() or 0)
        else:
            failures.append(error)

    producer = Producer(
        {"bootstrap.servers": stack.endpoints.gateway_bootstrap, "enable.idempotence": True}
    )
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=told)
    flushed(producer)
    assert failures == []
    return offsets


def consumed(stack: Stack, topic: str, enough: Callable[[list[bytes]], bool]) -> list[bytes]:
    """Values of partition 0 from its beginning on, without a group: its coordinator may be away."""
    consumer = Consumer(
        {
            "bootstrap.servers": stack.endpoints.gateway_bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([Position(topic, 0, OFFSET_BEGINNING)])
    found: list[bytes] = []

    def all_read() -> bool:
        for message in consumer.consume(500, 0.2):
            if message.error() is None:
                found.append(message.value() or b"")
            else:
                assert message.error().retriable() or not message.error().fatal()
        return enough(found)

    try:
        until(f"enough records of {topic}", all_read)
    finally:
        consumer.close()
    return found


def java(stack: Stack, tool: str, topic: str, *arguments: str, lines: list[bytes]) -> list[bytes]:
    """What one of Kafka's own console clients prints."""
    run = subprocess.run(
        tool_command(
            tool,
            *("--bootstrap-server", stack.endpoints.gateway_bootstrap),
            *("--topic", topic),
            *arguments,
        ),
        input=b"".join(line + b"\n" for line in lines),
        capture_output=True,
        timeout=HANGS_S,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def numbered(first: int, count: int) -> list[bytes]:
    return [b"value-%d" % n for n in range(first, first + count)]


def test_a_gateway_that_dies_takes_no_diskless_partition_away(stack: Stack) -> None:
    with diskless_topic(stack, "leader-gateway-dies", 3) as topic:
        leader, epoch = leader_of(stack, topic, 0)
        until("Kafka's leader to be named", lambda: named_leader(stack, topic) == leader)
        assert produced(stack, topic, numbered(0, 20)) == list(range(20))
        stack.kill(f"gateway-{leader}", restart=False)
        try:
            until("another leader", lambda: named_leader(stack, topic) not in (leader, -1))
            assert produced(stack, topic, numbered(20, 20)) == list(range(20, 40))
            assert consumed(stack, topic, lambda found: len(found) >= 40) == numbered(0, 40)
            # By default it gives a record up after four tries of 1.5 s, and says nothing of it.
            patient = ("--request-timeout-ms", "60000")
            java(stack, PRODUCER, topic, *patient, lines=numbered(40, 10))
            options = ("--partition", "0", "--offset", "earliest", "--max-messages", "50")
            assert java(stack, CONSUMER, topic, *options, lines=[]) == numbered(0, 50)
            assert leader_of(stack, topic, 0) == (leader, epoch), "Kafka has elected nobody"
        finally:
            start_gateway(stack, leader)
        until("Kafka's leader to be named again", lambda: named_leader(stack, topic) == leader)
        assert produced(stack, topic, numbered(50, 5)) == list(range(50, 55))


def test_a_diskless_partition_outlives_its_only_replica(stack: Stack) -> None:
    with diskless_topic(stack, "only-replica-dies", 1) as topic:
        leader, _ = leader_of(stack, topic, 0)
        assert produced(stack, topic, numbered(0, 20)) == list(range(20))
        with killed(stack, f"kafka-{leader}"):
            until("another leader", lambda: named_leader(stack, topic) not in (leader, -1))
            assert produced(stack, topic, numbered(20, 20)) == list(range(20, 40))
            assert consumed(stack, topic, lambda found: len(found) >= 40) == numbered(0, 40)


def read_from(stack: Stack, topic: str, offset: int) -> Consumer:
    consumer = Consumer(
        {"bootstrap.servers": stack.endpoints.gateway_bootstrap, "group.id": f"from-{offset}"}
    )
    consumer.assign([Position(topic, 0, offset)])
    return consumer


def test_of_a_hybrid_partition_without_a_live_replica_the_prefix_waits_and_the_suffix_goes_on(
    stack: Stack,
) -> None:
    """Gateways whose broker is no replica serve from B0 on, and nothing below."""
    with migration_case(stack, name="only-hybrid-replica-dies", placed=(2,)) as case:
        case.produce()
        case.trigger()
        case.until_ready()
        boundary = case.boundaries()[0]
        case.consume()
        with killed(stack, "kafka-2"):
            until("another leader", lambda: named_leader(stack, case.topic) in (1, 3))
            case.until_acknowledged(20)
            below = read_from(stack, case.topic, boundary - 1)
            above = read_from(stack, case.topic, boundary)
            found: list[int | None] = []
            until(
                "the suffix",
                lambda: (
                    found.extend(m.offset() for m in above.consume(100, 0.5) if m.error() is None)
                    or found
                ),
            )
            assert found[0] == boundary
            lasts(
                "nothing of the prefix is read",
                lambda: [m for m in below.consume(100, 0.5) if m.error() is None] == [],
                2.0,
            )
            above.close()
        until("the prefix", lambda: [m.offset() for m in below.consume(1, 0.5)] == [boundary - 1])
        below.close()
        case.until_acknowledged(20)
        case.settle()


def test_a_gateway_that_dies_takes_no_hybrid_partition_away(stack: Stack) -> None:
    """The prefix is read from a replica that follows, and what followers refuse from the leader,
    whose broker lives."""
    with migration_case(stack, name="hybrid-gateway-dies") as case:
        case.produce()
        case.until_acknowledged(20)
        case.trigger()
        case.until_ready()
        case.until_acknowledged(20)
        boundary = case.boundaries()[0]
        leader, epoch = leader_of(stack, case.topic, 0)
        stack.kill(f"gateway-{leader}", restart=False)
        try:
            until("another leader", lambda: named_leader(stack, case.topic) not in (leader, -1))
            case.until_acknowledged(20)
            found = consumed(stack, case.topic, lambda some: len(some) > boundary + 20)
            assert len(found) == len(set(found))
            assert leader_of(stack, case.topic, 0) == (leader, epoch), "Kafka has elected nobody"
        finally:
            start_gateway(stack, leader)
        until("the gateway to be back", lambda: gateways(case)[leader].status == "active")
        case.consume()
        case.until_acknowledged(20)
        case.settle()
