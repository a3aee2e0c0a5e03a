"""The native walks say what Python's say, or leave the frame to Python."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kafka.messages import random_message
from tests.unit.kafka.test_answer_tags import VERSIONS as ANSWERS
from tests.unit.kafka.test_answer_tags import answer_of, found
from tests.unit.kafka.test_named_topics import VERSIONS, request_of
from tideline.kafka.errors import MalformedFrame
from tideline.kafka.named_topics import MOST_WALKED, named_topics
from tideline.kafka.protocol import (
    encode_request,
    fetch_within,
    parse_header,
    produce_acks,
    request_class,
    response_has_tags,
)
from tideline.kafka.wire import (
    MalformedHeader,
    answer_passes,
    fetch_most_at,
    walked_acks,
    walked_request,
)

HEADS = [key.to_bytes(2, "big") + version.to_bytes(2, "big") for key, version in VERSIONS]


def says_the_same(frame: bytes) -> bool:
    """Whether both say something of the request, after it was seen that they say the same."""
    try:
        header = parse_header(frame)
    except MalformedFrame:
        with pytest.raises(MalformedHeader):
            walked_request(frame)
        return False
    native, python = walked_request(frame), named_topics(frame, header)
    assert (native is None) == (python is None)
    if native is None or python is None:
        return False
    assert native.keys == python.keys
    assert (native.session_id, native.session_epoch) == (python.session_id, python.session_epoch)
    return True


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(VERSIONS), st.integers(0, 2**32))
def test_a_request_as_clients_write_it_is_walked_as_python_walks_it(
    api: tuple[int, int], seed: int
) -> None:
    key, version = api
    request = request_of(key, version, seed)
    told = says_the_same(encode_request(request, 7, "client"))
    assert told or (key == 3 and not request.topics)


def damaged(frame: bytes, data: st.DataObject, start: int) -> bytes:
    changed = bytearray(frame)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(start, len(frame) - 1))
        changed[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF, frame[at] ^ 1]))
    cut = data.draw(st.integers(start, len(frame)) | st.just(len(frame)))
    return bytes(changed[:cut]) + data.draw(st.binary(max_size=5))


@settings(max_examples=800, deadline=None)
@given(st.sampled_from(VERSIONS), st.integers(0, 2**32), st.booleans(), st.data())
def test_a_damaged_request_is_walked_as_python_walks_it(
    api: tuple[int, int], seed: int, tagged: bool, data: st.DataObject
) -> None:
    schema: Any = request_class(*api)
    request = random_message(schema, random.Random(seed)) if tagged else request_of(*api, seed)
    frame = encode_request(request, 7, "client")
    says_the_same(damaged(frame, data, data.draw(st.sampled_from([0, 4, 18]))))


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(HEADS), st.binary(max_size=120))
def test_random_bytes_are_walked_as_python_walks_them(head: bytes, body: bytes) -> None:
    says_the_same(head + b"\0\0\0\7\0\1c" + body)
    says_the_same(head + body)
    says_the_same(body)


@pytest.mark.parametrize("head", HEADS, ids=bytes.hex)
def test_counts_and_lengths_that_the_frame_does_not_hold_are_walked_as_python_walks_them(
    head: bytes,
) -> None:
    for filling in (
        b"\x7f",
        b"\xff",
        b"\xfe\xff\xff\xff\x07",
        b"\x80\x80\x80\x80\x10",
        b"\1",
        b"\0",
    ):
        for size in (0, 1, 40, 400):
            for front in range(24):
                says_the_same(head + b"\0\0\0\7\0\1c" + bytes(front) + filling * size)


@pytest.mark.parametrize("version", [11, 12, 13, 17])
@pytest.mark.parametrize("count", [MOST_WALKED, MOST_WALKED + 1])
@pytest.mark.parametrize("forgotten", [False, True])
def test_the_bounds_of_elements_are_pythons(version: int, count: int, forgotten: bool) -> None:
    """Topics, and 20 partitions of each, that make 10,000 and more elements."""
    flexible, by_id = version >= 12, version >= 13
    name = bytes(15) + b"\1" if by_id else b"\2t" if flexible else b"\0\1t"
    row = bytes(4 + 4 + 8 + (4 if flexible else 0) + 8 + 4)
    for partitions in (1, 19, 20):
        rows = (row + b"\0") * partitions if flexible else row * partitions
        numbers = bytes(4) * partitions

        def array(of: bytes, count: int, flexible: bool = flexible) -> bytes:
            size = bytes([(count + 1) & 0x7F | 0x80, (count + 1) >> 7])
            return (size if flexible else count.to_bytes(4, "big")) + of * count

        few = bytes([partitions + 1]) if flexible else partitions.to_bytes(4, "big")
        end = b"\0" if flexible else b""
        topics = array(name + few + rows + end, count)
        more = array(name + few + numbers + end, count if forgotten else 0)
        body = bytes(13 + (4 if version < 15 else 0)) + bytes(8) + topics + more
        body += (b"\1" if flexible else b"\0\0") + end
        head = b"\0\1" + version.to_bytes(2, "big") + b"\0\0\0\7\0\1c" + end
        says_the_same(head + body)


@settings(max_examples=300, deadline=None)
@given(st.integers(3, 13), st.integers(0, 2**32), st.data())
def test_acks_are_read_as_python_reads_them_or_left_to_it(
    version: int, seed: int, data: st.DataObject
) -> None:
    frame = damaged(encode_request(request_of(0, version, seed), 7, "client"), data, 18)
    native = walked_acks(frame)
    if native is not None:
        assert native == produce_acks(frame, parse_header(frame))


@settings(max_examples=300, deadline=None)
@given(st.integers(4, 18), st.integers(0, 2**32), st.data())
def test_what_a_fetch_wants_is_found_where_python_finds_it(
    version: int, seed: int, data: st.DataObject
) -> None:
    frame = damaged(encode_request(request_of(1, version, seed), 7, "client"), data, 18)
    at = fetch_most_at(frame)
    made = fetch_within(frame, version, 5)
    if at is None or int.from_bytes(frame[at : at + 4], "big", signed=True) <= 5:
        assert made == frame
    else:
        assert made == frame[:at] + (5).to_bytes(4, "big") + frame[at + 4 :]


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(ANSWERS), st.integers(0, 2**32), st.booleans(), st.data())
def test_an_answer_that_passes_has_no_addresses(
    api: tuple[int, int], seed: int, tagged: bool, data: st.DataObject
) -> None:
    key, version = api
    frame = damaged(answer_of(key, version, seed, tagged), data, 5)
    if answer_passes(frame, key, version):
        assert found(response_has_tags, frame, key, version) is False


@pytest.mark.parametrize(("key", "version"), ANSWERS)
def test_an_answer_as_brokers_write_it_nearly_always_passes(key: int, version: int) -> None:
    """But for record errors and aborted transactions, which Python looks into."""
    passed = [
        answer_passes(answer_of(key, version, seed, tagged=False), key, version)
        for seed in range(60)
    ]
    assert any(passed)


def test_answers_that_name_brokers_elsewhere_never_pass() -> None:
    for key in (3, 10, 18, 60, 78, 79):
        assert not answer_passes(b"\0\0\0\7\0", key, 1)
