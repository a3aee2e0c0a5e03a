"""The plain answer to a Fetch is the one that kio would write."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from tideline.gateway.context import ApiKey
from tideline.gateway.fetch.partition import as_structure
from tideline.gateway.messages import error, key_fields, messages
from tideline.kafka.fetch_answer import TOPIC_IDS_SINCE, PlainPartition, plain_answer
from tideline.kafka.protocol import decodable_versions, decode_response, encode_response

VERSIONS = [version for version in decodable_versions(ApiKey.FETCH) if version >= 4]
I64 = st.integers(-1, 2**63 - 1)
ROWS = st.builds(
    PlainPartition,
    st.integers(0, 2**31 - 1),
    st.sampled_from([int(code) for code in ErrorCode]),
    I64,
    I64,
    I64,
    st.integers(-1, 2**31 - 1),
    st.binary(max_size=200),
)
NAMES = st.text(min_size=1, max_size=300)
IDS = st.one_of(st.none(), st.uuids().filter(lambda one: one.int != 0))


def written_by_kio(
    correlation_id: int,
    version: int,
    topics: list[tuple[str | UUID | None, list[PlainPartition]]],
    throttle_ms: int,
    code: int,
    session_id: int,
) -> bytes:
    kind = messages(ApiKey.FETCH, version)
    message = kind.response(
        throttle_time=timedelta(milliseconds=throttle_ms),
        error_code=error(code),
        session_id=session_id,
        responses=tuple(
            kind.response_part(
                "FetchableTopicResponse",
                **key_fields(key),
                partitions=tuple(as_structure(row, kind) for row in rows),
            )
            for key, rows in topics
        ),
        node_endpoints=(),
    )
    return encode_response(message, correlation_id)


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_a_plain_answer_is_what_kio_writes(version: int, data: st.DataObject) -> None:
    keys: Any = IDS if version >= TOPIC_IDS_SINCE else NAMES
    topics = data.draw(st.lists(st.tuples(keys, st.lists(ROWS, max_size=4)), max_size=4))
    correlation_id = data.draw(st.integers(-(2**31), 2**31 - 1))
    throttle_ms = data.draw(st.integers(0, 2**31 - 1))
    code, session_id = data.draw(st.tuples(st.sampled_from([0, 70, 71]), st.integers(0, 2**31 - 1)))
    frame = plain_answer(
        correlation_id, version, topics, throttle_ms=throttle_ms, code=code, session_id=session_id
    )
    assert frame == written_by_kio(correlation_id, version, topics, throttle_ms, code, session_id)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [0, 126, 127, 128, 16_383, 2_100_000])
def test_records_may_be_of_any_length_and_lie_in_any_buffer(version: int, size: int) -> None:
    key = UUID(int=7) if version >= TOPIC_IDS_SINCE else "a-topic"
    row = PlainPartition(3, 0, 9, 9, 0, -1, memoryview(bytes(size)))
    frame = plain_answer(5, version, [(key, [row])], throttle_ms=0, code=0, session_id=0)
    answer: Any = decode_response(frame, ApiKey.FETCH, version)
    ((told,),) = (topic.partitions for topic in answer.responses)
    assert told.records == bytes(size)
