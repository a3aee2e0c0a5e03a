"""A topic as a table beside a stock consumer of the same topic, through the gateways.

``python -m benchmarks.table [--megabytes 150] [--rounds 5]``. One topic, migrated: a prefix in
remote segments, merged segments, and WAL objects, a third each, by producers with and without
compression.
Both ways hand every record over: the table to Spark, which sums the sizes of keys and values, the
consumer (librdkafka, by ``consume``) to Python. They take turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.own_stack import own_stack
from spark.common.entry import Job
from spark.common.session import make_session
from spark.table.source import NAME, register
from spark.tiering import job as tiering
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.demo import topic as topics
from tideline.demo.patience import Patience
from tideline.demo.run import machine
from tideline.settings import JobsSettings
from tideline.stack import Stack
from tideline.stack.spark_classes import driver_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS, VALUE_BYTES = 4, 900
CODECS = ("none", "lz4")
Step = Callable[[str], None]


@dataclass
class Result:
    """Seconds for the whole topic."""

    records: int = 0
    payload: int = 0
    """bytes of keys and values."""
    table: list[float] = field(default_factory=list)
    consumer: list[float] = field(default_factory=list)


def write(bootstrap: str, topic: str, megabytes: int) -> None:
    """Half of it by each codec; values are texts, of which lz4 makes a third."""
    for codec in CODECS:
        producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": codec}
        )
        for n in range(megabytes * 1_000_000 // VALUE_BYTES // len(CODECS)):
            value = (b"order %d of customer %d; " % (n, n * 7919 % 100_003)) * 40
            while True:
                try:
                    producer.produce(
                        topic, value[:VALUE_BYTES], b"%d" % n, partition=n % PARTITIONS
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(120):
            raise SystemExit("not everything was acknowledged")


def by_consumer(bootstrap: str, topic: str) -> tuple[int, int, float]:
    """Records, bytes of keys and values, seconds."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False,
         "enable.partition.eof": True, "auto.offset.reset": "error"}
    )  # fmt: skip
    began = time.perf_counter()
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    records = size = 0
    ended = set[int | None]()
    while len(ended) < PARTITIONS:
        for message in consumer.consume(10_000, 0.1):
            error = message.error()
            if error is None:
                records += 1
                size += len(message.value() or b"") + len(message.key() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise SystemExit(error.str())
    took = time.perf_counter() - began
    consumer.close()
    return records, size, took


def by_table(spark: SparkSession, topic: str) -> tuple[int, int, float]:
    """Records, bytes of keys and values, seconds."""
    began = time.perf_counter()
    frame = spark.read.format(NAME).option("topic", topic).load()
    found = frame.selectExpr("count(*)", "sum(length(key) + length(value))").collect()[0]
    return found[0], found[1], time.perf_counter() - began


def hybrid(stack: Stack, spark: SparkSession, megabytes: int, step: Step) -> str:
    """The topic, with each third where it belongs."""
    topic, bootstrap = f"table-{uuid4().hex[:6]}", stack.endpoints.gateway_bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    replicas = min(3, len(stack.endpoints.gateways))
    configs: dict[str, Any] = {"segment.bytes": "33554432"}
    topics.create_tiered(admin, topic, PARTITIONS, replicas, **configs)
    step(f"{megabytes / 3:.0f} MB of a prefix")
    write(bootstrap, topic, megabytes // 3)
    topics.trigger_migration(admin, topic)
    settings = JobsSettings.of(stack.environment("jobs"))
    patience = Patience(300)
    with connect_jobs(settings, application_name="bench") as plane:
        while True:
            rows = [r for r in plane.partitions(*plane.log_id_range()) if r.topic == topic]
            if len(rows) == PARTITIONS and all(r.tiering_complete for r in rows):
                break
            if patience.over:
                raise SystemExit("the topic was not ready within 300 s")
            time.sleep(0.5)
        step("a third that is merged")
        write(bootstrap, topic, megabytes // 3)
        plane.request_tiering(topic)
    job = Job("tiering", settings)
    job.__dict__["spark"] = spark
    failed = tiering.tiering(job, [topic]).failed
    if failed:
        raise SystemExit(failed)
    step("a third in WAL objects")
    write(bootstrap, topic, megabytes // 3)
    return topic


def measure(stack: Stack, megabytes: int, rounds: int, step: Step) -> Result:
    """Raises :class:`SystemExit` when the two ways do not hand over the same."""
    spark = make_session("bench", "local[2]", {"spark.ui.enabled": "false"})
    register(spark, JobsSettings.of(stack.environment("jobs")))
    topic = hybrid(stack, spark, megabytes, step)
    result = Result()
    for number in range(rounds + 1):
        step(f"round {number} of {rounds}")
        *read, seconds = by_consumer(stack.endpoints.gateway_bootstrap, topic)
        *counted, took = by_table(spark, topic)
        if read != counted:
            raise SystemExit(f"the consumer has {read}, the table {counted}")
        result.records, result.payload = read
        if number:
            result.consumer.append(seconds)
            result.table.append(took)
    spark.stop()
    return result


def to_markdown(result: Result) -> str:
    """Medians with the lowest and highest."""
    lines = [
        f"{result.records} records, {result.payload / 1e6:.0f} MB of keys and values; {machine()}",
        "",
        "| way | seconds | records/s | MB/s |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, took in (("table, Spark local[2]", result.table), ("consumer", result.consumer)):
        median = statistics.median(took)
        lines.append(
            f"| {name} | {median:.2f} ({min(took):.2f} to {max(took):.2f}) | "
            f"{result.records / median:,.0f} | {result.payload / median / 1e6:.1f} |"
        )
    ratios = sorted(c / t for c, t in zip(result.consumer, result.table, strict=True))
    lines += [
        "",
        f"The table at {statistics.median(ratios):.2f} of the consumer's rate "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f}, {len(ratios)} rounds)",
    ]
    return "\n".join(lines)


def main() -> None:
    import os

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    started = time.monotonic()
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(driver_options())

    def step(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", file=sys.stderr, flush=True)

    with own_stack(step) as stack:
        print(to_markdown(measure(stack, arguments.megabytes, arguments.rounds, step)))


if __name__ == "__main__":
    main()
