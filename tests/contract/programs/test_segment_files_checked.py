"""Kafka's own checker, ``DumpLogSegments``, over segment files that we built.

It needs Kafka's jars and a JVM, no broker.
"""

from __future__ import annotations

import random
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

from tests.integration.dump_log import Dump, finished, start_dump
from tests.unit.kafka.segment_batches import CODECS, Built, Spec, build_all, empty, segment
from tideline.domain.ids import TopicIdPartition, topic_id_to_base64
from tideline.domain.remote_log import EpochStart, RemoteSegment, SegmentState
from tideline.kafka.remote_log_metadata import metadata_records, write_log
from tideline.kafka.segment_files import SegmentFile, offset_name
from tideline.stack.kafka_jars import ensure, libraries

NOW = 1_700_000_000_000


def random_specs(rnd: random.Random, codec: str) -> list[Spec]:
    """Batches of one codec: few and many records, small and large, some with LogAppendTime, some
    of idempotent producers whose sequences wrap; empty ones at both ends (a gap between records is
    told by the checker)."""
    following = {7_000: 0, 7_001: 2**31 - 30, 2**45: 5}
    specs = [empty(7)]
    for _ in range(40):
        timestamps = tuple(NOW + rnd.randint(0, 5_000) for _ in range(rnd.randint(1, 30)))
        producer = rnd.choice([-1, *following])
        sequence = following.get(producer, -1)
        if producer >= 0:
            following[producer] = (sequence + len(timestamps)) % 2**31
        specs.append(
            Spec(
                timestamps,
                rnd.choice([8, 200, 3_000, 20_000]),
                codec,
                producer,
                sequence,
                rnd.choice([None, None, NOW + rnd.randint(0, 6_000)]),
            )
        )
    return [*specs, empty(2_000), empty(1)]


METADATA = RemoteSegment(
    log=TopicIdPartition(UUID(int=2**100 + 5), 12),
    topic="orders.eu",
    segment_id=UUID(int=2**90 + 9),
    start_offset=1_000,
    end_offset=2_999,
    size_bytes=77_777,
    leader_epochs=(EpochStart(4, 1_000),),
    state=SegmentState.COPY_SEGMENT_FINISHED,
    max_timestamp=NOW,
    event_timestamp=NOW + 9,
    txn_index_empty=True,
)


@dataclass(frozen=True)
class Checked:
    """Segments, and what Kafka says of them; damaged ones beside them show that it would tell."""

    segments: dict[str, Built]
    deep: Dump
    sanity: Dump
    metadata: Dump
    damaged: Path


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Checked:
    ensure(libraries())
    directory = tmp_path_factory.mktemp("segments")
    rnd = random.Random(42)
    segments: dict[str, Built] = {}
    base = 1_000
    for codec in CODECS:
        for interval in (100, 4096):
            built = segment(
                directory, random_specs(rnd, codec), base_offset=base, interval=interval
            )
            segments[offset_name(base)] = built
            base = built.written.last_offset + 1
    good = [p for built in segments.values() for f, p in built.written.files.items()
            if f is not SegmentFile.LEADER_EPOCHS]  # fmt: skip
    damaged = damaged_segments(directory, base + 10_000)
    exported = directory / f"{offset_name(0)}.log"
    with exported.open("wb") as file:
        write_log(file, metadata_records(METADATA, started_at=NOW))
    running = [
        start_dump([*good, *damaged], "--deep-iteration"),
        start_dump(good, "--index-sanity-check"),
        start_dump([exported], "--remote-log-metadata-decoder"),
    ]
    deep, sanity, metadata = [finished(process) for process in running]
    return Checked(segments, deep, sanity, metadata, damaged[0].parent)


def damaged_segments(directory: Path, base: int) -> list[Path]:
    """An index that names a wrong batch, a time index with a wrong time, and a log with a gap."""
    place = directory / "damaged"
    place.mkdir()
    specs = [Spec((NOW + 10 * n,), 5_000) for n in range(6)]
    written = segment(place, specs, base_offset=base).written
    index = bytearray(written.files[SegmentFile.OFFSET_INDEX].read_bytes())
    struct.pack_into(">i", index, 0, struct.unpack_from(">i", index, 0)[0] + 1)
    written.files[SegmentFile.OFFSET_INDEX].write_bytes(index)
    times = bytearray(written.files[SegmentFile.TIME_INDEX].read_bytes())
    struct.pack_into(">q", times, 0, NOW + 3)
    written.files[SegmentFile.TIME_INDEX].write_bytes(times)
    gap = base + 1_000
    batches = build_all(specs[:1], gap) + build_all(specs[:1], gap + 5)
    (place / f"{offset_name(gap)}.log").write_bytes(b"".join(batches))
    return [
        written.files[SegmentFile.LOG],
        written.files[SegmentFile.OFFSET_INDEX],
        written.files[SegmentFile.TIME_INDEX],
        place / f"{offset_name(gap)}.log",
    ]


def test_the_checker_tells_of_a_damaged_index_time_index_and_log(checked: Checked) -> None:
    assert "Mismatches in" in checked.deep.complaints
    assert "Found timestamp mismatch in" in checked.deep.complaints
    assert "Non-consecutive offsets in" in checked.deep.complaints


def test_the_checker_finds_nothing_in_what_we_built(checked: Checked) -> None:
    named = re.findall(r"in :?(/\S+)", checked.deep.complaints)
    assert {Path(name).parent for name in named} == {checked.damaged}
    assert checked.sanity.complaints == ""


def test_every_index_passes_kafkas_sanity_check(checked: Checked) -> None:
    for name in checked.segments:
        for file in (SegmentFile.OFFSET_INDEX, SegmentFile.TIME_INDEX):
            (line,) = checked.sanity.sections[name + file]
            assert line.endswith("passed sanity check.")


def test_kafka_reads_every_record_of_every_codec(checked: Checked) -> None:
    for name, built in checked.segments.items():
        lines = checked.deep.sections[f"{name}.log"]
        batches = [line for line in lines if line.startswith("baseOffset:")]
        assert len(batches) == built.written.batches
        assert all("isvalid: true" in line for line in batches)
        offsets = [int(o) for line in lines for o in re.findall(r"^\| offset: (\d+)", line)]
        first, last = built.written.base_offset + 7, built.written.last_offset - 2_001
        assert offsets == list(range(first, last + 1))


def test_kafka_reads_the_producer_snapshot(checked: Checked) -> None:
    for name, built in checked.segments.items():
        found = [
            tuple(int(value) for value in match)
            for line in checked.deep.sections[f"{name}.snapshot"]
            for match in re.findall(
                r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) .*"
                r"lastSequence: (\d+) lastOffset: (\d+) offsetDelta: (\d+) timestamp: (\d+)",
                line,
            )
        ]
        assert len(found) == 3
        assert found == [
            (
                p.producer_id,
                p.producer_epoch,
                -1,
                p.last_sequence,
                p.last_offset,
                p.offset_delta,
                p.timestamp,
            )
            for p in built.written.producers
        ]


def test_kafka_decodes_exported_metadata(checked: Checked) -> None:
    first, second = [
        line
        for line in checked.metadata.sections[f"{offset_name(0)}.log"]
        if line.startswith("| offset:")
    ]
    log = f"{topic_id_to_base64(METADATA.log.topic_id)}:orders.eu-12"
    assert f"topicIdPartition={log}" in first
    assert f"id={topic_id_to_base64(METADATA.segment_id)}" in first
    assert "startOffset=1000, endOffset=2999" in first
    assert f"maxTimestampMs={NOW}, eventTimestampMs={NOW}" in first
    assert "segmentLeaderEpochs={4=1000}, segmentSizeInBytes=77777" in first
    assert "state=COPY_SEGMENT_STARTED, txnIdxEmpty=true" in first
    assert f"state=COPY_SEGMENT_FINISHED, eventTimestampMs={NOW + 9}" in second
    assert checked.metadata.complaints == ""
