"""A Produce that is walked says what decoding says, or nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kafka.damage import damaged
from tests.unit.kafka.messages import random_message
from tests.unit.kafka.test_named_topics import untagged
from tideline.kafka.named_topics import MOST_WALKED, MOST_WALKED_BYTES, walked_produce
from tideline.kafka.protocol import (
    PRODUCE_VERSIONS,
    RequestHeader,
    decode_request,
    encode_request,
    parse_header,
    request_class,
)

VERSIONS = list(PRODUCE_VERSIONS)


def said_by(request: Any) -> tuple[int, list[Any]]:
    """Acks, and the topics as a walk has them."""
    return int(request.acks), [
        (
            topic.topic_id if hasattr(topic, "topic_id") else topic.name,
            [(int(row.index), row.records) for row in topic.partition_data],
        )
        for topic in request.topic_data
    ]


def says_the_same(frame: bytes, header: RequestHeader) -> bool:
    """If the walk says something of a frame, decoding takes it and says that, too."""
    walked = walked_produce(frame, header)
    if walked is None:
        return False
    assert (walked.acks, walked.topics) == said_by(decode_request(frame, header))
    return True


def request_of(version: int, seed: int) -> Any:
    schema = request_class(0, version)
    assert schema is not None
    return untagged(random_message(schema, random.Random(seed)))


@settings(max_examples=300)
@given(st.sampled_from(VERSIONS), st.integers(0, 2**32))
def test_a_request_without_a_transaction_is_walked_as_it_is_decoded(
    version: int, seed: int
) -> None:
    request = replace(request_of(version, seed), transactional_id=None)
    frame = encode_request(request, 7, "client")
    rows = [row for topic in request.topic_data for row in topic.partition_data]
    whole = all(row.records is not None for row in rows)
    assert says_the_same(frame, parse_header(frame)) is whole


@settings(max_examples=500)
@given(st.sampled_from(VERSIONS), st.integers(0, 2**32), st.data())
def test_of_a_damaged_request_nothing_is_said_that_decoding_does_not_say(
    version: int, seed: int, data: st.DataObject
) -> None:
    frame = damaged(encode_request(request_of(version, seed), 7, "client"), data)
    says_the_same(frame, parse_header(frame))


@settings(max_examples=300)
@given(st.sampled_from(VERSIONS), st.binary(max_size=120))
def test_of_random_bytes_nothing_is_said_that_decoding_does_not_say(
    version: int, body: bytes
) -> None:
    frame = b"\0\0" + version.to_bytes(2, "big") + b"\0\0\0\7\0\1c" + body
    says_the_same(frame, parse_header(frame))


@pytest.mark.parametrize("version", [8, 12])
def test_of_large_requests_nothing_is_copied(version: int) -> None:
    """They go the way on which they are decoded, which copies their records."""
    request = replace(request_of(version, 3), transactional_id=None)
    assert request.topic_data[0].partition_data, "the seed has to make one"
    topic = request.topic_data[0]
    row = replace(topic.partition_data[0], records=bytes(MOST_WALKED_BYTES // 2))
    more = replace(row, records=b"x")
    for rows, walked in (((row, row), True), ((row, row, more), False)):
        large = replace(topic, partition_data=rows)
        frame = encode_request(replace(request, topic_data=(large,)), 7, "client")
        assert (walked_produce(frame, parse_header(frame)) is not None) is walked


@pytest.mark.parametrize("version", [8, 12])
def test_a_request_of_a_transaction_is_decoded(version: int) -> None:
    request = replace(request_of(version, 1), transactional_id="a transaction")
    frame = encode_request(request, 7, "client")
    assert walked_produce(frame, parse_header(frame)) is None


@pytest.mark.parametrize("version", [8, 12])
def test_more_partitions_than_may_be_walked_at_once_are_decoded(version: int) -> None:
    request = replace(request_of(version, 3), transactional_id=None)
    assert request.topic_data[0].partition_data, "the seed has to make one"
    topic = request.topic_data[0]
    row = replace(topic.partition_data[0], records=b"")
    for count, walked in ((MOST_WALKED - 1, True), (MOST_WALKED, False)):
        many = replace(topic, partition_data=(row,) * count)
        frame = encode_request(replace(request, topic_data=(many,)), 7, "client")
        assert (walked_produce(frame, parse_header(frame)) is not None) is walked
