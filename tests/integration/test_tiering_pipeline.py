"""The pipeline on a real stack: what was produced is read back from segments, byte for byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from spark import tiering
from spark.entry import Job
from tideline.control_plane.jobs import connect_jobs
from tideline.control_plane.jobs_model import MergedSegmentRow
from tideline.demo.topic import topic_id
from tideline.errors import ExitCode
from tideline.kafka.segment_files import SegmentFile, object_keys, offset_name
from tideline.object_store.bulk import BulkStore
from tideline.settings import JobsSettings
from tideline.stack import Stack
from tideline.stack.kafka_jars import tool_command

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
    admin: AdminClient
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
                    producer.flush(30)
        for producer in producers:
            assert producer.flush(60) == 0
        assert not failures, failures[:3]

    def read(self) -> dict[int, dict[int, Record]]:
        """Everything from the first offset on."""
        wanted = sum(len(found) for found in self.records.values())
        seen: dict[int, dict[int, Record]] = defaultdict(dict)
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "reader"})
        consumer.assign([TopicPartition(self.name, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
        deadline = time.monotonic() + 60
        try:
            while sum(len(found) for found in seen.values()) < wanted:
                assert time.monotonic() < deadline, f"{seen.keys()} of {wanted}"
                for m in consumer.consume(500, 0.5):
                    assert m.error() is None, m.error()
                    seen[m.partition()][m.offset()] = (m.key(), m.value(), m.timestamp()[1])  # type: ignore[index]
        finally:
            consumer.close()
        return seen

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

    def rows_left(self) -> int:
        """Batch rows in Postgres."""
        with psycopg.connect(self.stack.endpoints.postgres_dsn("postgres")) as connection:
            row = connection.execute(
                "SELECT count(*) FROM tideline.batches JOIN tideline.logs USING (log_id)"
                " WHERE topic_name = %s", [self.name],
            ).fetchone()  # fmt: skip
        assert row is not None
        return int(row[0])


@pytest.fixture
def topic(stack: Stack) -> Iterator[Topic]:
    admin = AdminClient({"bootstrap.servers": stack.endpoints.gateway_bootstrap})
    name = f"tiering-{next(_numbers)}-{time.monotonic_ns() % 1_000_000}"
    configs = {"diskless.enable": "true", "segment.bytes": "1048576",
               "index.interval.bytes": "2000"}  # fmt: skip
    admin.create_topics([NewTopic(name, PARTITIONS, 1, config=configs)])[name].result(30)
    topic_id(admin, name)
    yield Topic(stack, name, admin)
    admin.delete_topics([name])[name].result(30)


def job(stack: Stack, spark: SparkSession, **environment: str) -> Job:
    """As an entry point makes it, with the session of the test run."""
    made = Job("tiering", JobsSettings.of({**stack.environment("jobs"), **environment}))
    made.__dict__["spark"] = spark
    return made


def tideline(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tideline", "tiering", *arguments],
        env={**os.environ, **stack.environment("jobs")},
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip


def test_aged_data_is_tiered_and_reads_as_before(
    topic: Topic, stack: Stack, spark: SparkSession, tmp_path: Path
) -> None:
    topic.produce()
    before = topic.rows_left()
    assert before > len(CODECS)
    assert topic.states() == {"DISKLESS_ONLY"}

    young = tiering.work(job(stack, spark), (topic.name,))
    assert young.details["split"]["batches"] == 0, "retention.ms is seven days"  # type: ignore[index]

    status = tideline(stack, "status", topic.name, "-o", "json")
    assert status.returncode == ExitCode.OK, status.stderr
    rows = json.loads(status.stdout)["partitions"]
    assert sum(row["pending_batches"] for row in rows) == before
    assert {row["next_step"] for row in rows} == {"split once it is older than local.retention.ms"}

    assert tideline(stack, "pause", topic.name).returncode == ExitCode.OK
    assert tideline(stack, "trigger", topic.name).returncode == ExitCode.OK
    paused = tiering.work(job(stack, spark), (topic.name,))
    assert paused.details["split"]["batches"] == 0  # type: ignore[index]
    assert tideline(stack, "resume", topic.name).returncode == ExitCode.OK

    plan = tiering.work(job(stack, spark), (topic.name,), dry_run=True)
    assert {row["partition"] for row in plan.details["eligible"]} == {0, 1}  # type: ignore[attr-defined]
    assert topic.rows_left() == before, "a dry run changes nothing"

    done = tiering.work(job(stack, spark), (topic.name,))
    assert done.failed is None
    assert done.details["merge"]["batches"] == before  # type: ignore[index]
    assert topic.rows_left() == 0
    assert topic.states() == {"HYBRID"}
    assert topic.read() == topic.records, "all from segments"
    topic.produce(20)
    assert topic.read() == topic.records, "from segments, then from WAL objects"
    dump_finds_nothing(stack, topic.segments(), tmp_path)


def dump_finds_nothing(stack: Stack, rows: list[MergedSegmentRow], directory: Path) -> None:
    """Kafka's own tool reads the segments, and finds every index entry right."""
    store = BulkStore(JobsSettings.of(stack.environment("jobs")))
    bucket = stack.endpoints.s3.tiered_bucket
    files: list[str] = []
    for row in rows:
        place = directory / str(row.partition)
        place.mkdir(exist_ok=True)
        for file, key in object_keys(row.object_key_stem).items():
            path = place / f"{offset_name(row.base_offset)}{file}"
            path.write_bytes(store.get(bucket, key))
            if file in (SegmentFile.LOG, SegmentFile.OFFSET_INDEX, SegmentFile.TIME_INDEX):
                files.append(str(path))
    told = subprocess.run(
        tool_command(
            "kafka.tools.DumpLogSegments", "--files", ",".join(files), "--deep-iteration",
            "--index-sanity-check",
        ),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("passed sanity check") == 2 * len(rows), told.stdout[-2000:]
    for complaint in ("Found timestamp mismatch", "Mismatches in", "Non-consecutive", "isvalid: f"):
        assert complaint not in told.stdout + told.stderr


def test_a_topic_is_tiered_by_age_in_one_command(topic: Topic, stack: Stack) -> None:
    topic.produce(20)
    told = tideline(stack, "trigger", topic.name, "--now")
    assert told.returncode == ExitCode.OK, told.stderr
    result = json.loads(told.stdout.splitlines()[-1])
    assert result["merge"]["segments"] == PARTITIONS
    assert topic.rows_left() == 0
    assert topic.read() == topic.records


def test_a_topic_without_diskless_data_is_refused(stack: Stack) -> None:
    for command in (("status", "no-such-topic"), ("trigger", "no-such-topic")):
        told = tideline(stack, *command)
        assert told.returncode == ExitCode.REFUSED
        assert "no-such-topic" in told.stderr
