"""The native library and Python read the records of a batch alike: the same numbers of what is
right, the same fault of what is not."""

from __future__ import annotations

import gzip
import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.gateway.fakes import record, record_batch, varint
from tests.unit.kafka.batch_damage import BASE, damaged_batch, random_batch
from tests.unit.kafka.test_produced import BROKEN, CODECS, NOW, built, raw
from tideline.kafka import records
from tideline.kafka.batches import HEADER_BYTES, BatchHeader, InvalidBatch, parse_at
from tideline.kafka.record_search import FoundRecord, UndecodableBatch, find_record
from tideline.kafka.records import (
    KEPT_LOCK_BYTES,
    NO_BOUND,
    Fault,
    InvalidRecords,
    UnpackedTooLarge,
    summarize,
    unpacked,
)

BOUNDS = (-NO_BOUND, -1, 0, BASE - 1, BASE, BASE + 50, BASE + 2**31, 2**63 - 1, NO_BOUND)


def read(body: Any, header: BatchHeader, **asked: Any) -> Any:
    asked = {"earliest": -NO_BOUND, "latest": NO_BOUND} | asked
    try:
        return summarize(body, header, **asked)
    except (InvalidRecords, UnpackedTooLarge) as error:
        return type(error), str(error), getattr(error, "index", None)


def both_read_the_same(body: Any, header: BatchHeader, **asked: Any) -> Any:
    """What both say."""
    natively = read(body, header, **asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_native", lambda: None)
        assert read(body, header, **asked) == natively
    return natively


def header_of(batch: bytes) -> BatchHeader | None:
    try:
        return parse_at(batch, 0)
    except InvalidBatch:
        return None


def bounds(rng: random.Random) -> dict[str, int]:
    return {
        "earliest": rng.choice(BOUNDS),
        "latest": rng.choice(BOUNDS),
        "most_headers": rng.choice((0, 1, 5, NO_BOUND)),
        "first": rng.choice((0, 0, 1, 5, 10**6)),
    }


@settings(max_examples=400)
@given(st.integers(0, 2**64))
def test_of_records_as_producers_write_them(seed: int) -> None:
    rng = random.Random(seed)
    batch = random_batch(rng)
    both_read_the_same(batch[HEADER_BYTES:], parse_at(batch, 0), **bounds(rng))


@settings(max_examples=2_000)
@given(st.integers(0, 2**64))
def test_of_damaged_records_also_what_is_wrong_with_them(seed: int) -> None:
    rng = random.Random(seed)
    batch = damaged_batch(random_batch(rng), rng)
    if (header := header_of(batch)) is not None and abs(header.record_count) <= 1_000:
        both_read_the_same(batch[HEADER_BYTES : header.end], header, **bounds(rng))


@settings(max_examples=1_000)
@given(
    st.lists(st.sampled_from([*b"\0\1\2\3\4\x0e\x10\x7f\x80\x81\xff"]), max_size=40).map(bytes),
    st.integers(-1, 4),
)
def test_of_random_bytes(body: bytes, count: int) -> None:
    both_read_the_same(body, parse_at(raw(b"", 1), 0)._replace(record_count=count))


def test_what_is_made_has_each_fault() -> None:
    """Otherwise nothing would be shown."""
    rng, found = random.Random(1), set()
    for name, batch in BROKEN.items():
        header = parse_at(batch, 0)
        if header.compression == "none":
            said = both_read_the_same(batch[HEADER_BYTES:], header)
            assert said[0] is InvalidRecords, name
    pieces = [b"\0", b"\1", b"\2", b"\3", b"\x0c", b"\x0e", b"\x10", b"\x12", b"\x80", b"\xff" * 5]
    for number in range(20_000):
        body = b"".join(rng.choice(pieces) for _ in range(rng.randrange(10)))
        if number % 2:
            rest = b"\0\0\0\1\1"[: rng.randrange(6)] + body
            body = varint(len(rest)) + rest
        header = parse_at(raw(b"", 1), 0)._replace(record_count=rng.randrange(3))
        asked = records._Asked(header.record_count, 0, NOW, -NO_BOUND, NO_BOUND - 1, 1)
        native = records._native()
        assert native is not None
        said = records._read_natively(native, body, asked)
        if isinstance(said, records._Wrong):
            found.add(said.fault)
            if said.fault is Fault.ATTRIBUTES:
                continue  # Python reads on
        assert said == records._read(body, asked)
    assert found == set(Fault)


@pytest.mark.parametrize("codec", CODECS)
def test_of_what_was_compressed_by_each_codec(codec: str) -> None:
    values = [
        (NOW + n, b"k" if n % 3 else None, bytes(n), [("h", b"v")] * (n % 4)) for n in range(300)
    ]
    batch = built(values, CODECS[codec])
    header = parse_at(batch, 0)
    said = both_read_the_same(unpacked(batch, header, 1 << 20), header, latest=NOW + 100)
    assert [index for index, _ in said.out_of_range] == [101, 102, 103]
    assert said.headers == sum(n % 4 for n in range(300))


def test_bounds_that_no_record_can_keep_are_kept_by_none() -> None:
    header = parse_at(raw(b"", 1), 0)._replace(base_timestamp=0)
    for delta in (-(2**63), 2**63 - 1, 5):
        body = record(delta, 0, b"v")
        for earliest, latest in ((-(2**64), -(2**63) - 1), (2**63, 2**64), (6, 4)):
            said = both_read_the_same(body, header, earliest=earliest, latest=latest)
            assert said.out_of_range == ((0, delta),)
        assert not both_read_the_same(body, header, earliest=delta, latest=delta).out_of_range


def test_a_timestamp_beyond_64_bits_is_out_of_every_range_and_no_overflow() -> None:
    header = parse_at(raw(b"", 1), 0)
    said = both_read_the_same(record(2**63 - 1, 0, b"v"), header, latest=2**63 - 1)
    assert said.out_of_range == ((0, NOW + 2**63 - 1),)


class Noted:
    """The native reader, noting which of its calls is taken."""

    def __init__(self, native: Any) -> None:
        self.taken: list[str] = []
        self.alone = self._noting("alone", native.alone)
        self.beside = self._noting("beside", native.beside)

    def _noting(self, name: str, call: Any) -> Any:
        def noting(*arguments: Any) -> int:
            self.taken.append(name)
            return int(call(*arguments))

        return noting


def test_what_takes_long_lets_go_of_the_interpreters_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted(records._native())
    monkeypatch.setattr(records, "_native", lambda: noted)
    for size in (10, KEPT_LOCK_BYTES + 10):
        batch = record_batch(payload=bytes(size))
        read(batch[HEADER_BYTES:], parse_at(batch, 0))
    assert noted.taken == ["alone", "beside"]


@pytest.mark.parametrize("wrong", [False, True])
def test_no_record_and_no_header_is_read_in_python_where_the_library_is(
    monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    """Whatever is wrong with them, and however late."""

    def refused(*_: object) -> None:
        raise AssertionError("it is read in Python")

    monkeypatch.setattr(records, "_read", refused)
    for patched in ("varint", "signed"):
        monkeypatch.setattr(records, patched, refused)
    headers = [("", b"")] * 1_000
    batch = built([(NOW, None, b"v", headers)] * 3)
    header, body = parse_at(batch, 0), batch[HEADER_BYTES:]
    said = read(body[:-1] + b"\7" if wrong else body, header)
    assert said == (
        (InvalidRecords, "record 2 has a header of no length", 2)
        if wrong
        else records.RecordSummary(NOW, (), 3_000)
    )


# -- codecs


EMPTY = gzip.compress(b"")
BLOCK = struct.pack(">i", 1) + b"\0"
LZ4 = b"\x04\x22\x4d\x18\x60\x40\x82"


@pytest.mark.parametrize(
    ("first", "each", "last", "attributes", "costs"),
    [
        (b"", EMPTY, b"", 1, records.MEMBER_COSTS),
        (records.XERIAL_HEADER, BLOCK, b"", 2, records.SNAPPY_BLOCK_COSTS),
        (LZ4, struct.pack("<I", 0x80000001) + b"x", bytes(4), 3, records.LZ4_BLOCK_COSTS),
    ],
    ids=["gzip", "snappy", "lz4"],
)
def test_of_a_batch_in_ever_so_many_pieces_no_more_are_read_than_bytes_could_be(
    first: bytes, each: bytes, last: bytes, attributes: int, costs: int
) -> None:
    """Each takes Python as long as many bytes of records take a codec."""
    limit = 50 * costs
    few = raw(first + each * 40 + last, attributes=attributes)
    assert len(unpacked(few, parse_at(few, 0), limit)) in (0, 40)
    many = raw(first + each * 60 + last, attributes=attributes)
    with pytest.raises(UnpackedTooLarge, match=r"streams|blocks"):
        unpacked(many, parse_at(many, 0), limit)
    assert len(unpacked(many, parse_at(many, 0), 2 * limit)) in (0, 60)


# -- the search


def find(batch: bytes, timestamp: int | None, not_before: int = 70) -> FoundRecord | None:
    asked = {"base_offset": 70, "not_before": not_before, "most_unpacked": 1 << 20}
    found = find_record(batch, timestamp, **asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_native", lambda: None)
        assert find_record(batch, timestamp, **asked) == found
    return found


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.integers(0, 11),
    st.integers(0, 13),
    st.sampled_from(list(CODECS.values())),
)
def test_a_search_finds_what_a_list_of_the_records_has(
    times: list[int], wanted: int, first: int, codec: int
) -> None:
    batch = built([(NOW + t, None, b"v", []) for t in times], codec)
    rows = [FoundRecord(70 + n, NOW + t) for n, t in enumerate(times)][first:]
    later = [row for row in rows if row.timestamp >= NOW + wanted]
    assert find(batch, NOW + wanted, 70 + first) == (later[0] if later else None)
    most = max((row.timestamp for row in rows), default=None)
    largest = next((row for row in rows if row.timestamp == most), None)
    assert find(batch, None, 70 + first) == largest


def test_records_without_a_timestamp_are_found_by_none() -> None:
    batch = raw(record(-1 - NOW, 0, b"v") + record(-1 - NOW, 1, b"v"), 2, max_timestamp=-1)
    assert find(batch, None, 71) == find(batch, -1, 71) == FoundRecord(71, -1)
    assert find(batch, 0) is None


def test_what_cannot_be_unpacked_names_its_offset() -> None:
    with pytest.raises(UndecodableBatch, match="offset 70"):
        find(raw(varint(100), attributes=4), NOW)
