"""The broker's own metadata records decode; anything malformed is an error, never a guess."""

from __future__ import annotations

import contextlib
import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import (
    EpochStart,
    PartitionDelete,
    PartitionDeleteState,
    RemoteSegment,
    SegmentState,
    SegmentUpdate,
)
from tideline.kafka.remote_log_metadata import MalformedMetadata, NotUnderstood, UnknownKind, decode

LOG = TopicIdPartition(UUID(int=7), 3)
SEGMENT = UUID(int=9)
NO_TAGS = b"\0"


def log() -> bytes:
    return b"\x07orders" + LOG.topic_id.bytes + struct.pack(">i", LOG.partition) + NO_TAGS


def segment_id() -> bytes:
    return log() + SEGMENT.bytes + NO_TAGS


def segment(*, state: int = 0, tags: bytes = NO_TAGS, custom: bytes = b"\0") -> bytes:
    epochs = b"\x03" + b"".join(struct.pack(">iq", *e) + NO_TAGS for e in ((2, 10), (4, 15)))
    fixed = struct.pack(">qqiqq", 10, 19, 1, 1_700, 1_800)
    size = struct.pack(">i", 4_096)
    return (
        b"\x01\x00\x00"
        + segment_id()
        + fixed
        + epochs
        + size
        + custom
        + struct.pack(">b", state)
        + tags
    )


def test_a_segments_metadata_is_read_whole() -> None:
    assert decode(segment()) == RemoteSegment(
        log=LOG,
        topic="orders",
        segment_id=SEGMENT,
        start_offset=10,
        end_offset=19,
        size_bytes=4_096,
        leader_epochs=(EpochStart(2, 10), EpochStart(4, 15)),
        state=SegmentState.COPY_SEGMENT_STARTED,
        broker_id=1,
        max_timestamp=1_700,
        event_timestamp=1_800,
        txn_index_empty=False,
    )


def test_the_tag_tells_that_there_is_no_transaction_index() -> None:
    found = decode(segment(tags=b"\x01\x00\x01\x01"))
    assert isinstance(found, RemoteSegment)
    assert found.txn_index_empty


def test_a_storage_managers_own_metadata_is_passed_over() -> None:
    assert decode(segment(custom=b"\x04abc")) == decode(segment())


def test_an_unknown_tag_of_a_newer_broker_is_passed_over() -> None:
    assert decode(segment(tags=b"\x01\x09\x02zz")) == decode(segment())


def test_an_update_changes_the_state() -> None:
    value = (
        b"\x01\x01\x00"
        + segment_id()
        + struct.pack(">iq", 1, 1_900)
        + b"\0"
        + struct.pack(">b", 1)
        + NO_TAGS
    )
    assert decode(value) == SegmentUpdate(
        LOG, SEGMENT, SegmentState.COPY_SEGMENT_FINISHED, 1, 1_900
    )


def test_a_partitions_deletion_is_read() -> None:
    value = b"\x01\x02\x00" + log() + struct.pack(">iq", 1, 1_900) + b"\x02" + NO_TAGS
    assert decode(value) == PartitionDelete(
        LOG, PartitionDeleteState.DELETE_PARTITION_FINISHED, 1_900
    )


def test_an_api_key_of_a_newer_kafka_is_told_from_what_is_malformed() -> None:
    with pytest.raises(UnknownKind, match="api key 9") as raised:
        decode(b"\x01\x09\x00whatever")
    assert raised.value.topic_id is None, "nobody knows where it says whom it concerns"


def test_what_is_malformed_tells_whom_it_concerns_where_that_can_be_read() -> None:
    for value, topic_id in (
        (segment(state=9), LOG.topic_id),
        (segment()[:40], LOG.topic_id),
        (segment()[:20], None),
        (b"\1\0\1" + segment()[3:], None),
    ):
        with pytest.raises(MalformedMetadata) as raised:
            decode(value)
        assert raised.value.topic_id == topic_id


def test_a_state_that_kafka_does_not_have_is_refused() -> None:
    with pytest.raises(MalformedMetadata):
        decode(segment(state=9))


@given(st.integers(0, len(segment()) - 1))
def test_a_value_that_is_cut_short_is_refused(length: int) -> None:
    with pytest.raises(MalformedMetadata):
        decode(segment()[:length])


@given(st.binary(max_size=200))
def test_no_bytes_do_worse_than_an_error(value: bytes) -> None:
    with contextlib.suppress(NotUnderstood):
        decode(value)
