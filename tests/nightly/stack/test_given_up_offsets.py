"""Stock clients on a log in which offsets were given up: they pass over the empty batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import uuid4

import aiokafka
import psycopg
import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.harness import CONSOLE_MS, LASTING_SESSION, again, create_topics, delete_topics, id_of
from tests.support.waiting import HANGS_S, WITHIN_S, bounded, flushed, ran, until
from tests.tiering_now import tier
from tideline.domain.ids import TopicIdPartition
from tideline.domain.wal_filling import Filled, FillingObject
from tideline.domain.wal_footer import encode
from tideline.kafka.batches import empty_batch
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import JobsSettings
from tideline.stack import Stack
from tideline.stack.credentials import SUPERUSER
from tideline.stack.kafka_jars import tool_command

Seen = tuple[int, int, bytes]
"""offset, timestamp, value"""
PER_PART = 40
LOST = 25
"""Offsets of a hole in the middle; the one at the end has more than a fetch may skip unnoticed."""
AT_END = 1_000_000


@dataclass
class Log:
    """A topic born diskless of one partition."""

    stack: Stack
    name: str
    admin: AdminClient
    log: TopicIdPartition
    records: list[Seen] = field(default_factory=list)
    given_up: list[tuple[int, int]] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        return self.stack.endpoints.gateway_bootstrap

    @property
    def end(self) -> int:
        return self.listed(OffsetSpec.latest())

    def listed(self, spec: OffsetSpec) -> int:
        at = TopicPartition(self.name, 0)
        listed = again(
            f"the {spec} of {self.name}",
            lambda: self.admin.list_offsets({at: spec})[at].result(HANGS_S),
        )
        return int(listed.offset)

    def produce(self, timestamp: int) -> None:
        """In small batches, by an idempotent producer."""
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 0}
        )
        failures: list[object] = []

        def settled(error: object, message: object) -> None:
            if error is not None:
                failures.append(error)
            else:
                self.records.append(
                    (message.offset(), message.timestamp()[1], message.value())  # type: ignore[attr-defined]
                )

        for n in range(PER_PART):
            producer.produce(
                self.name, b"%d-%d" % (timestamp, n), partition=0, timestamp=timestamp + n,
                on_delivery=settled,
            )  # fmt: skip
            if n % 7 == 0:
                flushed(producer, 30)
        flushed(producer, 60)
        assert failures == []

    def lose(self, offsets: int) -> tuple[int, int]:
        """Offsets at the end that were given to somebody, and are nowhere: a hole."""
        with psycopg.connect(self.stack.endpoints.postgres_dsn(SUPERUSER)) as connection:
            row = connection.execute(
                "UPDATE tideline.logs SET high_watermark = high_watermark + %s "
                "WHERE topic_id = %s AND partition = 0 RETURNING high_watermark",
                [offsets, self.log.topic_id],
            ).fetchone()
        assert row is not None
        return int(row[0]) - offsets, int(row[0]) - 1

    def give_up(self, *holes: tuple[int, int]) -> None:
        """Write what a rebuild writes; it would have to stop every gateway of this stack."""
        made = FillingObject(
            self.log, uuid4(), int(time.time() * 1000),
            tuple(Filled(base, last - base + 1, 1_000) for base, last in holes), (),
        )  # fmt: skip
        settings = JobsSettings.of(self.stack.environment("jobs"))
        key = made.key(settings.diskless_prefix)
        body = b"".join(empty_batch(filled.offsets) for filled in made.filled)
        body += encode(made.footer(key))
        ObjectStoreClient(settings).put(settings.s3_bucket, key, body)
        with psycopg.connect(self.stack.endpoints.postgres_dsn(SUPERUSER)) as connection:
            connection.execute(
                "INSERT INTO tideline.wal_files (object_key, gateway_id, incarnation, status, "
                "committed_at, size, outcome_errors, outcome_base_offsets, outcome_append_times, "
                "outcome_log_starts, outcome_high_watermarks) VALUES (%s, -1, %s, 'committed', "
                "now(), %s, '{}', '{}', '{}', '{}', '{}')",
                [key, made.incarnation, len(body)],
            )
            for row in made.rows(key):
                connection.execute(
                    "INSERT INTO tideline.batches (log_id, last_offset, base_offset, file_id, "
                    "byte_offset, byte_size, log_append_time, append_time, max_timestamp, "
                    "running_max_timestamp) SELECT log_id, %s, %s, file_id, %s, %s, false, %s, %s, "
                    "coalesce((SELECT max(b.max_timestamp) FROM tideline.batches AS b "
                    "WHERE b.log_id = l.log_id AND b.last_offset < %s), -1) "
                    "FROM tideline.logs AS l, tideline.wal_files "
                    "WHERE topic_id = %s AND partition = 0 AND object_key = %s",
                    [row.last_offset, row.base_offset, row.footer.byte_offset,
                     row.footer.byte_size, row.append_time, row.max_timestamp, row.base_offset,
                     self.log.topic_id, key],
                )  # fmt: skip
        self.given_up += holes


def now() -> int:
    return int(time.time() * 1000)


@pytest.fixture(scope="module")
def log(stack: Stack) -> Iterator[Log]:
    """Records, a hole, records, a hole at the end; the holes are given up."""
    admin = AdminClient({"bootstrap.servers": stack.endpoints.gateway_bootstrap})
    name = f"given-up-{time.monotonic_ns() % 1_000_000}"
    configs = {"diskless.enable": "true", "index.interval.bytes": "500"}
    create_topics(admin, NewTopic(name, 1, 1, config=configs))
    made = Log(stack, name, admin, TopicIdPartition(id_of(admin, name), 0))
    try:
        start = now() - 100_000
        made.produce(start)
        hole = made.lose(LOST)
        made.produce(start + 50_000)
        assert read(made, 0, PER_PART, more_s=3.0) == made.records[:PER_PART], "nobody gets past it"
        made.give_up(hole, made.lose(AT_END))
        yield made
    finally:
        delete_topics(admin, name)


def read(log: Log, start: int, count: int, more_s: float = 0.0, **configs: object) -> list[Seen]:
    """``count`` records from ``start`` on, and what comes in ``more_s`` behind them, as librdkafka
    gets them."""
    consumer = Consumer(
        {"bootstrap.servers": log.bootstrap, "group.id": str(uuid4()),
         "auto.offset.reset": "error", "isolation.level": "read_committed", **configs}
    )  # fmt: skip
    consumer.assign([TopicPartition(log.name, 0, start)])
    seen: list[Seen] = []

    def take(timeout_s: float) -> None:
        for message in consumer.consume(500, timeout_s):
            assert message.error() is None, message.error()
            seen.append((message.offset(), message.timestamp()[1], message.value()))  # type: ignore[arg-type]

    def enough() -> bool:
        take(0.2)
        return len(seen) >= count

    try:
        until(f"{count} records from {start} on", enough)
        if more_s:
            take(more_s)
    finally:
        consumer.close()
    return seen


def java(log: Log, *arguments: str) -> list[Seen]:
    """What Kafka's console consumer prints."""
    done = ran(
        tool_command(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            "--bootstrap-server", log.bootstrap, "--topic", log.name,
            "--max-messages", str(len(log.records)), "--timeout-ms", CONSOLE_MS,
            "--formatter-property", "print.offset=true",
            "--formatter-property", "print.timestamp=true", *arguments,
        )
    )  # fmt: skip
    found = []
    for line in done.stdout.splitlines():
        timestamp, offset, value = line.split(b"\t")
        found.append((int(offset.split(b":")[1]), int(timestamp.split(b":")[1]), value))
    assert found, done.stderr[-500:]
    return found


async def aiokafka_reads(log: Log) -> list[Seen]:
    consumer = AIOKafkaConsumer(bootstrap_servers=log.bootstrap, auto_offset_reset="earliest")
    at = aiokafka.TopicPartition(log.name, 0)
    await consumer.start()
    try:
        consumer.assign([at])
        seen: list[Seen] = []
        async with bounded("aiokafka to read everything", WITHIN_S):
            while len(seen) < len(log.records):
                for message in (await consumer.getmany(timeout_ms=200)).get(at, ()):
                    seen.append((message.offset, message.timestamp, message.value))
        return seen
    finally:
        await consumer.stop()


async def every_client_reads_everything(log: Log) -> None:
    assert log.records[-1][0] > log.given_up[-1][1], "records lie behind every range"
    assert await asyncio.to_thread(read, log, 0, len(log.records)) == log.records
    assert await aiokafka_reads(log) == log.records
    assert await asyncio.to_thread(java, log, "--from-beginning") == log.records


def every_offset_of_a_range_leads_to_the_record_behind_it(log: Log) -> None:
    for base, last in log.given_up:
        behind = next(one for one in log.records if one[0] > last)
        for offset in (base, (base + last) // 2, last):
            assert read(log, offset, 1, **{"fetch.message.max.bytes": 500})[0] == behind


def no_search_by_time_ends_in_a_range(log: Log) -> None:
    consumer = Consumer({"bootstrap.servers": log.bootstrap, "group.id": str(uuid4())})
    times = [log.records[0][1] - 1, *(one[1] + 1 for one in log.records)]
    found = consumer.offsets_for_times([TopicPartition(log.name, 0, t) for t in times[:1]], HANGS_S)
    assert found[0].offset == log.records[0][0]
    for time_ms in times[PER_PART - 2 : PER_PART + 3]:
        (answer,) = consumer.offsets_for_times([TopicPartition(log.name, 0, time_ms)], HANGS_S)
        assert answer.error is None
        wanted = next((offset for offset, at, _ in log.records if at >= time_ms), -1)
        assert answer.offset == wanted
    consumer.close()
    assert log.listed(OffsetSpec.max_timestamp()) == max(log.records, key=lambda r: r[1])[0]
    assert log.listed(OffsetSpec.earliest()) == 0


async def test_clients_pass_over_empty_batches_in_wal_objects(log: Log) -> None:
    """A group that waits at the end of the log gets on, too, when records come behind it."""
    group = Consumer(
        {"bootstrap.servers": log.bootstrap, "group.id": f"group-of-{log.name}",
         "auto.offset.reset": "earliest", **LASTING_SESSION}
    )  # fmt: skip
    group.subscribe([log.name])
    seen: list[int] = []

    def all_read() -> bool:
        for message in group.consume(500, 0.5):
            assert message.error() is None, message.error()
            seen.append(int(message.offset() or 0))
        return len(seen) == len(log.records)

    try:
        await asyncio.to_thread(until, "the group to read what is there", all_read)
        assert log.end == log.given_up[-1][1] + 1
        await asyncio.to_thread(log.produce, now())
        await asyncio.to_thread(until, "the group to get past the end", all_read)
        group.commit(asynchronous=False)
    finally:
        group.close()
    assert seen == [offset for offset, _, _ in log.records]
    await every_client_reads_everything(log)
    every_offset_of_a_range_leads_to_the_record_behind_it(log)
    no_search_by_time_ends_in_a_range(log)


async def test_clients_pass_over_empty_batches_in_merged_segments(log: Log) -> None:
    """Those of before are merged, records and ranges; a further range stays in its WAL object."""
    if log.end == log.given_up[-1][1] + 1:
        log.produce(now())
    assert await asyncio.to_thread(tier, log.stack, log.name, 3_000) >= 2
    log.give_up(log.lose(LOST))
    log.produce(now())
    await every_client_reads_everything(log)
    every_offset_of_a_range_leads_to_the_record_behind_it(log)
    no_search_by_time_ends_in_a_range(log)


def test_records_are_deleted_into_the_middle_of_a_range(log: Log) -> None:
    for base, last in log.given_up:
        middle = (base + last) // 2
        at = TopicPartition(log.name, 0, middle)
        assert log.admin.delete_records([at])[at].result(HANGS_S).low_watermark == middle
        assert log.listed(OffsetSpec.earliest()) == middle
        left = [one for one in log.records if one[0] > middle]
        assert read(log, middle, len(left)) == left
