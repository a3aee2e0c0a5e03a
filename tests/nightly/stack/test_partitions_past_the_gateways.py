"""Somebody adds partitions at the brokers themselves, with Kafka's own tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.harness import command, migration_case
from tests.integration.test_gateway_admin import admin, born, broker_admin, name, send
from tests.support.waiting import HANGS_S, ran, until
from tideline import control_plane
from tideline.control_plane.model import WatchFinding
from tideline.settings import WorkerSettings
from tideline.stack import Stack
from tideline.stack.kafka_jars import tool_command

__all__ = ["admin", "born", "name"]


def alter_partitions(stack: Stack, topic: str, total: int) -> None:
    """``kafka-topics.sh --alter --partitions`` at a broker's own listener."""
    where = ("--bootstrap-server", stack.endpoints.kafka_bootstrap)
    what = ("--alter", "--topic", topic, "--partitions", str(total))
    ran(tool_command("org.apache.kafka.tools.TopicCommand", *where, *what), text=True)


def boundaries(stack: Stack, topic: str) -> list[int]:
    """B0 by partition, of those that Postgres knows."""
    with psycopg.connect(stack.endpoints.postgres_dsn("postgres")) as connection:
        rows = connection.execute(
            "SELECT diskless_log_start_offset FROM tideline.logs WHERE topic_name = %s"
            " AND deleted_at IS NULL ORDER BY partition",
            [topic],
        ).fetchall()
    return [int(row[0]) for row in rows]


def open_findings(stack: Stack, topic: str) -> list[WatchFinding]:
    async def ask() -> list[WatchFinding]:
        settings = WorkerSettings.of(stack.environment("worker"))
        async with control_plane.connect(settings, application_name="test") as plane:
            return await plane.findings(topic)

    return [f for f in asyncio.run(ask()) if f.ended_at is None]


def read(bootstrap: str, topic: str, partition: int, records: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"read-{topic}"})
    found: list[bytes | None] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])

        def enough() -> bool:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                found.append(message.value())
            return len(found) >= records

        until(f"{records} records of {topic}-{partition}", enough)
    finally:
        consumer.close()
    return found


def is_taken(stack: Stack, topic: str, partition: int, value: bytes) -> bool:
    """Whether brokers took a record: the one that is asked learns of a new partition a moment
    later, and a client then says of itself that there is none."""
    try:
        send(stack, topic, value, stack.endpoints.kafka_bootstrap, partition)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
            raise
        return False
    return True


def with_records(stack: Stack, topic: str, known: Callable[[], int]) -> int:
    """Add a partition at a broker and append to it there before the worker's watch, which looks
    each 20 s, has taken it in; its number."""
    others = broker_admin(stack)
    for _ in range(3):
        new = len(others.list_topics(topic, timeout=HANGS_S).topics[topic].partitions)
        (grown,) = others.create_partitions([NewPartitions(topic, new + 1)]).values()
        grown.result(HANGS_S)
        until("every broker to know the partition", partial(is_taken, stack, topic, new, b"a"))
        for value in (b"b", b"c"):
            send(stack, topic, value, stack.endpoints.kafka_bootstrap, new)
        if known() == new:
            return new
    raise AssertionError("the watch was there first, three times")


def test_an_empty_partition_that_a_tool_added_at_a_broker_is_taken_in_and_written(
    stack: Stack, admin: AdminClient, born: str
) -> None:
    alter_partitions(stack, born, 3)
    until("the watch to take it in", lambda: boundaries(stack, born) == [0, 0, 0], 90)

    def writes() -> bool:
        send(stack, born, b"x" * 500, partition=2)
        return True

    until("a producer to be answered", writes)
    assert read(stack.endpoints.gateway_bootstrap, born, 2, 1) == [b"x" * 500]
    assert open_findings(stack, born) == []
    (grown,) = admin.create_partitions([NewPartitions(born, 4)]).values()
    grown.result(HANGS_S)
    until("the next one to follow", lambda: boundaries(stack, born) == [0, 0, 0, 0])


def test_one_with_records_is_told_and_no_growth_hides_them(
    stack: Stack, admin: AdminClient, born: str
) -> None:
    new = with_records(stack, born, lambda: len(boundaries(stack, born)))
    until("the watch to tell", lambda: [f.subject for f in open_findings(stack, born)], 90)
    (finding,) = open_findings(stack, born)
    assert (finding.kind.value, finding.subject) == ("grown", str(new))
    assert finding.detail["offsets"] == 3
    (grown,) = admin.create_partitions([NewPartitions(born, new + 2)]).values()
    with pytest.raises(KafkaException, match=f"partition {new} .log ends by replica: .*: 3"):
        grown.result(HANGS_S)
    assert len(boundaries(stack, born)) == new
    assert read(stack.endpoints.kafka_bootstrap, born, new, 3) == [b"a", b"b", b"c"]


def test_a_migration_that_is_started_again_takes_its_records_across(stack: Stack) -> None:
    with migration_case(stack, name="grown", history=50) as case:
        command(stack, "migrate", case.topic, "--wait", wait=True)
        new = with_records(stack, case.topic, lambda: len(case.boundaries()))
        until("the watch to tell", lambda: open_findings(stack, case.topic), 90)
        before = case.boundaries()
        command(stack, "migrate", case.topic, "--wait", wait=True)
        assert case.boundaries() == [*before, 3]
        assert read(case.bootstrap, case.topic, new, 3) == [b"a", b"b", b"c"]
        send(stack, case.topic, b"d" * 500, partition=new)
        assert read(case.bootstrap, case.topic, new, 4) == [b"a", b"b", b"c", b"d" * 500]
        until("the watch to be content", lambda: not open_findings(stack, case.topic), 90)
