"""Nothing that arrives can make the process allocate more than it paid for, or crash it."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v17.response import FetchResponse
from kio.static.primitive import i32Timedelta

from tests.unit.kafka.messages import all_schemas, random_message
from tideline.kafka import protocol
from tideline.kafka.errors import MalformedFrame, TooManyElements, UnsupportedVersion
from tideline.kafka.protocol import decode_request, decode_response, encode_request, encode_response
from tideline.kafka.wire_guard import MAX_REQUEST_ELEMENTS, MAX_REQUEST_TEXT, most_elements

SCHEMAS = all_schemas()
ALLOWED = (MalformedFrame, UnsupportedVersion)


def frame_of(index: int, seed: int) -> tuple[int, int, str, bytes]:
    key, version, direction, schema = SCHEMAS[index % len(SCHEMAS)]
    message = random_message(schema, random.Random(seed))
    frame = (
        encode_request(message, 7, "client")
        if direction == "request"
        else encode_response(message, 7)
    )
    return key, version, direction, frame


def decode(key: int, version: int, direction: str, frame: bytes) -> object:
    return decode_request(frame) if direction == "request" else decode_response(frame, key, version)


@pytest.mark.parametrize("seed", range(3))
def test_every_message_of_every_version_passes_unchanged(seed: int) -> None:
    for key, version, direction, schema in SCHEMAS:
        message = random_message(schema, random.Random(seed))
        frame = (
            encode_request(message, 7, "client")
            if direction == "request"
            else encode_response(message, 7)
        )
        decoded = decode(key, version, direction, frame)
        again = (
            encode_request(decoded, 7, "client")  # type: ignore[arg-type]
            if direction == "request"
            else encode_response(decoded, 7)  # type: ignore[arg-type]
        )
        assert again == frame, (key, version, direction)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_decoded(frame: bytes) -> None:
    with contextlib.suppress(ALLOWED):
        decode_request(frame)


@settings(max_examples=400, deadline=None)
@given(
    header=st.tuples(st.integers(0, 95), st.integers(0, 18)),
    body=st.binary(max_size=300),
)
def test_random_bodies_behind_a_right_header_are_refused_or_decoded(
    header: tuple[int, int], body: bytes
) -> None:
    key, version = header
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff"
    for tags in (b"", b"\0"):
        with contextlib.suppress(ALLOWED):
            decode_request(head + tags + body)


@settings(max_examples=600, deadline=None)
@given(
    index=st.integers(0, len(SCHEMAS) - 1),
    seed=st.integers(0, 2**32),
    cut=st.floats(0, 1),
    edits=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=6),
)
def test_damaged_frames_are_refused_or_decoded(
    index: int, seed: int, cut: float, edits: list[tuple[float, int]]
) -> None:
    key, version, direction, frame = frame_of(index, seed)
    damaged = bytearray(frame[: max(1, round(len(frame) * (1 - cut / 10)))])
    for place, value in edits:
        at = int(place * len(damaged))
        if direction == "response" or at > 8:  # the header decides what is decoded
            damaged[at] = value
    with contextlib.suppress(ALLOWED):
        decode(key, version, direction, bytes(damaged))


@pytest.mark.parametrize("count", [b"\x7f\xff\xff\xff", b"\x10\x00\x00\x00", b"\x00\x00\x10\x00"])
def test_an_array_longer_than_the_frame_is_refused_before_it_is_allocated(count: bytes) -> None:
    head = b"\x00\x03\x00\x04" + bytes(4) + b"\xff\xff"  # Metadata version 4
    tracemalloc.start()
    with pytest.raises(MalformedFrame, match="cannot fit"):
        decode_request(head + count)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_frame_of_tiny_elements_is_bounded_in_their_number() -> None:
    head = b"\x00\x03\x00\x0c" + bytes(4) + b"\xff\xff\x00"  # Metadata version 12
    topic = bytes(16) + b"\x00\x00"
    count = MAX_REQUEST_ELEMENTS + 1
    length = bytearray()
    value = count + 1
    while value > 0x7F:
        length.append(value & 0x7F | 0x80)
        value >>= 7
    length.append(value)
    with pytest.raises(TooManyElements, match="array elements"):
        decode_request(head + bytes(length) + topic * count + b"\x00\x00\x00")


@pytest.mark.parametrize(
    ("api_key", "most"),
    [(0, 5_000), (1, 10_000), (2, 10_000), (3, 50_000), (10, 10_000), (32, 50_000)],
)
def test_what_is_looked_at_partition_by_partition_has_fewer(api_key: int, most: int) -> None:
    assert most_elements(api_key) == most


def test_the_strings_of_a_request_are_bounded_together() -> None:
    """As many of the longest names as one may have elements pass."""
    head = b"\x00\x03\x00\x01" + bytes(4) + b"\xff\xff"  # Metadata version 1
    names = b"\x00\xf9" + b"n" * 249
    request: Any = decode_request(head + MAX_REQUEST_ELEMENTS.to_bytes(4, "big") + names * 50_000)
    assert len(request.topics) == MAX_REQUEST_ELEMENTS
    long = b"\x7f\xff" + b"n" * 32_767
    count = MAX_REQUEST_TEXT // 32_767 + 1
    with pytest.raises(TooManyElements, match="bytes of strings"):
        decode_request(head + count.to_bytes(4, "big") + long * count)


def fetch_response(**values: object) -> FetchResponse:
    from datetime import timedelta

    return FetchResponse(
        throttle_time=i32Timedelta.parse(timedelta(0)),
        error_code=ErrorCode.none,
        responses=(),
        **values,  # type: ignore[arg-type]
    )


def test_an_unknown_tagged_field_is_skipped() -> None:
    frame = encode_response(fetch_response(), 7)
    assert frame.endswith(b"\0")
    extended = frame[:-1] + b"\x01\x63\x03abc"
    assert decode_response(extended, 1, 17) == fetch_response()


def test_an_unknown_tagged_field_inside_a_known_one_is_skipped() -> None:
    from kio.schema.fetch.v17.response import NodeEndpoint
    from kio.schema.types import BrokerId
    from kio.static.primitive import i32

    endpoint = NodeEndpoint(node_id=BrokerId(3), host="h", port=i32(9), rack=None)
    message = fetch_response(node_endpoints=(endpoint,))
    frame = encode_response(message, 7)
    # …, one tag (0) of n bytes: array of 1, the endpoint, no tags of its own.
    head, size = frame.rindex(b"\x01\x00" + bytes([13])), 13
    inner = frame[head + 3 :]
    assert len(inner) == size
    extended = frame[: head + 2] + bytes([size + 4]) + inner[:-1] + b"\x01\x07\x02xy"
    assert decode_response(extended, 1, 17) == message


def test_an_unknown_error_code_becomes_unknown_server_error() -> None:
    frame = bytearray(encode_response(fetch_response(), 7))
    frame[9:11] = (4242).to_bytes(2, "big")
    decoded = decode_response(bytes(frame), 1, 17)
    assert decoded.error_code is ErrorCode.unknown_server_error  # type: ignore[attr-defined]


def test_bytes_behind_the_end_are_refused() -> None:
    frame = encode_response(fetch_response(), 7)
    with pytest.raises(MalformedFrame, match="after the end"):
        decode_response(frame + b"\0", 1, 17)


def test_tags_of_a_response_are_found_without_decoding_it() -> None:
    from kio.schema.fetch.v17.response import NodeEndpoint
    from kio.schema.types import BrokerId
    from kio.static.primitive import i32

    endpoint = NodeEndpoint(node_id=BrokerId(3), host="h", port=i32(9), rack=None)
    assert not protocol.response_has_tags(encode_response(fetch_response(), 7), 1, 17)
    with_tags = encode_response(fetch_response(node_endpoints=(endpoint,)), 7)
    assert protocol.response_has_tags(with_tags, 1, 17)


def test_bytes_behind_a_request_are_not_looked_at_as_kafka_does_not() -> None:
    """librdkafka's Metadata requests have some; a client must not be cut off for them."""
    for version in (4, 9, 12):
        schema = protocol.request_class(3, version)
        assert schema is not None
        message = random_message(schema, random.Random(1))
        frame = encode_request(message, 7, "rdkafka")
        assert decode_request(frame + b"\x00\x00\x07junk") == decode_request(frame)


@pytest.mark.parametrize(
    ("frame", "may"),
    [
        pytest.param("00020006 00000000 ffff 00 ffffffff 00 00 00", False, id="ListOffsets"),
        pytest.param("00170003 00000000 ffff ffffffff ffffffff", False, id="legacy"),
        pytest.param("00030009 00000000 ffff 00 00 00 00 00 00", True, id="Metadata"),
    ],
)
def test_an_array_is_null_only_where_it_may_be(frame: str, may: bool) -> None:
    """kio decodes null as ``None`` everywhere, over which no handler can go."""
    if may:
        assert cast(Any, decode_request(bytes.fromhex(frame))).topics is None
    else:
        with pytest.raises(MalformedFrame):
            decode_request(bytes.fromhex(frame))
