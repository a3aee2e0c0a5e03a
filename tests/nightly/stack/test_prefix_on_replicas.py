"""Who serves the prefix before ``tieringComplete`` and after: the leader, a replica that follows,
and a broker that is no replica; to consumers with a rack and without (decision 0025)."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.harness import Breakpoint, Case, counted, leader_of, migration_case
from tests.support.waiting import HANGS_S, stopped, until, until_still
from tideline.domain.migration import Phase
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import messages
from tideline.kafka.batches import iter_batches
from tideline.kafka.client import KafkaConnection
from tideline.stack import Stack
from tideline.stack.kafka_jars import tool_command

LEADER, FOLLOWER, STRANGER = 1, 2, 3
"""The topic's replicas are on the first two."""
HISTORY = 300
HANGS_MS = int(1000 * HANGS_S)
EARLIEST = -2
FETCH, LIST_OFFSETS = 12, 6


def rack(node: int) -> str:
    return f"rack-{node}"


async def _send(stack: Stack, node: int, message: Any) -> Any:
    host, _, port = stack.endpoints.gateways[node].rpartition(":")
    connection = await KafkaConnection.open(host, int(port), client_id="raw", timeout_ms=HANGS_MS)
    try:
        return await connection.send(message, timeout_ms=HANGS_MS)
    finally:
        connection.close()


def send(stack: Stack, node: int, message: Any) -> Any:
    """The answer of the gateway beside the broker ``node``."""
    return asyncio.run(_send(stack, node, message))


def fetch(
    *asked: tuple[str, int, int], rack_id: str = "", session: tuple[int, int] = (0, -1)
) -> Any:
    api = messages(ApiKey.FETCH, FETCH)
    rows: dict[str, list[Any]] = {}
    for topic, partition, offset in asked:
        row = api.request_part(
            "FetchPartition", partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        rows.setdefault(topic, []).append(row)
    return api.request(
        max_wait=timedelta(milliseconds=500),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=tuple(
            api.request_part("FetchTopic", topic=topic, partitions=tuple(some))
            for topic, some in rows.items()
        ),
        forgotten_topics_data=(),
        rack_id=rack_id,
    )


def prefix_of(case: Case, node: int, offset: int, rack_id: str = "") -> Any:
    """The structure of the case's partition in a fetch."""
    answer = send(case.stack, node, fetch((case.topic, 0, offset), rack_id=rack_id))
    (row,) = (row for topic in answer.responses for row in topic.partitions)
    return row


def served(case: Case, node: int, offset: int, rack_id: str = "") -> Any:
    """As :func:`prefix_of`, without an error: a gateway whose lease has lapsed for a moment refuses
    what is tracked."""

    def found() -> Any:
        row = prefix_of(case, node, offset, rack_id)
        assert row.error_code.name in {"none", "not_leader_or_follower"}
        return row if row.error_code.name == "none" else None

    return until(f"the gateway {node} to serve offset {offset}", found)


def earliest(case: Case, node: int) -> str:
    """The error of ListOffsets EARLIEST."""
    api = messages(ApiKey.LIST_OFFSETS, LIST_OFFSETS)
    row = api.request_part("ListOffsetsPartition", partition_index=0, timestamp=EARLIEST)
    topic = api.request_part("ListOffsetsTopic", name=case.topic, partitions=(row,))
    answer = send(case.stack, node, api.request(replica_id=-1, isolation_level=0, topics=(topic,)))
    (row,) = (row for topic in answer.topics for row in topic.partitions)
    return str(row.error_code.name)


def librdkafka(case: Case, **config: str) -> list[int]:
    """The offsets up to the end of the prefix, by a consumer of its own."""
    consumer = Consumer({"bootstrap.servers": case.bootstrap, "group.id": "none", **config})
    consumer.assign([TopicPartition(case.topic, 0, OFFSET_BEGINNING)])
    offsets: list[int] = []

    def enough() -> bool:
        for message in consumer.consume(HISTORY, 0.5):
            assert message.error() is None, message.error()
            offsets.append(message.offset() or 0)
        return len(offsets) >= HISTORY

    try:
        until(f"{HISTORY} records", enough)
    finally:
        consumer.close()
    return offsets[:HISTORY]


def java(case: Case, **config: str) -> list[int]:
    """The same, by the Java consumer, which has fetch sessions."""
    properties = [
        part for name, value in config.items() for part in ("--command-property", f"{name}={value}")
    ]
    ran = subprocess.run(
        tool_command(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", case.bootstrap, "--topic", case.topic),
            *("--partition", "0", "--offset", "earliest", "--max-messages", str(HISTORY)),
            *("--formatter-property", "print.offset=true"),
            *properties,
        ),
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )
    assert ran.returncode == 0, ran.stderr
    return [
        int(line.partition("\t")[0].removeprefix("Offset:"))
        for line in ran.stdout.splitlines()
        if line.startswith("Offset:")
    ]


def check(case: Case, *, ready: bool) -> None:
    """Everything that is asked for the prefix of a partition whose B0 is set."""
    led = served(case, LEADER, 0)
    followed = served(case, FOLLOWER, 0)
    assert bytes(led.records) == bytes(followed.records), "the same bytes, whoever serves them"
    assert next(iter_batches(led.records)).base_offset == 0
    stranger = prefix_of(case, STRANGER, 0)
    assert stranger.error_code.name == "not_leader_or_follower"
    assert not stranger.records
    # A consumer in the follower's rack is sent there by Kafka's leader, and served there.
    sent_on = served(case, LEADER, 0, rack(FOLLOWER))
    assert int(sent_on.preferred_read_replica) == FOLLOWER
    assert not sent_on.records
    stays = served(case, FOLLOWER, 0, rack(FOLLOWER))
    assert bytes(stays.records) == bytes(led.records)
    until("the leader to say where it begins", lambda: earliest(case, LEADER) == "none")
    code = "none" if ready else "not_leader_or_follower"
    until(f"the follower to say {code}", lambda: earliest(case, FOLLOWER) == code)
    # What lies from B0 on is anybody's.
    for node in (LEADER, FOLLOWER, STRANGER):
        served(case, node, HISTORY)
    everything = list(range(HISTORY))
    assert librdkafka(case) == everything
    assert librdkafka(case, **{"client.rack": rack(FOLLOWER)}) == everything
    assert librdkafka(case, **{"client.rack": rack(STRANGER)}) == everything
    assert java(case) == everything
    assert java(case, **{"client.rack": rack(FOLLOWER)}) == everything


def test_replicas_serve_the_prefix_before_readiness_and_after_and_nobody_else_does(
    stack: Stack,
) -> None:
    with migration_case(
        stack, name="who-serves", history=HISTORY, placed=(LEADER, FOLLOWER)
    ) as case:
        stop = Breakpoint(case.superuser_dsn, case.topic_id, Phase.READINESS)
        try:
            case.trigger()
            assert case.until_crossed() == [HISTORY]
            stop.wait_until_hit()
            assert leader_of(stack, case.topic, 0)[0] == LEADER
            check(case, ready=False)
            assert case.rows("tiering_complete") == [(False,)]
        finally:
            stop.release()
        case.until_ready()
        until("the gateways to know", lambda: earliest(case, FOLLOWER) == "none")
        assert case.rows("tiering_complete") == [(True,)]
        check(case, ready=True)


@contextmanager
def a_java_consumer(case: Case) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        tool_command(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", case.bootstrap, "--topic", case.topic, "--from-beginning"),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        stopped(process)


def test_the_java_consumer_of_a_hybrid_topic_keeps_its_fetch_sessions(stack: Stack) -> None:
    """And a raw client, incrementally, across B0: only what is new is asked and told."""
    partitions = 12
    with migration_case(stack, name="sessions", partitions=partitions, history=20) as case:
        case.trigger()
        boundaries = case.until_crossed()
        case.until_ready()
        cached = "inkless_gateway_fetch_session_partitions"
        before = until_still("sessions of others", lambda: counted(stack, cached), 1.0)
        with a_java_consumer(case) as consumer:
            assert consumer.stdout is not None
            for _ in range(20 * partitions):
                assert consumer.stdout.readline()
            until(
                "sessions of all its partitions",
                lambda: counted(stack, cached) >= before + partitions,
            )
            case.write(partitions * 5)
            for _ in range(partitions * 5):
                assert consumer.stdout.readline(), "a session hid a partition"
        leader, _ = leader_of(stack, case.topic, 0)
        first = send(stack, leader, fetch((case.topic, 0, 0), session=(0, 0)))
        session = first.session_id
        assert session > 0
        at_b0 = fetch((case.topic, 0, boundaries[0]), session=(session, 1))
        (row,) = (row for topic in send(stack, leader, at_b0).responses for row in topic.partitions)
        assert next(iter_batches(row.records)).base_offset == boundaries[0]
        end = int(row.high_watermark)
        send(stack, leader, fetch((case.topic, 0, end), session=(session, 2)))
        assert send(stack, leader, fetch(session=(session, 3))).responses == ()
        wrong = send(stack, leader, fetch(session=(session, 3)))
        assert wrong.error_code.name == "invalid_fetch_session_epoch"
        assert librdkafka_reads(case, partitions) == 20 * partitions + 5 * partitions


def librdkafka_reads(case: Case, partitions: int) -> int:
    """How many records a consumer without sessions finds."""
    consumer = Consumer({"bootstrap.servers": case.bootstrap, "group.id": "none"})
    consumer.assign([TopicPartition(case.topic, n, OFFSET_BEGINNING) for n in range(partitions)])
    wanted, found = 25 * partitions, 0

    def enough() -> bool:
        nonlocal found
        found += sum(message.error() is None for message in consumer.consume(wanted, 0.5))
        return found >= wanted

    try:
        until(f"{wanted} records", enough)
    finally:
        consumer.close()
    return found
