"""What a produce may append: what Kafka would refuse is refused with Kafka's word for it."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import cramjam
import crc32c
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.gateway.fakes import record, record_batch, varint
from tideline.domain.request_handling import KafkaErrorCode
from tideline.domain.topic_configs import LOG_APPEND_TIME, TopicLimits
from tideline.kafka import produced, records
from tideline.kafka.batches import iter_batches, parse_at, patch, verify_crc
from tideline.kafka.produced import (
    MAX_RECORDS,
    MAX_UNPACKED_BYTES,
    Effort,
    RefusedBatch,
    ValidBatch,
    validated,
)
from tideline.kafka.records import UnpackedTooLarge

NOW = 1_700_000_000_000
HOUR = 3_600_000
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
LIMITS = TopicLimits("CreateTime", 100_000_000)


def judged(batch: bytes, limits: TopicLimits = LIMITS, version: int = 9) -> ValidBatch:
    return validated(batch, limits, produce_version=version, now_ms=NOW)


def refusal(batch: bytes, limits: TopicLimits = LIMITS, version: int = 9) -> RefusedBatch:
    with pytest.raises(RefusedBatch) as raised:
        judged(batch, limits, version)
    return raised.value


def code(batch: bytes, limits: int = 1000, version: int = 9) -> KafkaErrorCode:
    return refusal(batch, TopicLimits("CreateTime", limits), version).code


def raw(body: bytes, records: int = 1, attributes: int = 0, max_timestamp: int = NOW) -> bytes:
    """A batch with a right header and CRC around ``body``."""
    inside = struct.pack(
        ">hiqqqhii", attributes, records - 1, NOW, max_timestamp, -1, -1, -1, records
    )
    inside += body
    return struct.pack(">qiibI", 0, 9 + len(inside), -1, 2, crc32c.crc32c(inside)) + inside


def built(
    values: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    codec: int = 0,
) -> bytes:
    """By another implementation, of (timestamp, key, value, headers)."""
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 24)
    for number, (timestamp, key, value, headers) in enumerate(values):
        builder.append(number, timestamp, key, value, headers)
    return bytes(builder.build())


def test_a_header_that_kafka_would_refuse_is_refused() -> None:
    good = record_batch(3, producer_id=1, epoch=0, sequence=0)
    assert judged(good, version=3).header.record_count == 3
    assert code(good[:-1] + b"?") is KafkaErrorCode.CORRUPT_MESSAGE
    for cut in (good[:5], good[:14], good[:40], good[:-1]):
        assert code(cut) is KafkaErrorCode.INVALID_RECORD, "a broker sees no batch there"
    assert code(good[:8] + b"\0\0\0\x05" + good[12:]) is KafkaErrorCode.CORRUPT_MESSAGE
    for magic, said in ((1, "INVALID_RECORD"), (3, "CORRUPT_MESSAGE"), (255, "CORRUPT_MESSAGE")):
        assert code(good[:16] + bytes([magic]) + good[17:]).name == said
    assert code(good, len(good) - 1) is KafkaErrorCode.MESSAGE_TOO_LARGE
    assert code(good + good) is KafkaErrorCode.INVALID_RECORD
    assert code(b"") is KafkaErrorCode.INVALID_RECORD
    assert code(record_batch(magic=1)) is KafkaErrorCode.INVALID_RECORD
    assert code(record_batch(magic=0)) is KafkaErrorCode.INVALID_RECORD
    assert code(record_batch(attributes=0x20)) is KafkaErrorCode.INVALID_RECORD
    assert code(record_batch(attributes=0x10)) is KafkaErrorCode.INVALID_TXN_STATE
    assert code(record_batch(attributes=0x08)) is KafkaErrorCode.INVALID_TIMESTAMP
    assert code(record_batch(attributes=0x07)) is KafkaErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    zstd = record_batch(attributes=4)
    assert code(zstd, version=6) is KafkaErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert code(record_batch(3, last_offset_delta=9)) is KafkaErrorCode.INVALID_RECORD
    assert code(record_batch(producer_id=4, epoch=0)) is KafkaErrorCode.INVALID_RECORD


def test_a_poison_batch_of_two_thousand_million_records_is_refused() -> None:
    assert refusal(raw(b"x" * 22, 2_000_000_000)).code is KafkaErrorCode.MESSAGE_TOO_LARGE
    assert refusal(raw(b"x" * 22, MAX_RECORDS)).code is KafkaErrorCode.INVALID_RECORD


ONE = record(0, 0, b"value")
KEYLESS = b"\0" + varint(0) + varint(0) + varint(-1) + varint(-1)


def sized(rest: bytes) -> bytes:
    return varint(len(rest)) + rest


BROKEN = {
    "fewer records than it says": raw(ONE, 2),
    "more records than it says": raw(ONE + record(0, 1, b""), 1),
    "bytes behind the last": raw(ONE + b"\0"),
    "no records": raw(b""),
    "a length past the end": raw(varint(100) + ONE[1:]),
    "a negative length": raw(varint(-3) + ONE[1:]),
    "a length that is too short": raw(varint(len(ONE) - 2) + ONE[1:]),
    "a length that is too long": raw(varint(len(ONE)) + ONE[1:] + b"\0"),
    "an offset that is left out": raw(ONE + record(0, 2, b""), 2),
    "an offset twice": raw(ONE + record(0, 0, b""), 2),
    "a negative offset": raw(record(0, -1, b"")),
    "a number that does not end": raw(b"\xff" * 40),
    "a number of 33 bits": raw(b"\x80\x80\x80\x80\x10" + ONE),
    "a key past the end": raw(sized(b"\0\0\0" + varint(1 << 30) + varint(-1) + b"\0")),
    "a key of -2 bytes": raw(sized(b"\0\0\0" + varint(-2) + varint(-1) + b"\0")),
    "a value of -2 bytes": raw(sized(b"\0\0\0" + varint(-1) + varint(-2) + b"\0")),
    "more headers than bytes": raw(sized(KEYLESS + varint(2_000_000_000))),
    "fewer than no headers": raw(sized(KEYLESS + varint(-1))),
    "a header without a key": raw(sized(KEYLESS + varint(1) + varint(-1) + varint(0))),
    "a header past the end": raw(sized(KEYLESS + varint(1) + varint(1) + b"k" + varint(9))),
    "gzip that is none": raw(ONE, attributes=1),
    "snappy that is none": raw(b"\xff" * 20, attributes=2),
    "snappy with a block past the end": raw(
        b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, 1 << 30) + b"x", attributes=2
    ),
    "lz4 that is none": raw(ONE, attributes=3),
    "lz4 whose blocks depend on each other": raw(
        bytes(cramjam.lz4.Compressor(block_linked=True).finish()) + ONE, attributes=3
    ),
    "zstd that is none": raw(ONE, attributes=4),
}


@pytest.mark.parametrize("why", BROKEN)
def test_a_batch_whose_records_are_broken_is_refused(why: str) -> None:
    refused = refusal(BROKEN[why])
    assert refused.code is KafkaErrorCode.INVALID_RECORD
    assert str(refused)


@pytest.mark.parametrize("attributes", [1, 0x98, 0xFF])
def test_attributes_of_a_record_are_not_looked_at_as_by_kafka(attributes: int) -> None:
    """``DefaultRecord.readFrom`` keeps the byte: none is defined. All else still counts."""
    odd = sized(bytes([attributes]) + KEYLESS[1:] + b"\0")
    for batch in (raw(odd + record(3, 1, b"v"), 2, max_timestamp=NOW + 3), raw(odd)):
        assert judged(batch).records == batch
    packed = raw(gzip.compress(odd), attributes=CODECS["gzip"])
    assert judged(packed).records == packed
    for wrong in (raw(odd + b"\0"), raw(odd, 2), raw(odd + record(0, 7, b""), 2)):
        assert refusal(wrong).code is KafkaErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("offset", [1, -1, 2**63 - 1])
def test_a_batch_that_gives_itself_an_offset_is_refused_as_by_kafka(
    offset: int, codec: str
) -> None:
    """``UnifiedLog.analyzeAndValidateRecords``, before size and CRC, which does not cover it."""
    moved = bytearray(built([(NOW, b"k", b"v", [])], CODECS[codec]))
    patch(moved, offset, -1)
    for limits in (LIMITS, replace(LIMITS, max_message_bytes=10)):
        refused = refusal(bytes(moved), limits)
        assert refused.code is KafkaErrorCode.INVALID_RECORD
        assert str(offset) in str(refused)


def test_the_wrong_record_is_named() -> None:
    batch = raw(ONE + record(0, 5, b""), 2)
    ((index, message),) = refusal(batch).records
    assert index == 1
    assert "offset delta 5" in message


def after(body: bytes, codec: str) -> list[bytes]:
    """With bytes behind the stream, unless Kafka passes over them."""
    return [] if codec in PASSED_OVER else [body + b"\x01\x02"]


PASSED_OVER = {"gzip", "lz4"}


@pytest.mark.parametrize("codec", CODECS)
def test_stream_that_is_cut_or_goes_on_is_refused(codec: str) -> None:
    whole = built([(NOW, b"k", b"v" * 500, [])] * 20, CODECS[codec])
    (header,) = iter_batches(whole)
    body = whole[61:]
    for changed in (body[:-1], body[: len(body) // 2], *after(body, codec)):
        refused = refusal(raw(changed, header.record_count, CODECS[codec]))
        assert refused.code is KafkaErrorCode.INVALID_RECORD


MEMBER = gzip.compress(b"", mtime=0)
PADDING = {
    "a zero": bytes(1),
    "zeros up to a block": bytes(8_190),
    "more zeros than are read at once": bytes(9_000),
    "other bytes": b"\x77" * 30,
    "half a header": MEMBER[:9],
    "the beginning of a header": MEMBER[:2] + bytes(30),
    "less than a member can be": MEMBER[:15],
    "zeros, and a member behind them": bytes(30) + gzip.compress(b"x"),
}


@pytest.mark.parametrize("what", PADDING)
def test_what_is_no_gzip_member_behind_the_last_one_is_passed_over_as_by_kafka(what: str) -> None:
    """Java's ``GZIPInputStream.readTrailer``, by which Kafka reads: padding to whole blocks."""
    body = ONE + record(1, 1, b"x" * 2_000)
    for members in ([body], [body[:9], body[9:]], [b"", body, b""]):
        stream = b"".join(map(gzip.compress, members)) + PADDING[what]
        batch = raw(stream, 2, CODECS["gzip"], NOW + 1)
        assert judged(batch).records == batch


@pytest.mark.parametrize(
    "second",
    [
        MEMBER[:10] + b"\xff" * 40,
        MEMBER[:-8] + b"\1" * 8,
        gzip.compress(record(0, 2, b"more")),
        gzip.compress(bytes(range(256)))[:60],
    ],
    ids=["damaged", "wrong checksum", "whole", "cut off"],
)
def test_a_gzip_member_behind_the_last_one_counts_and_must_be_right(second: bytes) -> None:
    stream = gzip.compress(ONE + record(1, 1, b"")) + second
    assert refusal(raw(stream, 2, CODECS["gzip"])).code is KafkaErrorCode.INVALID_RECORD
    parted = gzip.compress(ONE) + bytes(30) + gzip.compress(record(1, 1, b""))
    assert refusal(raw(parted, 2, CODECS["gzip"])).code is KafkaErrorCode.INVALID_RECORD


BOMBS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: bytes(cramjam.gzip.compress(data)),
    "snappy": lambda data: bytes(cramjam.snappy.compress_raw(data)),
    "lz4": lambda data: independent_lz4(data),
    "zstd": lambda data: bytes(cramjam.zstd.compress(data)),
}


def independent_lz4(data: bytes) -> bytes:
    compressor = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=False)
    compressor.compress(data)
    return bytes(compressor.finish())


@pytest.mark.parametrize("codec", BOMBS)
def test_a_bomb_is_refused_before_it_fills_memory(codec: str) -> None:
    bomb = raw(BOMBS[codec](bytes(MAX_UNPACKED_BYTES + 1)), 1, CODECS[codec])
    allowed = replace(LIMITS, max_message_bytes=10_000_000)
    assert refusal(bomb, allowed).code is KafkaErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_batch_as_large_as_its_topic_allows_may_be_unpacked(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka takes it: the bound of a batch is the topic's where that is the larger one."""
    monkeypatch.setattr(produced, "MAX_UNPACKED_BYTES", 10_000)
    large = built([(NOW, None, bytes(50_000), [])], CODECS[codec])
    assert judged(large, replace(LIMITS, max_message_bytes=60_000)).records == large
    few = replace(LIMITS, max_message_bytes=20_000)
    assert refusal(large, few).code is KafkaErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", BOMBS)
def test_a_first_try_with_less_room_says_that_it_was_not_enough(codec: str) -> None:
    batch = built([(NOW, None, bytes(50_000), [])] * 3, CODECS[codec])
    with pytest.raises(UnpackedTooLarge):
        validated(batch, LIMITS, produce_version=9, now_ms=NOW, effort=Effort(100_000, headers=10))
    assert judged(batch).header.record_count == 3


def test_gzip_of_many_members_is_read_member_by_member_without_copying_the_rest_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A megabyte has place for fifty thousand empty ones: to copy it each time takes seconds."""
    given_at_once: list[int] = []

    class Member:
        def __init__(self, bits: int) -> None:
            self._inner = zlib.decompressobj(bits)

        def decompress(self, window: bytes, most: int) -> bytes:
            given_at_once.append(len(window))
            return self._inner.decompress(window, most)

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

    body = b"".join(record(0, n, bytes(9_000)) for n in range(3))
    members = [gzip.compress(part, 0) for part in (b"", body[:10], body[10:20_000], body[20_000:])]
    monkeypatch.setattr(records, "zlib", SimpleNamespace(decompressobj=Member, error=zlib.error))
    assert judged(raw(b"".join(members), 3, CODECS["gzip"])).header.record_count == 3
    assert max(given_at_once) == records.GZIP_WINDOW
    assert sum(given_at_once) < 2 * len(body)


@pytest.mark.parametrize("codec", BOMBS)
def test_what_is_read_of_one_batch_is_not_left_for_the_next(codec: str) -> None:
    """Hundreds of small ones, each of which is little by itself, would take seconds together."""
    small = built([(NOW, None, bytes(40_000), [])], CODECS[codec])
    effort = Effort(100_000, headers=10)
    for _ in range(2):
        validated(small, LIMITS, produce_version=9, now_ms=NOW, effort=effort)
    with pytest.raises(UnpackedTooLarge):
        validated(small, LIMITS, produce_version=9, now_ms=NOW, effort=effort)
    assert effort.unpacked == 0


def test_the_headers_of_records_are_counted_in_a_first_try() -> None:
    batch = built([(NOW, None, b"v", [("h", b"1"), ("h", None)])] * 3)
    effort = Effort(100_000, headers=10)
    validated(batch, LIMITS, produce_version=9, now_ms=NOW, effort=effort)
    assert effort.headers == 4
    with pytest.raises(UnpackedTooLarge):
        validated(batch, LIMITS, produce_version=9, now_ms=NOW, effort=effort)
    assert judged(batch).header.record_count == 3


def test_headers_of_a_batch_that_is_refused_count_too() -> None:
    broken = raw(record(0, 0, b"v") + record(0, 7, b"v"), 2)
    effort = Effort(100_000, headers=10)
    with pytest.raises(RefusedBatch):
        validated(broken, LIMITS, produce_version=9, now_ms=NOW, effort=effort)
    assert effort.headers == 0


def test_timestamps_are_held_against_now() -> None:
    limits = TopicLimits("CreateTime", 10_000, HOUR, HOUR)

    def refused_at(*timestamps: int) -> tuple[KafkaErrorCode, list[int]]:
        batch = built([(timestamp, None, b"v", []) for timestamp in timestamps])
        refused = refusal(batch, limits)
        return refused.code, [index for index, _ in refused.records]

    judged(built([(NOW - HOUR, None, b"v", []), (NOW + HOUR, None, b"v", [])]), limits)
    invalid = KafkaErrorCode.INVALID_TIMESTAMP
    assert refused_at(NOW - HOUR - 1) == (invalid, [0])
    assert refused_at(NOW, NOW + HOUR + 1, NOW) == (invalid, [1])
    assert refused_at(*[NOW + 2 * HOUR] * 9) == (invalid, [0, 1, 2])
    year_9999 = 253_370_764_800_000
    assert refusal(built([(year_9999, None, b"v", [])])).code is invalid, "an hour by default"
    judged(built([(1, None, b"v", [])]))  # the past is not bounded by default


def test_a_record_without_a_timestamp_is_not_held_against_now() -> None:
    limits = TopicLimits("CreateTime", 10_000, HOUR, HOUR)
    batch = bytearray(raw(record(0, 0, b"v"), max_timestamp=-1))
    struct.pack_into(">q", batch, 27, -1)
    struct.pack_into(">I", batch, 17, crc32c.crc32c(batch[21:]))
    assert judged(bytes(batch), limits).header.max_timestamp == -1


def timed(base: int, *deltas: int, says: int) -> bytes:
    """A batch whose header says that so many ms are its base and its largest timestamp."""
    body = b"".join(record(delta, number, b"v") for number, delta in enumerate(deltas))
    batch = bytearray(raw(body, len(deltas), max_timestamp=says))
    struct.pack_into(">q", batch, 27, base)
    struct.pack_into(">I", batch, 17, crc32c.crc32c(batch[21:]))
    return bytes(batch)


@pytest.mark.parametrize("timestamp", [-1, -2, -1_000, -86_400_000, NOW - (2**63 - 1)])
@pytest.mark.parametrize("kind", ["CreateTime", LOG_APPEND_TIME])
def test_records_of_before_1970_are_taken_as_by_kafka(kind: str, timestamp: int) -> None:
    """``LogValidator.validateTimestamp`` looks only at how far from now, the whole past by default.
    A batch of nothing else says -1: Kafka seeks the largest from there."""
    limits = replace(LIMITS, timestamp_type=kind)
    valid = judged(timed(timestamp, 0, -5 if timestamp > -(2**62) else 0, says=timestamp), limits)
    assert valid.header.max_timestamp == -1
    assert valid.header.base_timestamp == timestamp
    assert verify_crc(valid.records, valid.header._replace(crc=parse_at(valid.records, 0).crc))
    mixed = judged(timed(NOW, timestamp - NOW, 0, says=NOW), limits)
    assert mixed.header.max_timestamp == NOW


def test_how_far_the_past_goes_is_said_by_the_topic_alone() -> None:
    limits = replace(LIMITS, timestamp_before_max_ms=NOW + 1_000)
    judged(timed(0, -1_000, says=-1_000), limits)
    refused = refusal(timed(0, -1_001, says=-1), limits)
    assert refused.code is KafkaErrorCode.INVALID_TIMESTAMP
    assert "[-1000, " in refused.records[0][1]


def test_under_log_append_time_the_clients_timestamps_do_not_count() -> None:
    limits = replace(LIMITS, timestamp_type=LOG_APPEND_TIME)
    judged(built([(NOW + 9 * HOUR, None, b"v", [])]), limits)
    for extreme in (-(2**63), 2**63 - 1):
        judged(timed(extreme, 0, says=extreme), limits)


@pytest.mark.parametrize("kind", ["CreateTime", LOG_APPEND_TIME])
@pytest.mark.parametrize(("base", "delta"), [(2**63 - 1, 1), (-(2**63), -1)])
def test_a_timestamp_of_more_than_64_bits_is_refused(kind: str, base: int, delta: int) -> None:
    """Java begins again at the other end (docs/differences.md)."""
    forever = TopicLimits(kind, 10_000, 2**63 - 1, 2**63 - 1)
    refused = refusal(timed(base, delta, says=-1), forever)
    assert refused.code is KafkaErrorCode.INVALID_TIMESTAMP


def test_the_largest_timestamp_is_that_of_the_records_whatever_the_header_says() -> None:
    """As Kafka does; lookups by time and retention go by it."""
    batch = raw(record(5, 0, b"a") + record(2, 1, b"b"), 2, max_timestamp=NOW + 50)
    valid = judged(batch)
    assert valid.header.max_timestamp == NOW + 5
    (header,) = iter_batches(valid.records)
    assert header.max_timestamp == NOW + 5
    assert verify_crc(valid.records, header)
    assert [r.timestamp for r in DefaultRecordBatch(valid.records)] == [NOW + 5, NOW + 2]


def test_java_and_librdkafka_frame_snappy_differently_and_both_are_read() -> None:
    body = ONE + record(1, 1, b"x" * 200)
    blocks = [bytes(cramjam.snappy.compress_raw(part)) for part in (body[:40], body[40:])]
    framed = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    framed += b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    for packed in (framed, bytes(cramjam.snappy.compress_raw(body))):
        assert judged(raw(packed, 2, 2, NOW + 1)).header.record_count == 2


RECORDS = st.lists(
    st.tuples(
        st.integers(NOW - 10**10, NOW + HOUR),
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=3000),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=3),
    ),
    min_size=1,
    max_size=100,
)


@given(RECORDS, st.sampled_from(sorted(CODECS)))
def test_what_another_implementation_writes_is_accepted_unchanged(
    values: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    codec: str,
) -> None:
    batch = built(values, CODECS[codec])
    valid = judged(batch)
    assert valid.records == batch
    assert valid.header.record_count == len(values)
    assert valid.header.max_timestamp == max(timestamp for timestamp, *_ in values)


def readable(batch: bytes) -> list[tuple[int, int]]:
    """Offsets and timestamps as another implementation reads them."""
    reader = DefaultRecordBatch(without_attributes(batch))
    reader.validate_crc()
    return [(r.offset, r.timestamp) for r in reader]


def without_attributes(batch: bytes) -> bytes:
    """Without those attributes of records that the other implementation would read on from: it
    takes the byte, in which Kafka defines nothing (``DefaultRecord.readFrom``), for a varint."""
    header = parse_at(batch, 0)
    body = bytearray(records.unpacked(batch, header, 1 << 26))
    position, is_varint = 0, False
    for _ in range(header.record_count):
        length, position = records.signed(body, position)
        is_varint |= body[position] >= 0x80
        body[position] &= 0x7F
        position += length
    if not is_varint:
        return batch
    inside = struct.pack(">h", header.attributes & ~0x07) + batch[23:61] + body
    return struct.pack(">qiibI", 0, 9 + len(inside), -1, 2, crc32c.crc32c(inside)) + inside


@given(
    RECORDS,
    st.sampled_from(sorted(CODECS)),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
@example([(NOW, None, b"v", [])], "none", [(61, 0x80)])
@example([(NOW, None, b"v", [])], "none", [(41, 0x80)])
def test_changed_bytes_under_a_right_crc_never_crash_and_what_is_accepted_can_be_read(
    values: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    codec: str,
    changes: list[tuple[int, int]],
) -> None:
    batch = bytearray(built(values, CODECS[codec]))
    for at, byte in changes:
        batch[21 + at % (len(batch) - 21)] = byte
    struct.pack_into(">I", batch, 17, crc32c.crc32c(batch[21:]))
    try:
        valid = judged(bytes(batch))
    except RefusedBatch:
        return
    count = valid.header.record_count
    try:
        found = readable(valid.records)
    except UnicodeDecodeError:
        return  # a header's key: Kafka does not look, and Java replaces what it cannot decode
    assert [offset for offset, _ in found] == list(range(count))
    # Of records that are all older than -1 Kafka makes it -1 (``LogValidator``).
    assert max([-1, *(timestamp for _, timestamp in found)]) == valid.header.max_timestamp


@given(st.binary(max_size=400), st.integers(0, 4), st.integers(1, 50))
def test_random_records_never_crash(body: bytes, codec: int, count: int) -> None:
    with suppress(RefusedBatch):
        assert judged(raw(body, count, codec)).header.record_count == count


def lz4_frame(data: bytes) -> bytes:
    """One frame of version 1 with one block that is not compressed."""
    block = struct.pack("<I", len(data) | 0x80000000) + data
    return b"\x04\x22\x4d\x18\x60\x40\x82" + block + bytes(4)


def test_of_lz4_the_first_frame_is_read_alone_as_by_kafka() -> None:
    """``Lz4BlockInputStream`` is at its end there, whatever follows."""
    one, two = record(0, 0, b"a" * 50), record(0, 1, b"b" * 50)
    whole = lz4_frame(one + two)
    for behind in (b"", b"\1\2", bytes(100), lz4_frame(b"x")):
        batch = raw(whole + behind, records=2, attributes=3)
        assert judged(batch).records == batch
    refusal(raw(lz4_frame(one) + lz4_frame(two), records=2, attributes=3))
