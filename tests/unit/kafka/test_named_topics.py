"""The walk over a request's topics says what decoding says, or nothing."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kafka.damage import damaged
from tests.unit.kafka.messages import random_message
from tideline.kafka.named_topics import MOST_WALKED, named_topics
from tideline.kafka.protocol import (
    RequestHeader,
    decodable_versions,
    decode_request,
    encode_request,
    parse_header,
    request_class,
)

APIS = (0, 1, 2, 3, 23)
VERSIONS = [(key, version) for key in APIS for version in decodable_versions(key) if version]
ARRAYS = {0: "topic_data", 1: "topics", 2: "topics", 3: "topics", 23: "topics"}


def keys_of(request: Any, api_key: int) -> list[object]:
    """How the handlers name the topics of a decoded request."""
    found: list[object] = []
    for topic in getattr(request, ARRAYS[api_key]):
        if api_key == 3:
            named = topic.name
            found.append(named if named is not None else getattr(topic, "topic_id", None))
            continue
        names = [n for n in ("topic_id", "name", "topic") if hasattr(topic, n)]
        found.append(getattr(topic, names[0]))
    return found


def request_of(key: int, version: int, seed: int) -> Any:
    """A random request as clients write them: without tagged fields."""
    schema = request_class(key, version)
    assert schema is not None
    return untagged(random_message(schema, random.Random(seed)))


def untagged(message: Any) -> Any:
    """The same with the defaults in the place of tagged fields, all the way down."""
    changes: dict[str, Any] = {}
    for field in fields(message):
        value = getattr(message, field.name)
        if "tag" in field.metadata:
            changes[field.name] = field.default
        elif isinstance(value, tuple) and value and hasattr(value[0], "__dataclass_fields__"):
            changes[field.name] = tuple(map(untagged, value))
    return replace(message, **changes)


@settings(max_examples=200)
@given(st.sampled_from(VERSIONS), st.integers(0, 2**32))
def test_a_request_as_clients_write_it_is_walked_as_it_is_decoded(
    api: tuple[int, int], seed: int
) -> None:
    key, version = api
    request = request_of(key, version, seed)
    frame = encode_request(request, 7, "client")
    named = named_topics(frame, parse_header(frame))
    if key == 3 and not request.topics:
        assert named is None, "all topics, or none"
        return
    assert named is not None
    assert named.keys == keys_of(request, key)
    if key == 1:
        asked = getattr(request, "session_id", 0), getattr(request, "session_epoch", -1)
        assert (named.session_id, named.session_epoch) == asked


def says_the_same(frame: bytes, header: RequestHeader) -> bool:
    """If the walk says something of a frame, decoding takes it and says that, too."""
    named = named_topics(frame, header)
    if named is None:
        return False
    request: Any = decode_request(frame, header)
    assert named.keys == keys_of(request, header.api_key)
    if header.api_key == 1:
        asked = getattr(request, "session_id", 0), getattr(request, "session_epoch", -1)
        assert (named.session_id, named.session_epoch) == asked
    return True


@settings(max_examples=500)
@given(st.sampled_from(VERSIONS), st.integers(0, 2**32), st.data())
def test_of_a_damaged_request_nothing_is_said_that_decoding_does_not_say(
    api: tuple[int, int], seed: int, data: st.DataObject
) -> None:
    schema = request_class(*api)
    assert schema is not None
    message = random_message(schema, random.Random(seed))
    frame = damaged(encode_request(message, 7, "client"), data)
    says_the_same(frame, parse_header(frame))


@settings(max_examples=300)
@given(st.sampled_from(VERSIONS), st.binary(max_size=120))
def test_of_random_bytes_nothing_is_said_that_decoding_does_not_say(
    api: tuple[int, int], body: bytes
) -> None:
    key, version = api
    frame = key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\7\0\1c" + body
    says_the_same(frame, parse_header(frame))


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_a_count_that_the_frame_does_not_hold_allocates_nothing(key: int, version: int) -> None:
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\7\0\1c"
    tracemalloc.start()
    try:
        for filling in (b"\x7f", b"\xff", b"\xfe\xff\xff\xff\x07", b"\0"):
            for size in (0, 1, 40, 400):
                for front in range(24):
                    frame = head + bytes(front) + filling * size
                    says_the_same(frame, parse_header(frame))
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("version", [12, 13])
def test_more_topics_than_may_be_walked_at_once_are_left_to_decoding(version: int) -> None:
    schema: Any = request_class(1, version)
    seeds = random.Random(1)
    request = untagged(random_message(schema, seeds))
    while not request.topics:
        request = untagged(random_message(schema, seeds))
    for count, walked in ((MOST_WALKED, True), (MOST_WALKED + 1, False)):
        topics = (request.topics[0],) * count
        frame = encode_request(replace(request, topics=topics), 7, "client")
        assert (named_topics(frame, parse_header(frame)) is not None) is walked


def test_the_id_of_no_topic_is_none() -> None:
    seeds = random.Random(1)
    schema: Any = request_class(0, 13)
    request = untagged(random_message(schema, seeds))
    while not request.topic_data:
        request = untagged(random_message(schema, seeds))
    topic = replace(request.topic_data[0], topic_id=None)
    frame = encode_request(replace(request, topic_data=(topic,)), 7, "client")
    named = named_topics(frame, parse_header(frame))
    assert named is not None
    assert named.keys == [None]
