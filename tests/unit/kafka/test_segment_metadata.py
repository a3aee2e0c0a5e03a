"""Segments go out as Kafka's own metadata records and come back the same."""

from __future__ import annotations

import io
import struct
from dataclasses import replace
from uuid import UUID

import pytest
from aiokafka.record import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import (
    EpochStart,
    RemoteLogIndex,
    RemoteSegment,
    SegmentState,
    SegmentUpdate,
)
from tideline.kafka.batches import iter_batches, verify_crc
from tideline.kafka.remote_log_metadata import (
    RECORDS_PER_BATCH,
    decode,
    encode_segment,
    encode_update,
    metadata_records,
    write_log,
)

longs = st.integers(-1, 2**63 - 1)
ints = st.integers(-1, 2**31 - 1)
uuids = st.uuids()
logs = st.builds(TopicIdPartition, uuids, st.integers(0, 10_000))
topics = st.text("abcXYZ0123._-", min_size=1, max_size=249)
states = st.sampled_from(SegmentState)
segments = st.builds(
    RemoteSegment,
    log=logs,
    topic=topics,
    segment_id=uuids,
    start_offset=longs,
    end_offset=longs,
    size_bytes=ints,
    leader_epochs=st.dictionaries(ints, longs, min_size=1, max_size=200).map(
        lambda epochs: tuple(EpochStart(*entry) for entry in sorted(epochs.items()))
    ),
    state=states,
    broker_id=ints,
    max_timestamp=longs,
    event_timestamp=longs,
    txn_index_empty=st.booleans(),
)

SEGMENT = RemoteSegment(
    log=TopicIdPartition(UUID(int=7), 3),
    topic="orders",
    segment_id=UUID(int=9),
    start_offset=10,
    end_offset=19,
    size_bytes=4_096,
    leader_epochs=(EpochStart(2, 10),),
    state=SegmentState.COPY_SEGMENT_FINISHED,
    max_timestamp=1_700,
    event_timestamp=1_900,
    txn_index_empty=True,
)


@given(segments)
def test_a_segment_comes_back_as_it_went_out(segment: RemoteSegment) -> None:
    assert decode(encode_segment(segment)) == segment


@given(topics, st.builds(SegmentUpdate, logs, uuids, states, ints, longs))
def test_an_update_comes_back_as_it_went_out(topic: str, update: SegmentUpdate) -> None:
    assert decode(encode_update(topic, update)) == update


def test_the_bytes_are_kafkas() -> None:
    log = b"\x07orders" + SEGMENT.log.topic_id.bytes + struct.pack(">i", 3) + b"\0"
    assert encode_segment(SEGMENT) == (
        b"\x01\x00\x00"
        + log
        + SEGMENT.segment_id.bytes
        + b"\0"
        + struct.pack(">qqiqq", 10, 19, -1, 1_700, 1_900)
        + b"\x02"
        + struct.pack(">iq", 2, 10)
        + b"\0"
        + struct.pack(">i", 4_096)
        + b"\0"
        + b"\x01"
        + b"\x01\x00\x01\x01"
    )


def test_a_segment_without_an_epoch_is_refused() -> None:
    with pytest.raises(ValueError, match="has no leader epoch"):
        encode_segment(replace(SEGMENT, leader_epochs=()))


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=str(SEGMENT.segment_id)):
        encode_segment(replace(SEGMENT, size_bytes=2**31))


@given(segments)
def test_folding_the_records_gives_the_segment(segment: RemoteSegment) -> None:
    index = RemoteLogIndex()
    for record in metadata_records(segment, started_at=1_000):
        event = decode(record.value)
        assert event is not None
        index.apply(event)
    expected = () if segment.state is SegmentState.DELETE_SEGMENT_FINISHED else (segment,)
    if segment.state is SegmentState.COPY_SEGMENT_STARTED:
        expected = (replace(segment, event_timestamp=1_000),)
    assert index.of(segment.log) == expected


def test_a_log_of_many_records_has_consecutive_offsets_and_right_checksums() -> None:
    count = RECORDS_PER_BATCH + 3
    records = [r for _ in range(count) for r in metadata_records(SEGMENT, started_at=1_800)]
    file = io.BytesIO()
    assert write_log(file, records) == 2 * count
    data = file.getvalue()
    assert all(verify_crc(data, header) for header in iter_batches(data))
    found, batches = [], MemoryRecords(data)
    while (batch := batches.next_batch()) is not None:
        found += [(r.offset, r.timestamp, r.key, bytes(r.value)) for r in batch]
    assert found == [(n, r.event_timestamp, None, r.value) for n, r in enumerate(records)]
