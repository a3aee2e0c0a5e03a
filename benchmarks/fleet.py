"""Whole runs of the periodic jobs over a generated fleet: the first one, and the next.

``python -m benchmarks.fleet --topics 10 --partitions 1000 --segments 500``. Everything that a run
touches is real: topics in Kafka, metadata records in ``__remote_log_metadata``, an S3 server that
lists its objects (in Aiven's layout, three a segment), rows in Postgres. What is generated is their
content: brokers would take days to copy it. The objects' entries are written where that server
keeps them (:mod:`benchmarks.fleet_objects`), the records by a template
(:mod:`benchmarks.fleet_records`).

The first round begins with the first run there is; each later one with a run that reads and lists
everything again. Then comes one for which a hundredth of the partitions has a new segment, and one
for which nothing has happened. Last, each job runs when it has nothing to do: an idle cycle.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
from confluent_kafka import KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.fleet_objects import FilerRows, configure, filer_rows
from benchmarks.fleet_records import Announced, Announcement, announce, flush, place_of, segment
from benchmarks.own_stack import own_stack
from benchmarks.usage import DRIVER, JVM, WORKERS, Groups, Usage, watched
from spark.common.entry import Job, Launch, Outcome
from spark.coverage.job import coverage
from spark.gc.job import gc
from spark.retention.job import retention
from spark.tiering.job import merge, split
from tideline.demo.patience import Patience
from tideline.demo.run import machine
from tideline.domain.ids import TopicIdPartition, topic_id_from_base64
from tideline.domain.remote_log import RemoteSegment
from tideline.kafka import remote_log_metadata as codec
from tideline.object_store.client import ObjectEntry, ObjectStoreClient
from tideline.object_store.inventory import partition_prefix, segment_stem
from tideline.settings import JobsSettings
from tideline.stack import Stack

RECORDS = 1_000
"""Of a segment."""
WRITERS = 16
NOW_MS = time.time_ns() // 1_000_000
TEN_YEARS_MS = 10 * 365 * 86_400_000
KINDS = ("indexes", "log", "rsm-manifest")
FIRST = "the first run"
AGAIN = "everything is read and listed again"
DELTA = "1 % of the partitions has a new segment"
NOTHING = "nothing happened"
IDLE = "nothing to do"
PARTS = {"Postgres": "postgres", "S3": "s3", "broker": "kafka-1"}
NOT_NEEDED = ("gateway-1", "worker", "temporal")
"""Once the buckets have their owner."""
FILER = "S3's own Postgres"
GROUPS = (DRIVER, JVM, WORKERS, *PARTS, FILER)
WORK: Mapping[str, Callable[[Job], Outcome]] = {
    "coverage": lambda job: coverage(job, []),
    "retention": lambda job: retention(job, []),
    "gc": gc,
    "split": lambda job: split(job, []),
    "merge": lambda job: merge(job, []),
}
LISTING = {"coverage", "gc"}
TOPIC_S = 300.0
Step = Callable[[str], None]


@dataclass
class Fleet:
    """Hybrid topics whose prefixes are complete."""

    stack: Stack
    filer: FilerRows
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
        self.producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all"})
        self.places = len(
            AdminClient({"bootstrap.servers": self.bootstrap})
            .list_topics(codec.TOPIC, timeout=30).topics[codec.TOPIC].partitions
        )  # fmt: skip
        parts = {name: (self.stack.pid(part),) for name, part in PARTS.items()}
        self.groups = Groups(parts | {FILER: (self.filer.pid,)})

    @property
    def size(self) -> int:
        return self.logs_in_all * self.segments

    @property
    def logs_in_all(self) -> int:
        return self.topics * self.partitions

    def make(self, with_objects: bool, step: Step) -> None:
        step(f"fleet: {self.topics} topics of {self.partitions} partitions")
        self._make_topics()
        self._make_rows()
        if with_objects:
            step(f"fleet: objects of {self.size} segments")
            self._make_objects()
        step(f"fleet: records of {self.size} segments")
        logs = [Announced(topic, log, place_of(log, self.places)) for topic, log in self.logs()]
        Announcement(self.bootstrap, self.segments, RECORDS, NOW_MS).make(logs)

    def grow(self, with_objects: bool) -> None:
        """A hundredth of the logs has another segment."""
        number = self.segments + self.more
        self.more += 1
        new = [self._segment(topic, log, number) for topic, log in list(self.logs())[::100]]
        if with_objects:
            with ThreadPoolExecutor(WRITERS) as pool:
                list(pool.map(self._put, new))
        announce(self.producer, new, self.places)

    def logs(self) -> Iterator[tuple[str, TopicIdPartition]]:
        for topic, topic_id in self.ids.items():
            for partition in range(self.partitions):
                yield topic, TopicIdPartition(topic_id, partition)

    @staticmethod
    def _segment(topic: str, log: TopicIdPartition, number: int) -> RemoteSegment:
        return segment(topic, log, number, RECORDS, NOW_MS)

    def _make_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        names = [f"fleet-{number}" for number in range(self.topics)]
        config = {"retention.ms": str(TEN_YEARS_MS)}
        for name in names:
            made = admin.create_topics([NewTopic(name, self.partitions, 1, config=config)])
            made[name].result(120)
        self.ids = {name: self._described(admin, name) for name in names}
        for name in names:
            for number in range(self.partitions):
                self.producer.produce(name, b"x", partition=number, on_delivery=_must_be_there)
                self.producer.poll(0)
            flush(self.producer)

    def _described(self, admin: AdminClient, name: str) -> UUID:
        """The id of a topic, once its partitions have leaders: a broker hears of thousands late."""
        patience = Patience(TOPIC_S)
        while True:
            try:
                found = admin.describe_topics(TopicCollection([name]))[name].result(60)
                if all(one.leader is not None for one in found.partitions):
                    return topic_id_from_base64(str(found.topic_id))
            except KafkaException:
                if patience.over:
                    raise
            if patience.over:
                raise RuntimeError(f"{name} has partitions without a leader")
            time.sleep(0.5)

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

    def _make_objects(self) -> None:
        """Raises ``RuntimeError`` if S3 does not list what puts would have made."""
        some = list(self.logs())
        (topic, log), (last_topic, last_log) = some[0], some[-1]
        self._put(self._segment(topic, log, 0))
        put = self.listed(topic, log)
        bucket, root = self.settings.s3_tiered_bucket, self.settings.s3_tiered_prefix
        self.filer.copy(bucket, root, self.ids, self.partitions, self.segments, RECORDS, KINDS)
        found = self.listed(last_topic, last_log)
        wanted = [
            key
            for number in range(self.segments)
            for key in self._keys(self._segment(last_topic, last_log, number))
        ]
        like = {(one.size, one.last_modified, one.etag) for one in put}
        if [one.key for one in found] != wanted or not (
            {(one.size, one.last_modified, one.etag) for one in found} <= like
        ):
            raise RuntimeError(f"S3 lists {len(found)} objects, not {wanted[:3]}…: {found[:3]}")

    def listed(self, topic: str, log: TopicIdPartition) -> list[ObjectEntry]:
        prefix = partition_prefix(self.settings.s3_tiered_prefix, topic, log)
        return list(self.store.list_objects(self.settings.s3_tiered_bucket, prefix))

    def _keys(self, one: RemoteSegment) -> list[str]:
        root = self.settings.s3_tiered_prefix
        stem = segment_stem(root, one.topic, one.log, one.start_offset, one.segment_id)
        return [f"{stem}.{kind}" for kind in KINDS]

    def _put(self, one: RemoteSegment) -> None:
        for key in self._keys(one):
            self.store.put(self.settings.s3_tiered_bucket, key, b"x")


@dataclass
class Measured:
    """Usages by job and way, in the order of the runs."""

    runs: dict[tuple[str, str], list[Usage]] = field(default_factory=dict)

    def add(self, name: str, way: str, usage: Usage) -> None:
        self.runs.setdefault((name, way), []).append(usage)


def measure(
    fleet: Fleet, jobs: Sequence[str], rounds: int, driver_memory: str, step: Step
) -> Measured:
    """Raises if a run finds what is not so."""
    measured = Measured()
    how = Launch("local[*]", (f"spark.driver.memory={driver_memory}",))
    job = Job("fleet", fleet.settings, how)

    def run(name: str, way: str, **settings: int) -> None:
        step(f"{name}: {way}")
        job.run_id, job.started_at = uuid4(), datetime.now(UTC)
        job.settings = fleet.settings.model_copy(update=settings)
        with watched(fleet.groups) as usage:
            found = WORK[name](job).details
        measured.add(name, way, usage)
        step(f"{name}: {usage}")
        check(fleet, name, found)

    try:
        with watched(fleet.groups) as usage:
            _ = job.spark
        measured.add("start of Spark", "", usage)
        for number in range(rounds):
            for way in (AGAIN if number else FIRST, DELTA, NOTHING):
                if way == DELTA:
                    fleet.grow(bool(LISTING & {*jobs}))
                for name in jobs:
                    if name == "gc":
                        # It reads and lists everything, whatever has happened.
                        if way != DELTA:
                            run(name, way)
                    elif name in ("coverage", "retention"):
                        run(name, way, **({"coverage_audit_ms": 0} if way == AGAIN else {}))
                    elif way == NOTHING:
                        run(name, IDLE)
    finally:
        job.close()
    return measured


def check(fleet: Fleet, name: str, found: Mapping[str, object]) -> None:
    wrong = {
        "coverage": found.get("covered") != fleet.logs_in_all,
        "retention": bool(found.get("problems") or found.get("bytes")),
        "gc": bool(found.get("orphans_found") or found.get("segments_not_judged")),
    }
    if wrong.get(name):
        raise RuntimeError(f"{name} has found what is not so: {found}")


def to_markdown(fleet: Fleet, measured: Measured, on: str) -> str:
    lines = [
        f"{fleet.logs_in_all} partitions x {fleet.segments} segments = {fleet.size} segments, "
        f"{2 * fleet.size} metadata records in {fleet.places} partitions, {3 * fleet.size} "
        f"objects. {on}. Load average at the end {os.getloadavg()[0]:.1f}.",
        "",
        "| job | run | seconds | CPU s | " + " | ".join(GROUPS) + " |",
        "| --- | --- |" + " ---: |" * (len(GROUPS) + 2),
    ]
    for (name, way), some in measured.runs.items():
        cells = [name, way, _spread([one.seconds for one in some])]
        cells.append(_spread([one.all_cpu for one in some]))
        cells += [
            f"{statistics.median([one.cpu.get(group, 0.0) for one in some]):.1f}"
            for group in GROUPS
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "| MB, at most | | " + " | ".join(GROUPS) + " |",
        "| --- | --- |" + " ---: |" * len(GROUPS),
    ]
    for (name, way), some in measured.runs.items():
        cells = [f"{max(u.memory.get(group, 0) for u in some) / 1e6:.0f}" for group in GROUPS]
        lines.append("| " + " | ".join([name, way, *cells]) + " |")
    return "\n".join(lines)


def _must_be_there(error: object, message: object) -> None:
    if error is not None:
        raise RuntimeError(f"a record is not written: {error}")


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=100, help="of each topic")
    parser.add_argument("--segments", type=int, default=100, help="of each partition")
    parser.add_argument("--rounds", type=int, default=4, help="the first one is told by itself")
    parser.add_argument("--job", action="append", choices=list(WORK), help="default: all of them")
    parser.add_argument("--driver-memory", default="2g")
    parser.add_argument("--reports", type=Path, default=Path("reports"))
    asked = parser.parse_args()
    jobs = asked.job or list(WORK)
    started = time.monotonic()

    def step(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", file=sys.stderr, flush=True)

    with ExitStack() as exits:
        filer, configuration = exits.enter_context(filer_rows())
        prepare = partial(configure, configuration=configuration)
        stack = exits.enter_context(own_stack(step, brokers=1, prepare=prepare))
        for name in NOT_NEEDED:
            stack.stop(name)
        fleet = Fleet(stack, filer, asked.topics, asked.partitions, asked.segments)
        fleet.make(bool(LISTING & {*jobs}), step)
        measured = measure(fleet, jobs, asked.rounds, asked.driver_memory, step)
        text = to_markdown(fleet, measured, machine())
    asked.reports.mkdir(parents=True, exist_ok=True)
    name = f"fleet-{asked.topics * asked.partitions}x{asked.segments}.md"
    (asked.reports / name).write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
