"""What tiering leaves in the object store is what Kafka would have written: its checker finds
nothing, every record is the one that was produced, and the exported metadata says so."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from aiokafka.record import MemoryRecords
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from spark.tiering.merge_partition import MergeOrder, merge_partition
from spark.tiering.outcomes import Ended
from spark.tiering.services import FromSettings, Services
from spark.tiering.split_files import split
from tests.harness import create_topics
from tests.integration.dump_log import Dump, finished, start_dump
from tests.support.waiting import HANGS_S, flushed
from tests.unit.kafka.segment_batches import CODECS
from tideline.control_plane.tiering_model import MergedSegmentRow
from tideline.kafka.batches import iter_batches
from tideline.kafka.segment_files import SegmentFile, offset_name
from tideline.settings import JobsSettings
from tideline.stack import Stack

SEGMENT_BYTES = 100_000
INDEX_INTERVAL_BYTES = 500
RECORDS_PER_CODEC = 150


@dataclass
class Produced:
    """What producers were told of each record."""

    records: dict[int, tuple[int, bytes | None, bytes]] = field(default_factory=dict)
    """offset: (timestamp in ms, key, value)"""
    failures: list[object] = field(default_factory=list)

    def delivered(self, error: object, message: Message, key: bytes | None, value: bytes) -> None:
        offset = message.offset()
        if error is not None or offset is None:
            self.failures.append(error)
        else:
            self.records[offset] = (message.timestamp()[1], key, value)


@dataclass(frozen=True)
class Tiered:
    """A topic that was born diskless and is merged up to its end."""

    produced: Produced
    segments: list[MergedSegmentRow]
    directory: Path
    """The objects of all segments, named as on a broker's disk."""
    checked: Dump
    sanity: Dump
    metadata: Dump


def produce(bootstrap: str, topic: str) -> Produced:
    """One producer per codec, side by side: batches of one record to many, times out of order."""
    rnd, produced, now = random.Random(3), Produced(), int(time.time() * 1_000)
    producers = [
        Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": n % 2 == 0, "linger.ms": 3,
             "compression.type": codec, "batch.size": 20_000}
        )
        for n, codec in enumerate(CODECS)
    ]  # fmt: skip
    for n in range(RECORDS_PER_CODEC):
        for producer in producers:
            key = None if rnd.random() < 0.2 else b"key-%d" % n
            value = rnd.randbytes(10) * rnd.choice([0, 2, 40, 900])
            producer.produce(
                topic, value, key, partition=0, timestamp=now + rnd.randint(-90_000, 90_000),
                on_delivery=partial(produced.delivered, key=key, value=value),
            )  # fmt: skip
        if rnd.random() < 0.05:
            flushed(rnd.choice(producers), 30)
    for producer in producers:
        flushed(producer, 60)
    assert produced.failures == []
    return produced


def tier(services: Services, topic: str) -> list[MergedSegmentRow]:
    """Split and merge all of the topic."""
    plane, worker = services.plane, uuid4()
    plane.request_tiering(topic)
    while files := plane.claim_wal_files(
        worker, max_files=1_000, max_batches=10_000, claim_ms=60_000, cutoffs={}
    ):
        done = list(split(services, worker, files, time.monotonic()))
        assert {outcome.ended for outcome in done} == {Ended.DONE}
    (row,) = [row for row in plane.merge_candidates() if row.topic == topic]
    order = MergeOrder(
        topic=topic, topic_id=row.topic_id, partition=row.partition, log_id=row.log_id,
        pending_bytes=row.bytes, requested=True, limit_bytes=SEGMENT_BYTES, enough_bytes=1,
        index_interval_bytes=INDEX_INTERVAL_BYTES,
    )  # fmt: skip
    outcomes = list(merge_partition(services, worker, order, claim_ms=60_000))
    assert {outcome.ended for outcome in outcomes} == {Ended.DONE}
    return list(plane.merged_segments(row.log_id, row.log_id + 1))


@pytest.fixture(scope="module")
def tiered(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Tiered:
    bootstrap = stack.endpoints.gateway_bootstrap
    topic = f"merged-files-{time.monotonic_ns() % 1_000_000}"
    born = NewTopic(topic, 1, 1, config={"diskless.enable": "true"})
    admin = AdminClient({"bootstrap.servers": bootstrap})
    create_topics(admin, born)
    produced = produce(bootstrap, topic)
    directory = tmp_path_factory.mktemp("objects")
    settings = JobsSettings.of(stack.environment("jobs"))
    files: list[Path] = []
    with FromSettings(settings, "test-merged-files")() as services:
        segments = tier(services, topic)
        for row in segments:
            for file in SegmentFile:
                path = directory / f"{offset_name(row.base_offset)}{file}"
                path.write_bytes(
                    services.store.get(settings.s3_tiered_bucket, row.object_key_stem + file)
                )
                if file is not SegmentFile.LEADER_EPOCHS:
                    files.append(path)
    exported = tmp_path_factory.mktemp("exported") / f"{offset_name(0)}.log"
    subprocess.run(
        [sys.executable, "-m", "tideline", "export", "remote-log-metadata", topic,
         "-o", str(exported)],
        env={**os.environ, **stack.environment("jobs")}, check=True, timeout=HANGS_S,
    )  # fmt: skip
    running = [
        start_dump(files, "--deep-iteration"),
        start_dump(files, "--index-sanity-check"),
        start_dump([exported], "--remote-log-metadata-decoder"),
    ]
    checked, sanity, metadata = [finished(process) for process in running]
    return Tiered(produced, segments, directory, checked, sanity, metadata)


def test_segments_follow_each_other_from_the_first_offset_to_the_last(tiered: Tiered) -> None:
    assert len(tiered.segments) > 2
    following = 0
    for row in tiered.segments:
        assert row.base_offset == following
        following = row.last_offset + 1
    assert following == len(tiered.produced.records) == RECORDS_PER_CODEC * len(CODECS)


def test_every_record_is_the_one_that_was_produced(tiered: Tiered) -> None:
    found: dict[int, tuple[int, bytes | None, bytes]] = {}
    codecs: set[str] = set()
    for row in tiered.segments:
        log = (tiered.directory / f"{offset_name(row.base_offset)}.log").read_bytes()
        codecs |= {header.compression for header in iter_batches(log)}
        batches = MemoryRecords(log)
        while (batch := batches.next_batch()) is not None:
            for record in batch:
                key = None if record.key is None else bytes(record.key)
                found[record.offset] = (record.timestamp, key, bytes(record.value or b""))
    assert found == tiered.produced.records
    assert codecs == set(CODECS)


def test_kafkas_checker_finds_nothing(tiered: Tiered) -> None:
    assert tiered.checked.complaints == ""
    assert tiered.sanity.complaints == ""
    for row in tiered.segments:
        name = offset_name(row.base_offset)
        sizes = {
            SegmentFile.OFFSET_INDEX: row.offset_index_bytes,
            SegmentFile.TIME_INDEX: row.time_index_bytes,
        }
        for file, size in sizes.items():
            (line,) = tiered.sanity.sections[name + file]
            assert line.endswith("passed sanity check." if size else "is empty.")
        lines = tiered.checked.sections[f"{name}.log"]
        assert sum("isvalid: true" in line for line in lines) == row.batch_count
        entries = [line for line in tiered.checked.sections[f"{name}.index"] if line]
        if row.offset_index_bytes == 0:  # as Kafka's own are of a segment of one batch
            assert entries == [f"{tiered.directory / name}.index is empty."]
        else:
            assert len(entries) == row.offset_index_bytes // 8
    assert sum(row.offset_index_bytes for row in tiered.segments) > 20 * 8


def test_kafka_decodes_the_exported_metadata_of_every_segment(tiered: Tiered) -> None:
    ((_, lines),) = tiered.metadata.sections.items()
    records = [line for line in lines if line.startswith("| offset:")]
    started = [line for line in records if "RemoteLogSegmentMetadata{" in line]
    ranges = [
        (int(start), int(end), int(size))
        for line in started
        for start, end, size in re.findall(
            r"startOffset=(\d+), endOffset=(\d+),.*segmentSizeInBytes=(\d+)", line
        )
    ]
    assert ranges == [(r.base_offset, r.last_offset, r.size_bytes) for r in tiered.segments]
    assert sum("state=COPY_SEGMENT_FINISHED" in line for line in records) == len(ranges)
    assert tiered.metadata.complaints == ""
