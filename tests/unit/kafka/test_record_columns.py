"""Records are read as another library wrote them, and no length that a batch says is believed."""

from __future__ import annotations

from contextlib import suppress

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kafka.segment_batches import CODECS
from tideline.kafka.batches import parse_at
from tideline.kafka.record_columns import RecordColumns, append_records
from tideline.kafka.records import InvalidRecords, UnpackedTooLarge, unpacked

BYTES = st.none() | st.binary(max_size=200)
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2**42),
        BYTES,
        BYTES,
        st.lists(st.tuples(st.text(max_size=8), BYTES), max_size=3),
    ),
    min_size=1,
    max_size=150,
)
Records = list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]


def encoded(records: Records, codec: str) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=CODECS[codec], is_transactional=0, producer_id=-1,
        producer_epoch=-1, base_sequence=-1, batch_size=1 << 30,
    )  # fmt: skip
    for n, (timestamp, key, value, headers) in enumerate(records):
        builder.append(n, timestamp=timestamp, key=key, value=value, headers=headers)
    return bytes(builder.build())


def columns(batch: bytes, base: int, start: int, end: int) -> RecordColumns:
    header = parse_at(batch, 0)
    found = RecordColumns()
    append_records(
        found, bytes(unpacked(batch, header, 1 << 30)), header,
        base_offset=base, start=start, end=end, append_time=None,
    )  # fmt: skip
    return found


@settings(max_examples=80)
@given(RECORDS, st.sampled_from(sorted(CODECS)), st.data())
def test_every_record_is_read_as_it_was_written_and_others_are_left_out(
    records: Records, codec: str, data: st.DataObject
) -> None:
    base = data.draw(st.sampled_from([0, 5, 2**40]))
    start = base + data.draw(st.integers(0, len(records)))
    end = start + data.draw(st.integers(0, len(records)))
    found = columns(encoded(records, codec), base, start, end)
    wanted = [
        (base + n, timestamp, key, value, headers or None)
        for n, (timestamp, key, value, headers) in enumerate(records)
        if start <= base + n < end
    ]
    rows = zip(
        found.offsets, found.timestamps, found.keys, found.values, found.headers, strict=True
    )
    assert list(rows) == wanted


@settings(max_examples=200)
@given(RECORDS, st.data())
def test_damaged_records_are_an_error_or_some_records_and_never_another_failure(
    records: Records, data: st.DataObject
) -> None:
    batch = bytearray(encoded(records, "none"))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(61, len(batch) - 1))
        batch[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF, batch[at] ^ 1]))
    with suppress(InvalidRecords, UnpackedTooLarge):
        found = columns(bytes(batch), 0, 0, 2**62)
        assert len(found) == len(records)
        assert found.offsets == sorted(set(found.offsets))


def test_the_wrong_record_is_named() -> None:
    batch = bytearray(encoded([(1, b"k", b"v", []), (2, None, b"w" * 9, [])], "none"))
    batch[-11] ^= 0x02  # the length of the last value
    with pytest.raises(InvalidRecords, match="record 1 ") as told:
        columns(bytes(batch), 0, 0, 9)
    assert told.value.index == 1
