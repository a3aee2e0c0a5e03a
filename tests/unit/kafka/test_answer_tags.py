"""That an answer names no nodes is found by walking it as surely as by its schema."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kafka.messages import random_message
from tests.unit.kafka.test_named_topics import untagged
from tideline.kafka.answer_tags import fetch_answer_has_tags, produce_answer_has_tags
from tideline.kafka.errors import MalformedFrame
from tideline.kafka.protocol import encode_response, response_class, response_has_tags

WALKS = {0: produce_answer_has_tags, 1: fetch_answer_has_tags}
VERSIONS = [(0, v) for v in range(10, 14)] + [(1, v) for v in range(16, 19)]


def found(walk: Any, *arguments: object) -> bool | str:
    try:
        return bool(walk(*arguments))
    except MalformedFrame:
        return "refused"


def answer_of(key: int, version: int, seed: int, tagged: bool) -> bytes:
    schema: Any = response_class(key, version)
    message = random_message(schema, random.Random(seed))
    return encode_response(message if tagged else untagged(message), 7)


@settings(max_examples=300)
@given(st.sampled_from(VERSIONS), st.integers(0, 2**32), st.booleans())
def test_the_walk_finds_what_the_schema_finds(
    api: tuple[int, int], seed: int, tagged: bool
) -> None:
    key, version = api
    frame = answer_of(key, version, seed, tagged)
    expected = response_has_tags(frame, key, version)
    assert WALKS[key](frame, version) is expected
    assert tagged or not expected


@settings(max_examples=400)
@given(st.sampled_from(VERSIONS), st.integers(0, 2**32), st.data())
def test_a_damaged_answer_is_told_from_others_as_by_the_schema(
    api: tuple[int, int], seed: int, data: st.DataObject
) -> None:
    key, version = api
    frame = bytearray(answer_of(key, version, seed, data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(5, len(frame) - 1))
        frame[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    damaged = bytes(frame[: data.draw(st.integers(5, len(frame)))])
    expected = found(response_has_tags, damaged, key, version)
    assert found(WALKS[key], damaged, version) == expected


def test_no_topics_where_kafka_has_a_list_of_none_is_refused_as_by_the_schema() -> None:
    frame = b"\0\0\0\7\0\0\0\0\0\0\0"
    assert found(response_has_tags, frame, 0, 10) == "refused"
    assert found(WALKS[0], frame, 10) == "refused"
