"""Stock consumers of every kind that were reading before the migration read on across B0."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from kafka import KafkaConsumer, TopicPartition

from tests.harness import LASTING_SESSION, Case, migration_case
from tests.support.waiting import joined, stopped, until
from tideline.stack import Stack
from tideline.stack.kafka_jars import tool_command


@dataclass
class Reading:
    """What one consumer has seen: (offset, value), in order."""

    seen: list[tuple[int, str]] = field(default_factory=list)


@contextmanager
def java_console_consumer(case: Case) -> Iterator[Reading]:
    """The Java client, with incremental fetch sessions (schedule 9)."""
    reading = Reading()
    process = subprocess.Popen(
        tool_command(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            "--bootstrap-server", case.bootstrap, "--topic", case.topic, "--from-beginning",
            "--formatter-property", "print.offset=true",
            "--command-property", f"session.timeout.ms={LASTING_SESSION['session.timeout.ms']}",
        ),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            offset, _, value = line.rstrip("\n").partition("\t")
            reading.seen.append((int(offset.removeprefix("Offset:")), value.split(" ", 1)[0]))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield reading
    finally:
        stopped(process)
        joined(thread)


@contextmanager
def kafka_python_consumer(case: Case) -> Iterator[Reading]:
    """The pure Python client, without a group: one that polls for moments may stand still for ever
    (docs/clients.md)."""
    reading = Reading()
    stop = threading.Event()
    consumer = KafkaConsumer(
        bootstrap_servers=case.bootstrap.split(","), auto_offset_reset="earliest"
    )
    consumer.assign([TopicPartition(case.topic, 0)])

    def read() -> None:
        while not stop.is_set():
            for batch in consumer.poll(timeout_ms=200).values():
                reading.seen += [(r.offset, r.value.decode().split(" ", 1)[0]) for r in batch]

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield reading
    finally:
        stop.set()
        joined(thread)
        consumer.close()


def read_across(case: Case, reading: Reading, acknowledged: tuple[int, int], past: int) -> int:
    """Migrate, between so many acknowledgements, and wait until what follows B0 is read. The last
    offset of partition 0."""
    before, after = acknowledged
    case.until_acknowledged(before)
    case.trigger()
    case.until_ready()
    boundary = case.boundaries()[0]
    assert reading.seen[-1][0] > 0
    case.until_acknowledged(after)
    until("a record well past B0", lambda: reading.seen[-1][0] > boundary + past)
    for producer in case.producers:
        producer.stop()
    last = case.ledger.acknowledged_through(0)
    until("the last record", lambda: reading.seen[-1][0] >= last)
    return last


@pytest.mark.parametrize("consumer", [java_console_consumer, kafka_python_consumer])
def test_a_consumer_reads_on_across_the_boundary(stack: Stack, consumer: object) -> None:
    with migration_case(stack, name="across") as case:
        case.produce()
        case.consume()
        with consumer(case) as reading:  # type: ignore[operator]
            until("a first record", lambda: reading.seen)
            last = read_across(case, reading, acknowledged=(20, 40), past=20)
        offsets = [offset for offset, _ in reading.seen]
        assert offsets == list(range(len(offsets)))
        assert [(a.offset, a.record_id) for a in sorted(
            case.ledger.acknowledgements(0), key=lambda a: a.offset
        )] == reading.seen[: last + 1]  # fmt: skip
        case.settle()
