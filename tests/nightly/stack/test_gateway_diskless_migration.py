"""A gateway through the states of a migration; the test does the worker's part in Postgres.

The whole workflow has tests of its own; here every state is held as long as the test wants.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import (
    Consumer,
    Message,
    Producer,
    TopicPartition,
)
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition

from tests.harness import delete_topics, until_in_snapshot
from tests.integration.migration_by_hand import Migration, passed
from tests.support.waiting import (
    WITHIN_S,
    eventually,
    flushed,
    joined,
    until,
    until_still,
)
from tideline.control_plane import ControlPlane
from tideline.stack import Stack

VOID_MS = 30_000
"""Of one that nobody ends: gateways that share a core have acknowledged it by then."""


class Traffic:
    """An idempotent producer that writes a counter to each partition, and a group's consumer."""

    def __init__(self, migration: Migration) -> None:
        self.migration = migration
        self.acknowledged: dict[int, list[tuple[int, int]]] = {}
        self.consumed: dict[int, list[tuple[int, int]]] = {}
        self.failures: list[object] = []
        self.sent = 0
        self._stop_writing, self._stop_reading = threading.Event(), threading.Event()
        self._writer = threading.Thread(target=self._write)
        self._reader = threading.Thread(target=self._read)

    def _settled(self, number: int) -> Callable[[object, Message], None]:
        def told(error: object, message: Message) -> None:
            if error is not None:
                self.failures.append(error)
                return
            rows = self.acknowledged.setdefault(message.partition(), [])
            rows.append((message.offset(), number))

        return told

    def _write(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.migration.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
            }
        )
        while not self._stop_writing.is_set():
            producer.produce(
                self.migration.name,
                str(self.sent).encode(),
                partition=self.sent % self.migration.partitions,
                on_delivery=self._settled(self.sent),
            )
            producer.poll(0)
            self.sent += 1
            self._stop_writing.wait(0.002)  # the rate of the load
        flushed(producer, 60)

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.migration.bootstrap,
                "group.id": f"group-{self.migration.name}",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        consumer.subscribe([self.migration.name])
        while not self._stop_reading.is_set():
            for message in consumer.consume(500, 0.1):
                if message.error() is not None:
                    self.failures.append(message.error())
                    continue
                rows = self.consumed.setdefault(message.partition(), [])
                rows.append((message.offset(), int(message.value() or b"-1")))
        consumer.close()

    @property
    def total(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def until_acknowledged(self, more: int, timeout_s: float = 30.0) -> None:
        """So many further acknowledgements have come."""
        wanted = self.total + more
        until(f"{more} acknowledgements", lambda: self.total >= wanted, timeout_s)

    def finish(self) -> None:
        """Stop writing, read everything, and compare."""
        self._stop_writing.set()
        joined(self._writer, 70)
        until(
            "all that was acknowledged to be consumed",
            lambda: self.failures or sum(map(len, self.consumed.values())) >= self.total,
            40,
        )
        self._stop_reading.set()
        joined(self._reader, 20)
        assert self.failures == []
        assert self.total == self.sent
        for partition, rows in self.acknowledged.items():
            assert sorted(rows) == self.consumed[partition], "consumed is what was acknowledged"
            numbers = [number for _, number in self.consumed[partition]]
            assert numbers == sorted(set(numbers)), "in order, and none twice"

    @contextmanager
    def running(self) -> Iterator[Traffic]:
        self._writer.start()
        self._reader.start()
        try:
            yield self
        finally:
            self._stop_writing.set()
            self._stop_reading.set()
            for thread in (self._writer, self._reader):
                joined(thread, 70)


@pytest.fixture
def migration(stack: Stack) -> Iterator[Migration]:
    made = Migration(stack, 3)
    yield made
    delete_topics(made.admin, made.name)


def test_a_busy_topic_crosses_its_boundaries_and_no_client_notices(migration: Migration) -> None:
    with Traffic(migration).running() as traffic:
        traffic.until_acknowledged(300)
        migration.track()
        traffic.until_acknowledged(100)
        for partition in range(migration.partitions):
            boundary = migration.cross(migration.close(partition), partition)
            assert boundary > 0
            traffic.until_acknowledged(100)
        traffic.until_acknowledged(300)
        traffic.finish()


def test_a_quiesce_that_nobody_ends_is_void_at_its_deadline(migration: Migration) -> None:
    """Schedule 13: the worker died; producers go on in Kafka, and a later attempt succeeds."""
    with Traffic(migration).running() as traffic:
        traffic.until_acknowledged(50)
        migration.track()
        migration.close_all(VOID_MS)
        until_still("acknowledgements", lambda: traffic.total, 0.5)
        traffic.until_acknowledged(200, VOID_MS / 1000 + 30)
        migration.cross(migration.close(0), 0)
        traffic.until_acknowledged(200)
        traffic.finish()


def test_an_abort_lets_the_parked_produces_go_on_in_kafka(migration: Migration) -> None:
    with Traffic(migration).running() as traffic:
        traffic.until_acknowledged(50)
        migration.track()
        migration.close(0)

        async def abort(plane: ControlPlane) -> None:
            await plane.abort_migration(migration.topic_id)
            await plane.stop_tracking(migration.name)

        migration.do(abort)
        traffic.until_acknowledged(300)
        traffic.finish()


def test_a_gateway_that_sleeps_through_the_crossing_acknowledges_nothing_false(
    migration: Migration,
) -> None:
    """Schedules 1, 2 and 15: SIGSTOP before the quiesce, fenced, SIGCONT after B0."""
    stack, sleeper = migration.stack, migration.leader(0)
    with Traffic(migration).running() as traffic:
        traffic.until_acknowledged(100)
        migration.track()
        traffic.until_acknowledged(50)
        stack.suspend(f"gateway-{sleeper}")
        try:
            generation = migration.close(0, wait=False)

            async def fence(plane: ControlPlane) -> None:
                async def lapsed() -> bool:
                    """Refused when a renewal that was on its way has come meanwhile."""
                    gateways = await plane.list_gateways()
                    (gateway,) = [g for g in gateways if g.gateway_id == sleeper]
                    await asyncio.sleep(gateway.lease_ms / 1000 * 1.2)
                    return await plane.fence_gateway(
                        sleeper, gateway.incarnation, gateway.renewals, "its lease lapsed"
                    )

                await eventually("its lease to lapse", lapsed, WITHIN_S)
                await passed(lambda: plane.quiesce_barrier(migration.log(0), generation))

            migration.do(fence)
            boundary = migration.cross(generation, 0)
        finally:
            stack.resume(f"gateway-{sleeper}")
        assert boundary > 0
        traffic.until_acknowledged(300, timeout_s=60)
        traffic.finish()


def test_both_regions_are_one_log_to_every_question(migration: Migration) -> None:
    """Begin, end, times and deletions across B0; a reader from the beginning gets everything."""
    producer = Producer({"bootstrap.servers": migration.bootstrap})
    start = int(time.time() * 1000) - 60_000

    def write(numbers: range) -> None:
        for n in numbers:
            producer.produce(migration.name, f"{n}", partition=0, timestamp=start + n * 10)
        flushed(producer, 30)

    write(range(100))
    migration.track()
    assert migration.cross(migration.close(0), 0) == 100
    write(range(100, 200))
    at = PythonTopicPartition(migration.name, 0)
    consumer = KafkaConsumer(
        bootstrap_servers=migration.bootstrap, auto_offset_reset="none", consumer_timeout_ms=60_000
    )
    consumer.assign([at])
    assert consumer.beginning_offsets([at]) == {at: 0}
    assert consumer.end_offsets([at]) == {at: 200}
    for wanted in (42, 99, 100, 157):
        found = consumer.offsets_for_times({at: start + wanted * 10})[at]
        assert (found.offset, found.timestamp) == (wanted, start + wanted * 10)
    consumer.seek(at, 0)
    values = []
    for message in consumer:
        assert message.offset == len(values)
        values.append(int(message.value))
        if len(values) == 200:
            break
    assert values == list(range(200))
    for before in (30, 150):
        assert migration.delete_records(before) == before
        assert consumer.beginning_offsets([at]) == {at: before}
    consumer.close()


def test_a_restart_without_postgres_serves_the_prefix_and_no_more(migration: Migration) -> None:
    """Schedule 18."""
    stack, leader = migration.stack, migration.leader(0)
    gateway = f"gateway-{leader}"
    producer = Producer({"bootstrap.servers": migration.bootstrap})
    for n in range(50):
        producer.produce(migration.name, f"{n}", partition=0)
    flushed(producer, 30)
    migration.track()
    assert migration.cross(migration.close(0), 0) == 50
    producer.produce(migration.name, b"in the suffix", partition=0)
    flushed(producer, 30)
    until_in_snapshot(stack, leader, migration.name, lambda row: row.boundary == 50)
    stack.stop("postgres")
    try:
        stack.stop(gateway)
        stack.start(gateway, within_s=60)
        consumer = Consumer({"bootstrap.servers": migration.bootstrap, "group.id": "prefix"})
        consumer.assign([TopicPartition(migration.name, 0, 0)])
        values = read(consumer, 50, 20)
        consumer.close()
        assert values == [str(n).encode() for n in range(50)]
        errors: list[object] = []
        hasty = Producer({"bootstrap.servers": migration.bootstrap, "message.timeout.ms": 4_000})
        hasty.produce(
            migration.name, b"not now", partition=0, on_delivery=lambda e, _: errors.append(e)
        )
        flushed(hasty, 60)
        assert errors[0] is not None, "nothing of a diskless partition goes to Kafka"
    finally:
        stack.start("postgres")
        stack.wait_ready(gateway)
    found = Consumer({"bootstrap.servers": migration.bootstrap, "group.id": "suffix"})
    found.assign([TopicPartition(migration.name, 0, 50)])
    assert read(found, 1, 30)[0] == b"in the suffix"
    found.close()


def read(consumer: Consumer, count: int, seconds: float) -> list[bytes | None]:
    """Values of ``count`` records or more."""
    values: list[bytes | None] = []

    def enough() -> bool:
        values.extend(m.value() for m in consumer.consume(50, 0.5) if m.error() is None)
        return len(values) >= count

    until(f"{count} records", enough, seconds)
    return values
