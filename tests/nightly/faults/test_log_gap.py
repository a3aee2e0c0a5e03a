"""What a stock broker does with remote segments past its log end: the facts behind a log gap."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from tests.harness import alter_configs, asked_of, create_topics, delete_topics, killed
from tests.support.waiting import flushed, until
from tideline.domain.coverage import OffsetRange
from tideline.domain.ids import TopicIdPartition
from tideline.domain.log_gap import holders, is_copied, parts_of, ranges
from tideline.domain.remote_log import RemoteSegment, SegmentState
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.log_reader import LogReader
from tideline.kafka.observer import DEBUG_CONSUMER, KafkaObserver, OffsetSpec
from tideline.kafka.remote_log_reader import RemoteLogFollower
from tideline.object_store.inventory import SegmentInventory
from tideline.settings import ObjectStoreSettings
from tideline.stack import Stack

T = TypeVar("T")
NODE = 3
RECORD_BYTES = 50_000
RECORDS = 70
"""Of three segments of 1 MiB and the beginning of a fourth."""


class Log:
    """One partition with one replica, on :data:`NODE`, of a tiered topic."""

    def __init__(self, stack: Stack, what: str) -> None:
        self.stack = stack
        self.name = f"log-gap-{what}-{uuid4().hex[:8]}"
        self.directory: Path = stack.data_path(f"kafka-{NODE}") / f"{self.name}-0"
        self.inventory = SegmentInventory(ObjectStoreSettings.of(stack.environment("worker")))
        self.admin = AdminClient({"bootstrap.servers": stack.endpoints.kafka_bootstrap})
        new = NewTopic(
            self.name,
            1,
            replica_assignment=[[NODE]],
            config={"remote.storage.enable": "true", "segment.bytes": "1048576"},
        )
        create_topics(self.admin, new)

    def fill(self) -> None:
        """Until every segment but the active one is in remote storage."""
        self.write([os.urandom(RECORD_BYTES) for _ in range(RECORDS)])
        closed = set(self.bases()[:-1])
        assert len(closed) == 3

        def tiered() -> bool:
            return closed <= {
                s.start_offset
                for s in self.segments()
                if s.state is SegmentState.COPY_SEGMENT_FINISHED
            }

        until(f"{self.name} to be in remote storage", tiered)

    def write(self, values: list[bytes]) -> None:
        # One record a batch: how full a segment is when it is rolled depends on the next batch.
        alone = {"batch.num.messages": 1}
        producer = Producer({"bootstrap.servers": self.stack.endpoints.kafka_bootstrap, **alone})
        for value in values:
            producer.produce(self.name, value, partition=0)
        flushed(producer, 120)

    def set_config(self, key: str, value: str) -> None:
        alter_configs(self.admin, self.name, {key: value})

    def values(self, start: int, count: int) -> list[bytes]:
        """Of so many records from ``start`` on, as a consumer of the broker gets them."""
        consumer = Consumer(
            {"bootstrap.servers": self.stack.endpoints.kafka_bootstrap, "group.id": self.name,
             "auto.offset.reset": "error"}
        )  # fmt: skip
        consumer.assign([Position(self.name, 0, start)])
        found: list[Message] = []

        def enough() -> bool:
            found.extend(consumer.consume(500, 0.2))
            return len(found) >= count

        try:
            until(f"{count} records of {self.name}", enough)
        finally:
            consumer.close()
        assert [each.error() for each in found] == [None] * len(found)
        assert [each.offset() for each in found[:count]] == list(range(start, start + count))
        return [each.value() or b"" for each in found[:count]]

    def bases(self) -> list[int]:
        return sorted(int(path.stem) for path in self.directory.glob("*.log"))

    def cut_behind_the_first_segment(self) -> None:
        for base in self.bases()[1:]:
            for path in self.directory.glob(f"{base:020d}.*"):
                path.unlink()

    def ask(self, how: Callable[[KafkaCluster], Awaitable[T]]) -> T:
        return asked_of(self.stack.endpoints.brokers.values(), how)

    def log(self) -> TopicIdPartition:
        async def find(cluster: KafkaCluster) -> TopicIdPartition:
            layout = await KafkaObserver(cluster).topic(self.name)
            if layout is None:  # it was made a moment ago
                raise KafkaError(ErrorCode.unknown_topic_or_partition, self.name)
            return TopicIdPartition(layout.topic_id, 0)

        return self.ask(find)

    def segments(self) -> tuple[RemoteSegment, ...]:
        log = self.log()
        return self.ask(lambda cluster: RemoteLogFollower(cluster).segments(log))

    def offset(self, spec: int) -> int:
        async def ask(cluster: KafkaCluster) -> int:
            answer = await KafkaObserver(cluster).offset(
                self.name, 0, spec, node=NODE, replica_id=DEBUG_CONSUMER
            )
            return answer.offset

        return self.ask(ask)

    def fetch(self, offset: int) -> bytes | ErrorCode:
        async def ask(cluster: KafkaCluster) -> bytes | ErrorCode:
            try:
                return (await LogReader(cluster).fetch(self.name, 0, offset, node=NODE)).data
            except KafkaError as error:
                return error.code

        return self.ask(ask)

    def until_led(self) -> None:
        """By its broker, which others may not count to the cluster yet."""

        def led() -> bool:
            return isinstance(told := self.fetch(0), bytes) and told != b""

        until(f"a leader of {self.name}", led)

    def delete(self) -> None:
        delete_topics(self.admin, self.name)


def test_kafka_serves_no_remote_segment_past_its_log_end_and_an_empty_leader_deletes_them(
    stack: Stack,
) -> None:
    """docs/kafka.md, Remote segments past the log end."""
    shorter, empty = Log(stack, "shorter"), Log(stack, "empty")
    for each in (shorter, empty):
        each.fill()
    with killed(stack, f"kafka-{NODE}"):
        shorter.cut_behind_the_first_segment()
        shutil.rmtree(empty.directory)
    shorter.until_led()

    end, held_to = shorter.offset(OffsetSpec.LATEST), shorter.segments()[-1].end_offset + 1
    assert 0 < end < held_to
    assert shorter.fetch(end) == b""
    for offset in (end + 1, held_to - 1):
        assert shorter.fetch(offset) is ErrorCode.offset_out_of_range
    until(
        "the leader to have looked at its segments",
        lambda: shorter.offset(OffsetSpec.LATEST_TIERED) == end - 1,
    )

    until("the empty leader to have deleted the segments", lambda: not empty.segments())
    assert empty.offset(OffsetSpec.LATEST) == 0

    gap, log = OffsetRange(end, held_to), shorter.log()
    objects = asyncio.run(shorter.inventory.objects(shorter.name, log))
    held = holders(shorter.segments(), objects)
    assert ranges(parts_of(gap, held), held=True) == (gap,)
    ids = {segment.segment_id for segment in held}
    kept = asyncio.run(shorter.inventory.keep(shorter.name, log, ids))
    assert (kept.segments, kept.copied) == (3, kept.objects)
    for each in (shorter, empty):
        each.delete()
    until(
        "the brokers to have deleted the originals",
        lambda: not asyncio.run(shorter.inventory.objects(shorter.name, log)),
    )
    copies = asyncio.run(shorter.inventory.copies(shorter.name, log))
    assert all(is_copied(objects[one], copies.get(one)) for one in ids)


def test_among_remote_segments_of_the_same_offsets_kafka_reads_those_of_its_leaders(
    stack: Stack,
) -> None:
    """Seed 000, "Tiered storage fetch is ambiguous": an offset and its leader epoch name one."""
    log = Log(stack, "overlap")
    log.fill()
    deposed = log.segments()
    with killed(stack, f"kafka-{NODE}"):
        log.cut_behind_the_first_segment()
    log.until_led()
    end, held_to = log.offset(OffsetSpec.LATEST), deposed[-1].end_offset + 1
    log.write([b"elected-%d-" % n + os.urandom(RECORD_BYTES) for n in range(RECORDS)])
    log.set_config("local.retention.bytes", "1")
    until(
        "the broker to have only its newest segment",
        lambda: log.offset(OffsetSpec.EARLIEST_LOCAL) >= held_to,
    )

    both = [
        segment
        for segment in log.segments()
        if segment.state is SegmentState.COPY_SEGMENT_FINISHED
        and segment.start_offset < held_to
        and segment.end_offset >= end
    ]
    assert {segment.segment_id for segment in both} > {s.segment_id for s in deposed[1:]}
    read = log.values(end, held_to - end)
    assert all(value.startswith(b"elected-%d-" % n) for n, value in enumerate(read))
    log.delete()
