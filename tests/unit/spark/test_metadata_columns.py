"""Decoding by columns says what decoding one by one says, whatever the bytes are."""

from __future__ import annotations

import asyncio
import struct
from contextlib import nullcontext
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark.common.metadata_columns import columns_of
from spark.common.metadata_records import MALFORMED, UNKNOWN, MetadataRecord, decoded
from spark.common.rows import to_batch
from tests.unit.kafka.metadata_topic import MetadataTopic
from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import EpochStart, RemoteSegment, SegmentState, SegmentUpdate
from tideline.kafka.errors import MetadataNotUnderstood
from tideline.kafka.remote_log_metadata import encode_segment, encode_update
from tideline.kafka.varints import uvarint

TOPICS = [UUID(int=n) for n in range(1, 4)]
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
NAMES = st.one_of(
    st.text("abc.-_", min_size=1, max_size=8),
    st.text("x", min_size=120, max_size=249),
    st.text(min_size=1, max_size=4),
)
LOGS = st.builds(TopicIdPartition, st.sampled_from(TOPICS), st.integers(0, 3))
EPOCHS = st.lists(st.builds(EpochStart, INT32, INT64), min_size=1, max_size=4)
SEGMENTS = st.builds(
    RemoteSegment, LOGS, NAMES, st.uuids(), INT64, INT64, INT32, EPOCHS.map(tuple),
    st.sampled_from(SegmentState), INT32, INT64, INT64, st.booleans(),
).map(encode_segment)  # fmt: skip
UPDATES = st.builds(
    encode_update,
    NAMES,
    st.builds(
        SegmentUpdate, LOGS, st.uuids(), st.sampled_from(SegmentState), INT32, INT64
    ),
)  # fmt: skip


@st.composite
def deletions(draw: st.DrawFn) -> bytes:
    name, log = draw(NAMES).encode(), draw(LOGS)
    head = b"\1\2\0" + uvarint(len(name) + 1) + name + log.topic_id.bytes
    rest = struct.pack(">i", log.partition) + b"\0" + struct.pack(">iq", 1, draw(INT64))
    return head + rest + bytes((draw(st.integers(0, 3)),)) + b"\0"


@st.composite
def with_custom_metadata(draw: st.DrawFn) -> bytes:
    """What a storage manager that keeps notes of its own makes of an update."""
    value = draw(UPDATES)
    custom = draw(st.binary(max_size=130))
    return value[:-3] + uvarint(len(custom) + 1) + custom + value[-2:]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    value = bytearray(draw(st.one_of(SEGMENTS, UPDATES, deletions())))
    for _ in range(draw(st.integers(1, 3))):
        value[draw(st.integers(0, len(value) - 1))] = draw(st.integers(0, 255))
    at = draw(st.integers(0, len(value)))
    return bytes(draw(st.sampled_from([value, value[:at], value + value[:at]])))


VALUES = st.lists(
    st.one_of(
        SEGMENTS, SEGMENTS, UPDATES, UPDATES, deletions(), with_custom_metadata(), damaged(),
        st.binary(max_size=40), st.none(), st.just(b"\1\x09\0new"),
    ),
    max_size=30,
)  # fmt: skip


def one_by_one(values: list[bytes | None], topics: frozenset[bytes] | None) -> pa.RecordBatch:
    found = [decoded(7, 3 * n, value) for n, value in enumerate(values)]
    return to_batch(
        MetadataRecord,
        [
            record
            for record in found
            if record is not None
            and (topics is None or record.topic_id is None or record.topic_id.bytes in topics)
        ],
    )


@given(VALUES)
@settings(max_examples=400, deadline=None)
@example([b""])
@example([b"\1\0\0\2x" + bytes(40)])
def test_all_columns_are_the_judges(values: list[bytes | None]) -> None:
    offsets = [3 * n for n in range(len(values))]
    assert columns_of(7, offsets, values).to_pylist() == one_by_one(values, None).to_pylist()


@given(st.lists(st.one_of(SEGMENTS, UPDATES, deletions(), st.none()), max_size=30),
       st.sets(st.sampled_from([topic.bytes for topic in TOPICS])))  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_records_of_other_topics_are_dropped(
    values: list[bytes | None], topics: set[bytes]
) -> None:
    wanted = frozenset(topics)
    offsets = [3 * n for n in range(len(values))]
    found = columns_of(7, offsets, values, wanted).to_pylist()
    expected = one_by_one(values, wanted).to_pylist()
    assert [row for row in found if row["kind"] >= 0] == [r for r in expected if r["kind"] >= 0]


def test_what_is_not_understood_stays_although_other_topics_are_dropped() -> None:
    values: list[bytes | None] = [b"\1\x09\0new", b"\7", b"\1\0\1" + bytes(90), b"\1\1\0"]
    kinds = columns_of(0, range(4), values, frozenset([TOPICS[0].bytes]))["kind"].to_pylist()
    assert kinds == [UNKNOWN, MALFORMED, MALFORMED, MALFORMED]


@given(VALUES, st.sampled_from(TOPICS))
@settings(max_examples=200, deadline=None)
@example([b"\1\x09\0new"], TOPICS[0])
def test_what_stops_a_job_that_asks_for_a_topic_stops_a_worker_that_follows_it(
    values: list[bytes | None], topic: UUID
) -> None:
    wanted = frozenset([topic.bytes])
    found = columns_of(0, range(len(values)), values, wanted)
    stops = [row["record_offset"] for row in found.to_pylist() if row["kind"] < 0]
    metadata = MetadataTopic()
    for value in values:
        metadata.add(0, value)
    with (
        pytest.raises(MetadataNotUnderstood, match=f"partition 0 at offset {stops[0]} ")
        if stops
        else nullcontext()
    ):
        asyncio.run(metadata.follower().once([topic]))
