"""The native library finds a batch fine exactly if the rules in Python do, and says the same of
it."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.gateway.fakes import record, record_batch, varint
from tests.unit.kafka.batch_damage import BASE, damaged_batch, random_batch, sealed
from tests.unit.kafka.damage import damaged
from tests.unit.kafka.messages import random_message
from tests.unit.kafka.test_named_topics import untagged
from tests.unit.kafka.test_produced import BROKEN, CODECS, NOW, built, raw
from tideline.domain.topic_configs import LOG_APPEND_TIME, TopicLimits
from tideline.gateway.produce.examination import AT_ONCE_BYTES
from tideline.kafka import named_topics, native_look, records
from tideline.kafka.batches import HEADER_BYTES, parse_at, patch
from tideline.kafka.named_topics import MOST_WALKED, walked_produce
from tideline.kafka.native_look import (
    LOOKED_BYTES,
    FineBatch,
    looked_produce,
)
from tideline.kafka.produced import MAX_RECORDS, RefusedBatch, ValidBatch, validated
from tideline.kafka.protocol import (
    PRODUCE_VERSIONS,
    RequestHeader,
    encode_request,
    parse_header,
    request_class,
)
from tideline.kafka.records import summarize

MOST = 2**31 - 1
HOUR = 3_600_000
TOPICS = (
    TopicLimits(LOG_APPEND_TIME, MOST),
    TopicLimits("CreateTime", MOST, MOST**3, MOST**3),
    TopicLimits("CreateTime", MOST, HOUR, HOUR),
    TopicLimits("CreateTime", 200, HOUR, HOUR),
)
"""The first takes every batch that the rules of batches take."""


@pytest.fixture(autouse=True, scope="module")
def walks_as_far() -> Iterator[None]:
    """A walk copies, and has another bound for that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(named_topics, "MOST_WALKED_BYTES", LOOKED_BYTES)
        yield


def look(records: bytes) -> FineBatch | None:
    """Into the only batch of a request."""
    size = struct.pack(">i", len(records))
    frame = b"\0\0\0\x08\0\0\0\7\0\1c" + b"\xff\xff\xff\xff\0\0\0\0" + b"\0\0\0\1\0\1t"
    looked = looked_produce(frame + b"\0\0\0\1\0\0\0\0" + size + records, parse_header(frame))
    return None if looked is None else looked[0].batch


def judged(records: bytes, limits: TopicLimits) -> ValidBatch | None:
    try:
        return validated(records, limits, produce_version=9, now_ms=BASE)
    except RefusedBatch:
        return None


def is_for_python(batch: bytes) -> bool:
    """Whether the rules alone judge such a batch: one that has attributes, or whose records have
    some, or a base of before 1970, which nearly no producer writes."""
    header, native = parse_at(batch, 0), records._native()
    if header.attributes or header.base_timestamp < -1:
        return True
    asked = records._Asked(header.record_count, 0, header.base_timestamp, -MOST, MOST, MOST)
    said = records._read_natively(native, batch[HEADER_BYTES:], asked)
    return isinstance(said, records._Wrong) and said.fault is records.Fault.ATTRIBUTES


def test_a_batch_whose_records_have_attributes_is_for_the_rules_which_take_it() -> None:
    odd = raw(b"\x0c\x01\0\0\1\1\0")
    assert look(odd) is None
    assert judged(odd, TOPICS[1]) == ValidBatch(parse_at(odd, 0), odd)


def test_a_batch_of_before_1970_is_for_the_rules_which_take_it() -> None:
    """Its header says -1 for the largest timestamp, as Kafka's does."""
    old = numbered(record(0, 0, b"v"), base=-1_000, latest=-1)
    assert look(old) is None
    assert judged(old, TOPICS[1]) == ValidBatch(parse_at(old, 0), old)


def both_say_the_same(records: bytes) -> bool:
    """Whether it is fine."""
    fine = look(records)
    rules = judged(records, TOPICS[0])
    if fine is None:
        assert rules is None or rules.records != records or is_for_python(records)
        return False
    for limits in TOPICS:
        valid = judged(records, limits)
        assert fine.suits(len(records), limits, BASE) == (valid is not None)
        assert valid is None or valid == ValidBatch(parse_at(records, 0), records)
    says_what_is_in(records, fine)
    return True


def says_what_is_in(records: bytes, fine: FineBatch) -> None:
    header = parse_at(records, 0)
    for name in (
        "producer_id", "producer_epoch", "base_sequence", "last_sequence",
        "record_count", "max_timestamp",
    ):  # fmt: skip
        assert getattr(fine, name) == getattr(header, name), name
    body = records[HEADER_BYTES:]

    def out_of(earliest: int, latest: int) -> bool:
        found = summarize(body, header, earliest=earliest, latest=latest)
        assert (found.headers, found.max_timestamp) == (fine.headers, fine.max_timestamp)
        return bool(found.out_of_range)

    if fine.earliest > fine.latest:
        assert not out_of(MOST, 0), "no record has a timestamp"
        return
    assert not out_of(fine.earliest, fine.latest)
    assert out_of(fine.earliest + 1, fine.latest)
    assert out_of(fine.earliest, fine.latest - 1)


@settings(max_examples=400)
@given(st.integers(0, 2**64))
def test_of_a_batch_as_producers_write_it_both_say_the_same(seed: int) -> None:
    both_say_the_same(random_batch(random.Random(seed)))


def test_a_batch_that_gives_itself_an_offset_is_fine_to_neither() -> None:
    moved = bytearray(record_batch(2))
    patch(moved, 1, -1)
    assert look(bytes(moved)) is None
    assert not both_say_the_same(bytes(moved))


@settings(max_examples=1_500)
@given(st.integers(0, 2**64))
def test_of_a_damaged_batch_both_say_the_same(seed: int) -> None:
    rng = random.Random(seed)
    both_say_the_same(damaged_batch(random_batch(rng), rng))


@settings(max_examples=500)
@given(st.binary(max_size=80), st.integers(-1, 3), st.booleans())
def test_of_random_records_both_say_the_same(body: bytes, count: int, header: bool) -> None:
    numbers = struct.pack(">hiqqqhii", 0, count - 1, NOW, NOW, -1, -1, -1, count)
    both_say_the_same(sealed(numbers + body if header else body))
    both_say_the_same(body)


def test_most_of_what_a_test_makes_of_batches_is_fine_and_much_of_what_it_damages() -> None:
    """Otherwise nothing would be shown."""
    rng = random.Random(1)
    made = [random_batch(rng) for _ in range(500)]
    assert sum(map(both_say_the_same, made)) > 250
    assert sum(both_say_the_same(damaged_batch(batch, rng)) for batch in made) > 50


@pytest.mark.parametrize("name", BROKEN)
def test_what_the_rules_refuse_is_not_fine(name: str) -> None:
    assert not both_say_the_same(BROKEN[name])


def numbered(
    body: bytes,
    count: int = 1,
    *,
    last: int | None = None,
    base: int = BASE,
    latest: int = BASE,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    delta = count - 1 if last is None else last
    return sealed(struct.pack(">hiqqqhii", 0, delta, base, latest, *producer, count) + body)


def saying(records: bytes, size: int) -> bytes:
    """The same, of which the header says that it has so many bytes."""
    return records[:8] + struct.pack(">i", size - 12) + records[12:]


def test_one_number_of_a_header_that_is_wrong_is_enough() -> None:
    """All else is right, the CRC over all that is there too."""
    one, two = record(0, 0, b"v"), record(0, 0, b"v") + record(0, 1, b"w")
    assert both_say_the_same(numbered(two, 2, producer=(5, 0, 0)))
    assert both_say_the_same(numbered(two, 2, producer=(5, 0, MOST))), "sequences begin again"
    wrong = {
        "less bytes than there are": saying(numbered(two, 2), len(numbered(one))),
        "a header alone": saying(numbered(one), HEADER_BYTES),
        "more bytes than there are": saying(numbered(one), len(numbered(one)) + 1),
        "no record": numbered(b"", 0, latest=-1),
        "less than none": numbered(b"", -1, latest=-1),
        "an offset more than records": numbered(two, 2, last=2),
        "an offset less than records": numbered(two, 2, last=0),
        "another largest timestamp than its records": numbered(one, latest=BASE + 1),
        "a producer without an epoch": numbered(one, producer=(5, -1, 0)),
        "a producer without a sequence": numbered(one, producer=(5, 0, -1)),
    }
    for why, batch in wrong.items():
        assert not both_say_the_same(batch), why


def test_a_length_below_zero_is_none_and_not_what_its_bits_say_without_the_sign() -> None:
    key, value, headers = b"\1", b"\1", b"\0"

    def sized(rest: bytes) -> bytes:
        return varint(len(rest)) + rest

    minus_two = b"\3x"  # and one byte
    assert both_say_the_same(numbered(sized(b"\0\0\0" + key + value + headers)))
    wrong = {
        "key": sized(b"\0\0\0" + minus_two + value + headers),
        "value": sized(b"\0\0\0" + key + minus_two + headers),
        "headers": sized(b"\0\0\0" + key + value + b"\3\2k\2v"),
        "key of a header": sized(b"\0\0\0" + key + value + b"\2" + minus_two + b"\2v"),
        "value of a header": sized(b"\0\0\0" + key + value + b"\2\2k" + minus_two),
        "record": b"\x0d\0\0\0\1\1\0",
    }
    for what, body in wrong.items():
        assert not both_say_the_same(numbered(body)), what
        right = body.replace(minus_two, b"\2x").replace(b"\3\2k", b"\2\2k")
        right = right.replace(b"\x0d", b"\x0c")
        assert both_say_the_same(numbered(right)), what


@pytest.mark.parametrize(
    ("delta", "offset", "fine"),
    [
        (b"\0", b"\0", True),
        (b"\x80" * 9 + b"\0", b"\x80" * 4 + b"\0", True),
        (b"\x80" * 9 + b"\2", b"\0", False),
        (b"\x80" * 9 + b"\x7e", b"\0", False),
        (b"\x80" * 10 + b"\0", b"\0", False),
        (b"\0", b"\x80" * 4 + b"\x10", False),
        (b"\0", b"\x80" * 4 + b"\x70", False),
        (b"\0", b"\x80" * 5 + b"\0", False),
    ],
)
def test_a_number_may_be_longer_than_it_needs_and_not_than_its_type(
    delta: bytes, offset: bytes, fine: bool
) -> None:
    rest = b"\0" + delta + offset + b"\1\1\0"
    assert both_say_the_same(numbered(varint(len(rest)) + rest)) is fine


def test_only_a_crc_that_is_right_will_do() -> None:
    right = numbered(record(0, 0, b"v"))
    for bit in range(32):
        wrong = bytearray(right)
        wrong[17 + bit // 8] ^= 1 << bit % 8
        assert not both_say_the_same(bytes(wrong))


def test_as_many_records_are_fine_as_the_rules_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_look, "LOOKED_BYTES", 1 << 24)
    body = bytearray()
    for number in range(MAX_RECORDS):
        offset = varint(number)
        body += bytes((2 * (5 + len(offset)), 0, 0)) + offset + b"\1\1\0"
    assert look(numbered(bytes(body), MAX_RECORDS)) is not None
    more = record(0, MAX_RECORDS, b"")
    assert not both_say_the_same(numbered(bytes(body) + more, MAX_RECORDS + 1))


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_what_is_compressed_is_not_looked_into(codec: str) -> None:
    """However small it is: nobody knows what it is when it is unpacked."""
    packed = built([(NOW, None, bytes(100), [])], CODECS[codec])
    assert judged(packed, TOPICS[0]) is not None
    assert look(packed) is None


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 63, 64, 65, 5_000])
def test_the_crc_is_right_whatever_the_size(size: int) -> None:
    batch = record_batch(payload=bytes(range(256)) * 20 if size == 5_000 else bytes(size))
    assert both_say_the_same(batch)
    assert not both_say_the_same(batch[:-1] + b"\1")


@pytest.mark.parametrize("size", range(HEADER_BYTES + 9))
def test_a_batch_that_ends_anywhere_before_its_end_is_not_fine(size: int) -> None:
    batch = record_batch(2)
    assert not both_say_the_same(batch[:size])
    assert not both_say_the_same(batch + batch[: size + 1])


def test_a_record_without_a_timestamp_bounds_nothing() -> None:
    batch = raw(record(-1 - NOW, 0, b"v"), max_timestamp=-1)
    fine = look(batch)
    assert fine is not None
    assert fine.earliest > fine.latest
    assert both_say_the_same(batch)


# -- requests


def parts_of(walked: Any) -> list[tuple[Any, int, bytes]]:
    return [
        (key, partition, records)
        for key, partitions in walked.topics
        for partition, records in partitions
    ]


def says_what_a_walk_says(frame: bytes) -> bool:
    """Whether something is said, of the frame and then of each batch."""
    header = parse_header(frame)
    looked, walked = looked_produce(frame, header), walked_produce(frame, header)
    if looked is None:
        short = walked is not None and any(len(r) < HEADER_BYTES for _, _, r in parts_of(walked))
        assert walked is None or short or walked.acks not in (-1, 1)
        return False
    assert walked is not None
    assert walked.acks in (-1, 1)
    found = [(part.key, part.partition, frame[part.start : part.end]) for part in looked]
    assert found == parts_of(walked)
    assert [part.batch for part in looked] == [look(records) for _, _, records in found]
    return True


def request_of(version: int, seed: int) -> Any:
    """With batches for records, of which some are not fine."""
    rng = random.Random(seed)
    schema = request_class(0, version)
    assert schema is not None
    request = untagged(random_message(schema, rng))

    def filled(row: Any) -> Any:
        batch = random_batch(rng)
        return replace(row, records=batch if rng.random() < 0.8 else damaged_batch(batch, rng))

    topics = tuple(
        replace(topic, partition_data=tuple(map(filled, topic.partition_data)))
        for topic in request.topic_data
    )
    acks = rng.choice((-1, 1, -1, 1, 0, 2))
    return replace(request, topic_data=topics, transactional_id=None, acks=acks)


VERSIONS = list(PRODUCE_VERSIONS)


@settings(max_examples=300)
@given(st.sampled_from(VERSIONS), st.integers(0, 2**32))
def test_of_a_request_the_same_is_said_as_by_the_walk(version: int, seed: int) -> None:
    says_what_a_walk_says(encode_request(request_of(version, seed), 7, "client"))


@settings(max_examples=500)
@given(st.sampled_from(VERSIONS), st.integers(0, 2**32), st.data())
def test_of_a_damaged_request_nothing_is_said_that_the_walk_does_not_say(
    version: int, seed: int, data: st.DataObject
) -> None:
    says_what_a_walk_says(damaged(encode_request(request_of(version, seed), 7, "client"), data))


@settings(max_examples=300)
@given(st.sampled_from(VERSIONS), st.binary(max_size=120))
def test_of_random_bytes_nothing_is_said_that_the_walk_does_not_say(
    version: int, body: bytes
) -> None:
    says_what_a_walk_says(b"\0\0" + version.to_bytes(2, "big") + b"\0\0\0\7\0\1c" + body)


def batches(count: int, batch: bytes, version: int = 12) -> tuple[bytes, RequestHeader]:
    request = request_of(version, 3)
    topic = request.topic_data[0]
    row = replace(topic.partition_data[0], records=batch)
    topic = replace(topic, partition_data=(row,) * count)
    frame = encode_request(replace(request, topic_data=(topic,), acks=-1), 7, "client")
    return frame, parse_header(frame)


@pytest.mark.parametrize("version", [9, 12, 13])
def test_a_request_with_tagged_fields_anywhere_is_not_looked_into(version: int) -> None:
    frame, header = batches(1, record_batch(), version)
    assert says_what_a_walk_says(frame)
    last = len(frame) - 1
    places = {"header": header.body_start, "partition": last - 2, "topic": last - 1, "body": last}
    for where, at in places.items():
        assert frame[at] == 0
        assert looked_produce(frame[:at] + b"\1" + frame[at + 1 :], header) is None, where


@pytest.mark.parametrize("version", [8, 12, 13])
def test_as_many_partitions_are_looked_into_as_are_walked(version: int) -> None:
    smallest = record_batch(payload=b"")
    for count in (1, 7, 63, 64, 65, MOST_WALKED - 1):
        looked = looked_produce(*batches(count, smallest, version))
        assert looked is not None
        assert [part.batch is not None for part in looked] == [True] * count
    assert looked_produce(*batches(MOST_WALKED, smallest, version)) is None


def test_more_bytes_are_looked_into_than_python_could_at_once_but_not_any_number() -> None:
    half = record_batch(payload=bytes(LOOKED_BYTES // 2 - 100))
    assert len(half) > AT_ONCE_BYTES
    frame, _ = batches(2, half)
    assert says_what_a_walk_says(frame)
    assert looked_produce(*batches(3, half)) is None
