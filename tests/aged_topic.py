"""A migrated topic whose parts have known ages, jobs run in this process, and stock readers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka import KafkaError as LibrdkafkaError
from confluent_kafka.admin import (
    AdminClient,
    OffsetSpec,
)

from spark.common.entry import Job, Outcome
from spark.tiering import job as tiering
from tests.harness import Case, again, alter_configs, migration_case
from tests.support.waiting import HANGS_S, flushed, until
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.demo.topic import wait_until_tiered
from tideline.domain.history import WITNESS_S
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import JobsSettings
from tideline.stack import Stack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
SEGMENT_BYTES = 1_048_576
VALUE = b"v" * 10_000
PER_SEGMENT = SEGMENT_BYTES // len(VALUE)


def settings_of(stack: Stack, **values: object) -> JobsSettings:
    """The jobs' settings against the test's stack."""
    return JobsSettings.of(stack.environment("jobs")).model_copy(update=values)


def run(
    stack: Stack, spark: SparkSession, work: Callable[[Job], Outcome], **values: object
) -> dict[str, Any]:
    """A job's work in the session of this test run; its details."""
    job = Job("test", settings_of(stack, **values))
    job.__dict__["spark"] = spark
    outcome = work(job)
    assert outcome.failed is None, outcome.failed
    return dict(outcome.details)


def let_the_grace_pass(stack: Stack) -> None:
    """Whatever is marked or reported was so eight days earlier. Keys that gateways hold ready stay
    young, and so do commits that a gateway may ask for: it would miss what no collection can take
    that soon."""
    asked_for = f"committed_at > clock_timestamp() - interval '{WITNESS_S + 1} seconds'"
    with psycopg.connect(stack.endpoints.postgres_dsn("postgres"), autocommit=True) as connection:
        until(
            "the last commits of what is marked to be old",
            lambda: (
                connection.execute(
                    "SELECT FROM tideline.wal_files WHERE unreferenced_at IS NOT NULL AND "
                    f"{asked_for}".encode()
                ).rowcount
                == 0
            ),
        )
        for table, column, which in (
            ("wal_files", "unreferenced_at", f"NOT {asked_for}"),
            ("marked_objects", "marked_at", "true"),
            ("merged_segments", "finished_at", "seen_whole_at IS NULL"),
            ("orphan_reports", "first_seen", "true"),
        ):
            connection.execute(
                f"UPDATE tideline.{table} SET {column} = {column} - interval '8 days' "
                f"WHERE {which}".encode()
            )


def tier(stack: Stack, spark: SparkSession, topic: str) -> None:
    """Split and merge all that the topic has committed."""
    with connect_jobs(settings_of(stack), application_name="test") as plane:
        plane.request_tiering(topic)
    run(stack, spark, lambda job: tiering.tiering(job, [topic]), tiering_min_segment_bytes=1)


@dataclass
class Readers:
    """What stock consumers see of partition 0."""

    bootstrap: str
    topic: str

    def offset(self, spec: OffsetSpec) -> int:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        place = TopicPartition(self.topic, 0)
        told = again(
            f"an end of {self.topic}",
            lambda: admin.list_offsets({place: spec})[place].result(HANGS_S),
        )
        return int(told.offset)

    @property
    def earliest(self) -> int:
        return self.offset(OffsetSpec.earliest())

    @property
    def latest(self) -> int:
        return self.offset(OffsetSpec.latest())

    def read(self, start: int, count: int) -> list[tuple[int, int, bytes]]:
        """(offset, timestamp, value) of ``count`` records from ``start`` on."""
        consumer = self.consumer(start)
        try:
            found: list[tuple[int, int, bytes]] = []

            def enough() -> bool:
                for message in consumer.consume(count - len(found), 0.5):
                    if (error := message.error()) is not None:
                        raise KafkaException(error)
                    found.append((message.offset(), message.timestamp()[1], message.value()))
                return len(found) >= count

            until(f"{count} records from {start} on", enough)
            return found
        finally:
            consumer.close()

    def out_of_range(self, offset: int) -> bool:
        """Whether a fetch at ``offset`` is OFFSET_OUT_OF_RANGE."""
        try:
            self.read(offset, 1)
        except KafkaException as error:
            return bool(error.args[0].code() == LibrdkafkaError._AUTO_OFFSET_RESET)
        return False

    def consumer(self, start: int) -> Consumer:
        """One that fails where it may not read."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"read-{self.topic}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
            }
        )
        consumer.assign([TopicPartition(self.topic, 0, start)])
        return consumer


def produce(
    bootstrap: str, topic: str, count: int, timestamp: int, *, first: int = 0, value: bytes = VALUE
) -> None:
    """Records of partition 0 in small batches; each begins with its number."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.size": 16_384,
        }
    )
    failures: list[object] = []
    for n in range(first, first + count):
        producer.produce(
            topic,
            b"%06d-" % n + value,
            partition=0,
            timestamp=timestamp,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    flushed(producer, 60)
    assert failures == []


@dataclass
class AgedTopic:
    """One partition. ``now`` is when it was made, ms."""

    case: Case
    readers: Readers
    now: int

    def produce(self, count: int, age_h: float, *, first: int = 0, value: bytes = VALUE) -> None:
        """Records with timestamps ``age_h`` hours ago, numbered from ``first`` on."""
        at = self.now - int(age_h * HOUR_MS)
        produce(self.case.bootstrap, self.case.topic, count, at, first=first, value=value)

    def configure(self, **configs: int) -> None:
        """As a user does, through a gateway; underscores stand for dots."""
        wanted = {key.replace("_", "."): str(value) for key, value in configs.items()}
        alter_configs(self.case.admin, self.case.topic, wanted)

    def keep_hours(self, hours: float) -> None:
        """Set retention.ms so that what is older than ``hours`` is too old."""
        age_ms = int(time.time() * 1000) - self.now
        self.configure(retention_ms=int(hours * HOUR_MS) + age_ms)

    @property
    def state(self) -> tuple[str, int]:
        """State and B0."""
        ((state, boundary),) = self.case.rows("migration_state, diskless_log_start_offset")
        return str(state), int(str(boundary))


@contextmanager
def aged_topic(stack: Stack, ages_h: tuple[float, ...], name: str) -> Iterator[AgedTopic]:
    """A migrated topic whose prefix has one segment for each of ``ages_h``."""
    with migration_case(
        stack, history=0, name=name, **{"retention.ms": "-1", "max.message.bytes": "1048588"}
    ) as case:
        aged = AgedTopic(case, Readers(case.bootstrap, case.topic), int(time.time() * 1000))
        for n, age in enumerate(ages_h):
            aged.produce(PER_SEGMENT, age, first=n * PER_SEGMENT)
        settings = settings_of(stack)
        if len(ages_h) > 1:
            wait_until_tiered(
                ObjectStoreClient(settings), settings.s3_tiered_bucket,
                f"{settings.s3_tiered_prefix.rstrip('/')}/{case.topic}-", 1,
                segments=len(ages_h) - 1, timeout_s=90,
            )  # fmt: skip
        case.trigger()
        case.until_ready(180)
        yield aged


def keys(stack: Stack, bucket: str, prefix: str) -> set[str]:
    """Objects that are there."""
    return {
        entry.key for entry in ObjectStoreClient(settings_of(stack)).list_objects(bucket, prefix)
    }
