"""A topic born diskless, what was acknowledged on it, and where it lives now."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from spark.common.entry import Job
from tests.harness import create_topics, delete_topics, id_of
from tests.support.waiting import flushed, joined, until
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.tiering_model import MergedSegmentRow
from tideline.domain.ids import topic_id_to_base64
from tideline.settings import JobsSettings
from tideline.stack import Stack

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 2
_numbers = count(1)
Record = tuple[bytes | None, bytes | None, int]
"""key, value, timestamp"""


@dataclass
class Topic:
    """A topic born diskless and all that was acknowledged on it."""

    stack: Stack
    name: str
    id_base64: str
    records: dict[int, dict[int, Record]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def bootstrap(self) -> str:
        return self.stack.endpoints.gateway_bootstrap

    def produce(self, records: int = 60) -> None:
        """By one idempotent producer per codec, side by side, in batches of many sizes."""
        failures: list[object] = []

        def settled(error: object, message: Message) -> None:
            if error is not None:
                failures.append(error)
                return
            record = (message.key(), message.value(), message.timestamp()[1])
            self.records[message.partition()][message.offset()] = record  # type: ignore[index]

        producers = [
            Producer({"bootstrap.servers": self.bootstrap, "compression.type": codec,
                      "enable.idempotence": True, "linger.ms": 3})
            for codec in CODECS
        ]  # fmt: skip
        for n in range(records):
            for at, producer in enumerate(producers):
                producer.produce(
                    self.name, value=b"%d-%d " % (n, at) * (1 + 7 * n % 90), key=b"%d" % n,
                    partition=n % PARTITIONS, on_delivery=settled,
                )  # fmt: skip
                if n % (5 + at) == 0:
                    flushed(producer, 30)
        for producer in producers:
            flushed(producer, 60)
        assert not failures, failures[:3]

    def read(self, wanted: dict[int, dict[int, Record]] | None = None) -> dict[int, Any]:
        """Every record from the first offset on, to the end of ``wanted`` (default: of all that
        was acknowledged)."""
        known = wanted or self.records
        ends = {p: max(found) for p, found in known.items() if found}
        seen: dict[int, dict[int, Record]] = defaultdict(dict)
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "reader",
             "auto.offset.reset": "error"}
        )  # fmt: skip
        consumer.assign([TopicPartition(self.name, p, OFFSET_BEGINNING) for p in ends])

        def all_read() -> bool:
            for m in consumer.consume(500, 0.5):
                assert m.error() is None, m.error()
                partition, offset = m.partition(), m.offset()
                assert partition is not None
                assert offset is not None
                first = min(known[partition])
                expected = max(seen[partition], default=first - 1) + 1
                assert offset == expected, f"offset {offset} came instead of {expected}"
                seen[partition][offset] = (m.key(), m.value(), m.timestamp()[1])
            return all(max(seen[p], default=-1) >= end for p, end in ends.items())

        try:
            if ends:
                until(f"{self.name} to be read up to {ends}", all_read)
        finally:
            consumer.close()
        return seen

    def acknowledged_without_gap(self) -> dict[int, dict[int, Record]]:
        """From the first offset on. Producers hear of their offsets side by side: that of a later
        one may be known first."""
        known = {p: dict(found) for p, found in list(self.records.items())}
        return {p: {o: found[o] for o in takewhile(found.__contains__, count())}
                for p, found in known.items() if 0 in found}  # fmt: skip

    def segments(self) -> list[MergedSegmentRow]:
        settings = JobsSettings.of(self.stack.environment("jobs"))
        with connect_jobs(settings, application_name="test") as plane:
            rows = list(plane.merged_segments(*plane.log_id_range()))
        return [row for row in rows if row.topic == self.name]

    def states(self) -> set[str]:
        with psycopg.connect(self.stack.endpoints.postgres_dsn("postgres")) as connection:
            rows = connection.execute(
                "SELECT migration_state FROM tideline.logs WHERE topic_name = %s", [self.name]
            ).fetchall()
        return {row[0] for row in rows}

    def claims(self) -> int:
        """Of WAL files and partitions, that have not expired."""
        with psycopg.connect(self.stack.endpoints.postgres_dsn("postgres")) as connection:
            row = connection.execute(
                "WITH mine AS (SELECT log_id FROM tideline.logs WHERE topic_name = %s),"
                " held AS (SELECT FROM tideline.merge_claims JOIN mine USING (log_id)"
                "   WHERE expires_at > clock_timestamp()"
                "  UNION ALL SELECT FROM tideline.wal_file_claims AS c"
                "   WHERE expires_at > clock_timestamp() AND EXISTS (SELECT FROM tideline.batches"
                "     JOIN mine USING (log_id) WHERE file_id = c.file_id))"
                " SELECT count(*) FROM held",
                [self.name],
            ).fetchone()
        assert row is not None
        return int(row[0])

    def rows_left(self) -> int:
        """Batch rows in Postgres."""
        with psycopg.connect(self.stack.endpoints.postgres_dsn("postgres")) as connection:
            row = connection.execute(
                "SELECT count(*) FROM tideline.batches JOIN tideline.logs USING (log_id)"
                " WHERE topic_name = %s", [self.name],
            ).fetchone()  # fmt: skip
        assert row is not None
        return int(row[0])


@contextmanager
def diskless_topic(stack: Stack) -> Iterator[Topic]:
    """Born diskless, deleted at the end."""
    admin = AdminClient({"bootstrap.servers": stack.endpoints.gateway_bootstrap})
    name = f"tiering-{next(_numbers)}-{time.monotonic_ns() % 1_000_000}"
    configs = {"diskless.enable": "true", "segment.bytes": "1048576",
               "index.interval.bytes": "2000"}  # fmt: skip
    create_topics(admin, NewTopic(name, PARTITIONS, 1, config=configs))
    made = Topic(stack, name, topic_id_to_base64(id_of(admin, name)))
    try:
        yield made
    finally:
        delete_topics(admin, name)


class Rereader:
    """Reads the topic from its first offset to its end, again and again, and compares. Between two
    rounds it leaves the machine to the others for as long as three more would take."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._stop = threading.Event()
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rereader", daemon=True)
        self.rounds = 0
        self.wrong: list[str] = []

    def __enter__(self) -> Rereader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._hurry.set()
        joined(self._thread, 90)

    def read_again(self) -> None:
        """Wait for a round that began now or later, or for one that found something wrong."""
        wanted = self.rounds + 2
        self._hurry.set()
        until("the reader to read all again", lambda: self.wrong or self.rounds >= wanted, 120)
        self._hurry.clear()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            wanted = self._topic.acknowledged_without_gap()
            try:
                seen = self._topic.read(wanted)
            except AssertionError as error:
                self.wrong.append(str(error))
                return
            for partition, records in wanted.items():
                different = [o for o, record in records.items() if seen[partition][o] != record]
                if different:
                    self.wrong.append(f"partition {partition}: offsets {different[:5]} differ")
            self.rounds += 1
            self._hurry.wait(1.5 + 3 * (time.monotonic() - began))


def job(stack: Stack, spark: SparkSession, **environment: str) -> Job:
    """As an entry point makes it, with the session of the test run."""
    made = Job("tiering", JobsSettings.of({**stack.environment("jobs"), **environment}))
    made.__dict__["spark"] = spark
    return made
