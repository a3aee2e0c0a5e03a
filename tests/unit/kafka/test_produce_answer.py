"""The plain answer to a Produce is the one that kio would write."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from tideline.gateway.context import ApiKey
from tideline.gateway.messages import error, key_fields, messages, timestamp
from tideline.kafka.produce_answer import TOPIC_IDS_SINCE, PlainRow, plain_answer
from tideline.kafka.protocol import PRODUCE_VERSIONS, decode_response, encode_response

I64 = st.integers(-1, 2**63 - 1)
TIMES = st.integers(-1, 250_000_000_000_000)
"""ms, up to the last year that kio can say."""
ROWS = st.builds(
    PlainRow,
    st.integers(0, 2**31 - 1),
    st.sampled_from([int(code) for code in ErrorCode]),
    I64,
    TIMES,
    I64,
)
NAMES = st.text(min_size=1, max_size=300)
IDS = st.one_of(st.none(), st.uuids().filter(lambda one: one.int != 0))


def written_by_kio(
    correlation_id: int,
    version: int,
    topics: list[tuple[str | UUID | None, list[PlainRow]]],
    throttle_ms: int,
) -> bytes:
    kind = messages(ApiKey.PRODUCE, version)
    message = kind.response(
        responses=tuple(
            kind.response_part(
                "TopicProduceResponse",
                **key_fields(key),
                partition_responses=tuple(
                    kind.response_part(
                        "PartitionProduceResponse",
                        index=row.partition,
                        error_code=error(row.code),
                        base_offset=row.base_offset,
                        log_append_time=timestamp(row.append_time),
                        log_start_offset=row.log_start,
                        record_errors=(),
                        error_message=None,
                    )
                    for row in rows
                ),
            )
            for key, rows in topics
        ),
        throttle_time=timedelta(milliseconds=throttle_ms),
        node_endpoints=(),
    )
    return encode_response(message, correlation_id)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@given(data=st.data())
def test_a_plain_answer_is_what_kio_writes(version: int, data: st.DataObject) -> None:
    keys = IDS if version >= TOPIC_IDS_SINCE else NAMES
    topics = data.draw(st.lists(st.tuples(keys, st.lists(ROWS, max_size=4)), max_size=4))
    correlation_id = data.draw(st.integers(-(2**31), 2**31 - 1))
    throttle_ms = data.draw(st.integers(0, 2**31 - 1))
    frame = plain_answer(correlation_id, version, topics, throttle_ms)
    assert frame == written_by_kio(correlation_id, version, topics, throttle_ms)


@pytest.mark.parametrize(
    ("version", "many"), list(product(PRODUCE_VERSIONS, [126, 127, 128, 16_383]))
)
def test_it_may_be_of_many_partitions(version: int, many: int) -> None:
    key = UUID(int=7) if version >= TOPIC_IDS_SINCE else "a-topic"
    rows = [PlainRow(n, 0, n, -1, 0) for n in range(many)]
    frame = plain_answer(3, version, [(key, rows)], 0)
    answer = decode_response(frame, ApiKey.PRODUCE, version)
    (topic,) = answer.responses  # type: ignore[attr-defined]
    assert [row.index for row in topic.partition_responses] == list(range(many))
