"""Whole runs of coverage and retention over a generated fleet: the first one, and the next.

``python -m benchmarks.fleet --topics 10 --partitions 100 --segments 100``. Everything a run touches
is real: topics in Kafka, metadata records in ``__remote_log_metadata``, objects in S3 (in Aiven's
layout, three a segment), rows in Postgres. What is generated is their content: brokers would take
days to copy it. Each round has a run that reads and lists everything, one for which a hundredth of
the partitions has a new segment, and one for which nothing has happened.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid5

import psycopg
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.own_stack import own_stack
from spark.common.entry import Job, Launch, Outcome
from spark.common.rows import chunks
from spark.coverage.job import coverage
from spark.retention.job import retention
from tideline.demo.run import machine
from tideline.domain.ids import TopicIdPartition, topic_id_from_base64
from tideline.domain.remote_log import EpochStart, RemoteSegment, SegmentState
from tideline.kafka import remote_log_metadata as codec
from tideline.object_store.client import ObjectStoreClient
from tideline.object_store.inventory import segment_stem
from tideline.settings import JobsSettings
from tideline.stack import Stack

RECORDS = 1_000
"""Of a segment."""
WRITERS = 16
NOW_MS = time.time_ns() // 1_000_000
TEN_YEARS_MS = 10 * 365 * 86_400_000
KINDS = ("log", "indexes", "rsm-manifest")
WAYS = (
    "everything is read and listed",
    "1 % of the partitions has a new segment",
    "nothing happened",
)


@dataclass
class Fleet:
    """Hybrid topics whose prefixes are complete."""

    stack: Stack
    topics: int
    partitions: int
    segments: int
    ids: dict[str, UUID] = field(default_factory=dict)
    more: int = 0
    """Segments that every log could have been given since."""

    def __post_init__(self) -> None:
        self.settings = JobsSettings.of(self.stack.environment("jobs"))
        self.bootstrap = ",".join(f"{host}:{port}" for host, port in self.settings.kafka_bootstrap)
        self.store = ObjectStoreClient(self.settings, connections=WRITERS)
        self.producer = Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 50, "acks": "all",
             "queue.buffering.max.messages": 1_000_000}
        )  # fmt: skip
        self.places = len(
            AdminClient({"bootstrap.servers": self.bootstrap})
            .list_topics(codec.TOPIC, timeout=30).topics[codec.TOPIC].partitions
        )  # fmt: skip

    @property
    def size(self) -> int:
        return self.topics * self.partitions * self.segments

    def make(self, with_objects: bool, step: Callable[[str], None]) -> None:
        step(f"fleet: {self.topics} topics of {self.partitions} partitions")
        self._make_topics()
        self._make_rows()
        step(f"fleet: records of {self.size} segments")
        self._announce(self._all())
        if with_objects:
            step(f"fleet: objects of {self.size} segments")
            self._put(self._all())

    def grow(self, with_objects: bool) -> None:
        """A hundredth of the logs has another segment."""
        logs = list(self.logs())[::100]
        number = self.segments + self.more
        self.more += 1
        new = [(topic, segment(topic, log, number)) for topic, log in logs]
        if with_objects:
            self._put(iter(new))
        self._announce(iter(new))

    def logs(self) -> Iterator[tuple[str, TopicIdPartition]]:
        for topic, topic_id in self.ids.items():
            for partition in range(self.partitions):
                yield topic, TopicIdPartition(topic_id, partition)

    def _all(self) -> Iterator[tuple[str, RemoteSegment]]:
        # Brokers write as time goes on: the logs' records lie between each other.
        for number in range(self.segments):
            for topic, log in self.logs():
                yield topic, segment(topic, log, number)

    def _make_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        names = [f"fleet-{number}" for number in range(self.topics)]
        config = {"retention.ms": str(TEN_YEARS_MS)}
        made = admin.create_topics(
            [NewTopic(name, self.partitions, 1, config=config) for name in names]
        )
        for done in made.values():
            done.result(60)
        for name in names:
            for partition in range(self.partitions):
                self.producer.produce(name, b"x", partition=partition)
        self._flush()
        found = admin.describe_topics(TopicCollection(names))
        for name in names:
            self.ids[name] = topic_id_from_base64(str(found[name].result(60).topic_id))

    def _make_rows(self) -> None:
        boundary = self.segments * RECORDS
        with psycopg.connect(self.stack.endpoints.postgres_dsn("postgres"), autocommit=True) as db:
            db.execute("SET search_path = tideline")
            for name, topic_id in self.ids.items():
                db.execute(
                    "SELECT begin_tracking(%s, %s, 'migrated', %s, 'CreateTime', 1048588, NULL)",
                    [name, topic_id, self.partitions],
                )
            db.execute(
                "UPDATE logs SET migration_state = 'HYBRID', diskless_log_start_offset = %s,"
                " diskless_log_start_epoch = 0, high_watermark = %s, suffix_start = %s,"
                " log_start_offset = 0, tiered_log_start_offset = 0, tiered_high_offset = %s,"
                " tiering_complete = true, tiering_reason = 'generated', generation = 1",
                [boundary, boundary, boundary, boundary - 1],
            )

    def _announce(self, segments: Iterator[tuple[str, RemoteSegment]]) -> None:
        for _, one in segments:
            place = hash((one.log.topic_id.int, one.log.partition)) % self.places
            for record in codec.metadata_records(one, started_at=1):
                while True:
                    try:
                        self.producer.produce(codec.TOPIC, record.value, partition=place)
                        break
                    except BufferError:
                        self.producer.poll(0.1)
            self.producer.poll(0)
        self._flush()

    def _put(self, segments: Iterator[tuple[str, RemoteSegment]]) -> None:
        bucket, root = self.settings.s3_tiered_bucket, self.settings.s3_tiered_prefix

        def put(one: tuple[str, RemoteSegment]) -> None:
            topic, found = one
            stem = segment_stem(root, topic, found.log, found.start_offset, found.segment_id)
            for kind in KINDS:
                self.store.put(bucket, f"{stem}.{kind}", b"x")

        with ThreadPoolExecutor(WRITERS) as pool:
            for some in chunks(segments, 1_000):
                list(pool.map(put, some))

    def _flush(self) -> None:
        if left := self.producer.flush(300):
            raise RuntimeError(f"{left} records are not written")


def segment(topic: str, log: TopicIdPartition, number: int) -> RemoteSegment:
    """The segment ``number`` of a log: one byte in S3."""
    start = number * RECORDS
    return RemoteSegment(
        log, topic, uuid5(log.topic_id, f"{log.partition} {number}"), start,
        start + RECORDS - 1, 1, (EpochStart(0, 0),), SegmentState.COPY_SEGMENT_FINISHED, 1, NOW_MS,
        NOW_MS,
        True,
    )  # fmt: skip


def measure(
    fleet: Fleet, jobs: Sequence[str], rounds: int, step: Callable[[str], None]
) -> dict[tuple[str, str], list[float]]:
    """Seconds by job and way. Raises if a run finds what is not so."""
    work: dict[str, Callable[[Job], Outcome]] = {
        "coverage": lambda job: coverage(job, []),
        "retention": lambda job: retention(job, []),
    }
    job = Job("fleet", fleet.settings, Launch("local[*]", ("spark.driver.memory=2g",)))
    times: dict[tuple[str, str], list[float]] = {}
    try:
        _ = job.spark
        for number in range(rounds + 1):
            for way in WAYS:
                if way == WAYS[1]:
                    fleet.grow("coverage" in jobs)
                audit = {"coverage_audit_ms": 0} if way == WAYS[0] else {}
                for name in jobs:
                    step(f"{name}, round {number} of {rounds}: {way}")
                    job.settings = fleet.settings.model_copy(update=audit)
                    started = time.monotonic()
                    found = work[name](job).details
                    taken = time.monotonic() - started
                    if number:
                        times.setdefault((name, way), []).append(taken)
                    if name == "coverage" and found["covered"] != fleet.topics * fleet.partitions:
                        raise RuntimeError(f"not all covered: {found}")
                    if name == "retention" and (found["problems"] or found["bytes"]):
                        raise RuntimeError(f"something to remove: {found}")
    finally:
        job.close()
    return times


def to_markdown(fleet: Fleet, times: dict[tuple[str, str], list[float]], on: str) -> str:
    lines = [
        f"{fleet.topics * fleet.partitions} partitions x {fleet.segments} segments = {fleet.size} "
        f"segments, {2 * fleet.size} metadata records in {fleet.places} partitions. {on}",
        "",
        "| job | run | seconds: median (min to max) |",
        "| --- | --- | ---: |",
    ]
    for (name, way), some in times.items():
        spread = f"{statistics.median(some):.1f} ({min(some):.1f} to {max(some):.1f})"
        lines.append(f"| {name} | {way} | {spread} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=100, help="of each topic")
    parser.add_argument("--segments", type=int, default=100, help="of each partition")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--job", action="append", choices=["coverage", "retention"], help="default: both"
    )
    parser.add_argument("--reports", type=Path, default=Path("reports"))
    asked = parser.parse_args()
    jobs = asked.job or ["coverage", "retention"]
    started = time.monotonic()

    def step(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", file=sys.stderr, flush=True)

    with own_stack(step, brokers=1) as stack:
        fleet = Fleet(stack, asked.topics, asked.partitions, asked.segments)
        fleet.make("coverage" in jobs, step)
        times = measure(fleet, jobs, asked.rounds, step)
        text = to_markdown(fleet, times, machine())
    asked.reports.mkdir(parents=True, exist_ok=True)
    (asked.reports / "fleet.md").write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
