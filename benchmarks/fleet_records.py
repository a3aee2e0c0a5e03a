"""Records of ``__remote_log_metadata`` for many segments, by several processes.

The records of one log differ from segment to segment in its id and its offsets alone: one is
encoded by the codec, and those bytes are put in its place.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from confluent_kafka import Producer

from benchmarks.fleet_objects import segment_id
from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import EpochStart, RemoteSegment, SegmentState
from tideline.kafka import remote_log_metadata as codec

STARTED_AT = 1
_RANGE = struct.Struct(">qq")
_WAIT_S = 300
PRODUCER: Mapping[str, Any] = {
    "linger.ms": 50,
    "acks": "all",
    "batch.size": 900_000,
    "queue.buffering.max.messages": 500_000,
}


def segment(
    topic: str, log: TopicIdPartition, number: int, records: int, at_ms: int
) -> RemoteSegment:
    """The segment ``number`` of a log, copied at ``at_ms``: one byte in S3."""
    start = number * records
    return RemoteSegment(
        log, topic, segment_id(log.topic_id, log.partition, number), start,
        start + records - 1, 1, (EpochStart(0, 0),), SegmentState.COPY_SEGMENT_FINISHED, 1, at_ms,
        at_ms,
        True,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Template:
    """The values of a log's records: registration and change of state."""

    before_id: bytes
    before_range: bytes
    behind: bytes
    change_before_id: bytes
    change_behind: bytes

    @classmethod
    def of(cls, one: RemoteSegment) -> Template:
        """As those of ``one``."""
        registered, changed = (
            record.value for record in codec.metadata_records(one, started_at=STARTED_AT)
        )
        wanted, offsets = one.segment_id.bytes, _RANGE.pack(one.start_offset, one.end_offset)
        before_id, rest = registered.split(wanted, 1)
        before_range, behind = rest.split(offsets, 1)
        return cls(before_id, before_range, behind, *changed.split(wanted, 1))

    def values(self, wanted: bytes, start: int, end: int) -> tuple[bytes, bytes]:
        offsets = _RANGE.pack(start, end)
        return (
            self.before_id + wanted + self.before_range + offsets + self.behind,
            self.change_before_id + wanted + self.change_behind,
        )


@dataclass(frozen=True, slots=True)
class Announced:
    """Segments 0 to ``segments`` (exclusive) of one log. ``place``: where their records go."""

    topic: str
    log: TopicIdPartition
    place: int


@dataclass(frozen=True, slots=True)
class Announcement:
    """``bootstrap``: of Kafka; ``records``: offsets of a segment; ``at_ms``: of their copies."""

    bootstrap: str
    segments: int
    records: int
    at_ms: int

    def make(self, logs: Sequence[Announced]) -> None:
        """Brokers write as time goes on: the records of logs lie between each other."""
        processes = min(os.cpu_count() or 1, len(logs))
        parts = [logs[number::processes] for number in range(processes)]
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            list(pool.map(self.write, parts))

    def write(self, logs: Sequence[Announced]) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, **PRODUCER})
        some = [
            (
                Template.of(segment(one.topic, one.log, 1, self.records, self.at_ms)),
                one.log.topic_id,
                one.log.partition,
                one.place,
            )
            for one in logs
        ]
        for number in range(self.segments):
            start = number * self.records
            for template, topic_id, partition, place in some:
                wanted = segment_id(topic_id, partition, number).bytes
                for value in template.values(wanted, start, start + self.records - 1):
                    _send(producer, value, place)
            producer.poll(0)
        flush(producer)


def announce(producer: Producer, segments: Iterable[RemoteSegment], places: int) -> None:
    """Some more, by the codec itself."""
    for one in segments:
        for record in codec.metadata_records(one, started_at=STARTED_AT):
            _send(producer, record.value, place_of(one.log, places))
    flush(producer)


def place_of(log: TopicIdPartition, places: int) -> int:
    """The metadata partition of a log."""
    return hash((log.topic_id.int, log.partition)) % places


def flush(producer: Producer) -> None:
    if left := producer.flush(_WAIT_S):
        raise RuntimeError(f"{left} records are not written")


def _send(producer: Producer, value: bytes, place: int) -> None:
    while True:
        try:
            producer.produce(codec.TOPIC, value, partition=place)
            return
        except BufferError:
            producer.poll(0.1)
