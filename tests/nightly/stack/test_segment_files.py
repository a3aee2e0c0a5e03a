"""For the same batches our segment files are those that a real broker wrote, byte for byte."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness import create_topics
from tests.segment_on_disk import SegmentOnDisk, write_segment
from tests.support.waiting import flushed, until
from tests.unit.kafka.segment_batches import CODECS
from tideline.domain.remote_log import EpochStart
from tideline.kafka.batches import iter_batches
from tideline.kafka.segment_files import (
    ProducerSnapshotEntry,
    SegmentFile,
    decode_snapshot,
    encode_snapshot,
    offset_name,
)
from tideline.kafka.segment_lookup import (
    SegmentExtent,
    offset_entries,
    position_for_offset,
    time_entries,
)
from tideline.stack import Stack

MIB = 1024 * 1024


@dataclass(frozen=True)
class BrokerSegment:
    """The closed segment that a broker wrote, and the producer state that it began with."""

    directory: Path
    base_offset: int
    next_base: int

    def read(self, file: SegmentFile) -> bytes:
        return (self.directory / f"{offset_name(self.base_offset)}{file}").read_bytes()

    def producers_at(self, offset: int) -> tuple[ProducerSnapshotEntry, ...]:
        path = self.directory / f"{offset_name(offset)}{SegmentFile.SNAPSHOT}"
        return decode_snapshot(path.read_bytes()) if path.exists() else ()


@pytest.fixture(scope="module", params=["CreateTime", "LogAppendTime"])
def on_disk(stack: Stack, request: pytest.FixtureRequest) -> list[BrokerSegment]:
    """Closed segments of a classic topic: every codec, several producers, times out of order."""
    timestamps: str = request.param
    topic = f"segments-{timestamps.lower()}-{time.monotonic_ns() % 1_000_000}"
    bootstrap = stack.endpoints.kafka_bootstrap
    configs = {
        "segment.bytes": str(MIB),
        "index.interval.bytes": "1000",
        "message.timestamp.type": timestamps,
        "min.insync.replicas": "1",
    }
    admin = AdminClient({"bootstrap.servers": bootstrap})
    create_topics(admin, NewTopic(topic, 1, 1, config=configs))
    produce(bootstrap, topic)
    directory = until("the topic's directory", lambda: broker_directory(stack, topic))
    bases = sorted(int(p.stem) for p in directory.glob("*.log"))
    assert len(bases) > 3, "the log has rolled"
    return [BrokerSegment(directory, base, following) for base, following in pairwise(bases)]


def broker_directory(stack: Stack, topic: str) -> Path | None:
    for node in stack.endpoints.brokers:
        if (found := stack.data_path(f"kafka-{node}") / f"{topic}-0").is_dir():
            return found
    return None


def produce(bootstrap: str, topic: str) -> None:
    """Some 4 MiB from an idempotent producer per codec, and one without idempotence."""
    rnd = random.Random(7)
    common: dict[str, str | int | bool] = {
        "bootstrap.servers": bootstrap,
        "linger.ms": 2,
        "batch.size": 8_000,
    }
    producers = [
        Producer(common | {"enable.idempotence": True, "compression.type": codec})
        for codec in CODECS
    ]
    producers.append(Producer(common | {"acks": "all"}))
    now = int(time.time() * 1_000)
    size = failed = 0

    def delivered(error: object, _: object) -> None:
        nonlocal failed
        failed += error is not None

    while size < 4 * MIB:
        for producer in producers:
            for _ in range(rnd.randint(1, 12)):
                value = rnd.randbytes(rnd.choice([10, 200, 2_000, 9_000]))
                size += len(value)
                producer.produce(
                    topic,
                    value,
                    partition=0,
                    timestamp=now - rnd.randint(0, 60_000),
                    on_delivery=delivered,
                )
        # Side by side, so that batches of all of them lie between each other.
        for producer in producers:
            flushed(producer, 60)
    assert not failed


def rebuilt(source: BrokerSegment, directory: Path) -> SegmentOnDisk:
    return write_segment(
        directory,
        [source.read(SegmentFile.LOG)],
        base_offset=source.base_offset,
        leader_epoch=0,
        index_interval_bytes=1_000,
        producers=source.producers_at(source.base_offset),
        lineage=[EpochStart(0, 0)],
    )


def test_our_files_are_the_brokers_byte_for_byte(
    on_disk: list[BrokerSegment], tmp_path: Path
) -> None:
    for source in on_disk:
        ours = rebuilt(source, tmp_path)
        assert ours.last_offset == source.next_base - 1
        for file in (SegmentFile.LOG, SegmentFile.OFFSET_INDEX, SegmentFile.TIME_INDEX):
            assert ours.files[file].read_bytes() == source.read(file), (source.base_offset, file)
        assert ours.batches > 100
        assert ours.sizes[SegmentFile.OFFSET_INDEX] > 50 * 8


def test_our_producer_snapshot_is_the_brokers(on_disk: list[BrokerSegment], tmp_path: Path) -> None:
    for source in on_disk:
        kafkas = source.producers_at(source.next_base)
        ours = {entry.producer_id: entry for entry in rebuilt(source, tmp_path).producers}
        assert len(kafkas) == len(CODECS), "one entry per idempotent producer"
        assert {entry.producer_id: entry for entry in kafkas} == ours
        in_kafkas_order = encode_snapshot(ours[entry.producer_id] for entry in kafkas)
        snapshot = source.directory / f"{offset_name(source.next_base)}{SegmentFile.SNAPSHOT}"
        assert in_kafkas_order == snapshot.read_bytes()


def test_our_checkpoint_is_the_brokers(on_disk: list[BrokerSegment], tmp_path: Path) -> None:
    ours = rebuilt(on_disk[0], tmp_path).files[SegmentFile.LEADER_EPOCHS].read_bytes()
    assert ours == (on_disk[0].directory / "leader-epoch-checkpoint").read_bytes()


def test_a_brokers_own_indexes_are_read(on_disk: list[BrokerSegment]) -> None:
    for source in on_disk:
        log = source.read(SegmentFile.LOG)
        extent = SegmentExtent(source.base_offset, source.next_base - 1, len(log))
        index = source.read(SegmentFile.OFFSET_INDEX)
        positions = {header.position: header for header in iter_batches(log)}
        for entry in offset_entries(index, extent):
            assert positions[entry.position].last_offset == entry.offset
        for header in positions.values():
            assert position_for_offset(index, extent, header.last_offset) <= header.position
        times = list(time_entries(source.read(SegmentFile.TIME_INDEX), extent))
        assert times[-1].timestamp == max(header.max_timestamp for header in positions.values())
