"""Segment files follow Kafka's rules; what cannot be one segment is refused."""

from __future__ import annotations

import tempfile
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.segment_on_disk import write_segment
from tests.unit.kafka.segment_batches import (
    CODECS,
    EPOCH,
    Spec,
    build,
    build_all,
    header_list,
    segment,
    sized,
    spec_lists,
)
from tideline.domain.remote_log import EpochStart
from tideline.kafka.batches import iter_batches
from tideline.kafka.segment_files import (
    ProducerSnapshotEntry,
    SegmentFile,
    decode_leader_epochs,
    decode_snapshot,
)
from tideline.kafka.segment_lookup import (
    OffsetPosition,
    TimestampOffset,
    offset_entries,
    time_entries,
)
from tideline.kafka.segment_writer import InvalidSegment, OffsetGap, SegmentWriter


def test_the_log_is_the_batches_byte_for_byte(tmp_path: Path) -> None:
    built = segment(tmp_path, [sized(3, 20), sized(2, 50)], base_offset=70)
    assert built.data[".log"] == b"".join(built.batches)
    assert built.written.files[SegmentFile.LOG].name == f"{70:020d}.log"
    assert (built.written.base_offset, built.written.last_offset) == (70, 74)
    assert (built.written.batches, built.written.records) == (2, 5)
    assert built.written.log_bytes == len(built.data[".log"])


def test_an_index_entry_precedes_a_batch_once_the_interval_has_passed(tmp_path: Path) -> None:
    built = segment(tmp_path, [sized(2, 3_000) for _ in range(4)], base_offset=10)
    size = len(built.batches[0])
    assert size > 4096
    assert list(offset_entries(built.data[".index"], built.extent)) == [
        OffsetPosition(13, size),
        OffsetPosition(15, 2 * size),
        OffsetPosition(17, 3 * size),
    ], "by last offset, and never the first batch"


def test_exactly_the_interval_is_not_past_it(tmp_path: Path) -> None:
    batches = [sized(1, 1_000) for _ in range(3)]
    size = len(build(batches[0], 0))
    (tmp_path / "at").mkdir()
    (tmp_path / "below").mkdir()
    at = segment(tmp_path / "at", batches, interval=size)
    below = segment(tmp_path / "below", batches, interval=size - 1)
    assert len(at.data[".index"]) == 8
    assert len(below.data[".index"]) == 16


def test_a_time_entry_names_the_last_offset_of_the_first_batch_with_the_largest_time(
    tmp_path: Path,
) -> None:
    specs = [
        Spec((100, 900, 200), 3_000),
        Spec((900, 300), 3_000),
        Spec((400,), 6_000),
        Spec((1_000, 5), 3_000),
    ]
    built = segment(tmp_path, specs)
    assert list(time_entries(built.data[".timeindex"], built.extent)) == [
        TimestampOffset(900, 2),
        TimestampOffset(1_000, 7),
    ]
    assert (built.written.max_timestamp, built.written.max_timestamp_offset) == (1_000, 7)


def test_closing_adds_the_largest_time_unless_it_is_there(tmp_path: Path) -> None:
    built = segment(tmp_path, [Spec((5, 9, 7))])
    assert list(time_entries(built.data[".timeindex"], built.extent)) == [TimestampOffset(9, 2)]
    assert built.data[".index"] == b""


def test_records_without_timestamps_leave_the_time_index_empty(tmp_path: Path) -> None:
    built = segment(tmp_path, [Spec((0, 0), log_append_time=-1)])
    assert built.data[".timeindex"] == b""
    assert built.written.max_timestamp == -1


def test_the_snapshot_carries_each_producers_last_batch_on_from_its_basis(tmp_path: Path) -> None:
    basis = (
        ProducerSnapshotEntry(3, 1, 9, 40, 0, 500),
        ProducerSnapshotEntry(4, 0, 2, 41, 1, 600),
    )
    specs = [
        Spec((1_000, 1_001), producer_id=3, base_sequence=10),
        Spec((1_005,), producer_id=-1),
        Spec((1_002,), producer_id=3, base_sequence=12),
    ]
    written = write_segment(
        tmp_path,
        build_all(specs, 50),
        base_offset=50,
        leader_epoch=EPOCH,
        producers=basis,
    )
    expected = (
        ProducerSnapshotEntry(3, 0, 12, 53, 0, 1_002),
        ProducerSnapshotEntry(4, 0, 2, 41, 1, 600),
    )
    assert written.producers == expected
    assert decode_snapshot(written.files[SegmentFile.SNAPSHOT].read_bytes()) == expected


def test_producers_that_a_broker_would_have_forgotten_are_left_out() -> None:
    known = ProducerSnapshotEntry(4, 0, 2, -1, 1, 600)
    writer = SegmentWriter(BytesIO(), base_offset=0, leader_epoch=EPOCH)
    writer.append(build(Spec((1_000,), producer_id=3, base_sequence=0), 0))
    written = writer.finish(producers=[known], producers_since=700)
    assert [entry.producer_id for entry in written.producers] == [3]


def test_the_checkpoint_has_the_logs_lineage_and_the_segment_its_own_epoch(tmp_path: Path) -> None:
    lineage = (EpochStart(2, 0), EpochStart(EPOCH, 20))
    written = write_segment(
        tmp_path, [build(sized(1, 5), 30)], base_offset=30, leader_epoch=EPOCH, lineage=lineage
    )
    text = written.files[SegmentFile.LEADER_EPOCHS].read_bytes()
    assert text == b"0\n2\n2 0\n5 20\n"
    assert decode_leader_epochs(text) == lineage
    assert written.leader_epochs == (EpochStart(EPOCH, 30),)


@pytest.mark.parametrize(
    "lineage", [(EpochStart(EPOCH - 1, 0),), (EpochStart(EPOCH, 31),)], ids=["epoch", "start"]
)
def test_a_lineage_that_does_not_lead_to_the_segment_is_refused(
    lineage: tuple[EpochStart, ...],
) -> None:
    with pytest.raises(InvalidSegment, match="lineage ends with epoch"):
        SegmentWriter(BytesIO(), base_offset=30, leader_epoch=EPOCH, lineage=lineage)


@pytest.mark.parametrize(("second", "what"), [(4, "missing"), (2, "repeated")])
def test_a_gap_or_an_overlap_is_refused_naming_both_offsets(
    tmp_path: Path, second: int, what: str
) -> None:
    batches = [build(sized(3, 5), 0), build(sized(3, 5), second)]
    with pytest.raises(OffsetGap, match=f"offset 3 must follow .* at {second}.*{what}") as caught:
        write_segment(tmp_path, batches, base_offset=0, leader_epoch=EPOCH)
    assert (caught.value.expected, caught.value.found) == (3, second)


def test_a_first_batch_that_is_not_the_base_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OffsetGap):
        write_segment(tmp_path, [build(sized(1, 5), 8)], base_offset=7, leader_epoch=EPOCH)


def damaged(batch: bytes, position: int, value: bytes) -> bytes:
    return batch[:position] + value + batch[position + len(value) :]


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        (build(sized(2, 5), 0, leader_epoch=EPOCH - 1), "leader epoch 4, the segment 5"),
        (damaged(build(sized(2, 5), 0), 80, b"\xff"), "does not match its CRC"),
        (damaged(build(sized(2, 5), 0), 16, b"\x01"), "magic 1"),
        (damaged(build(sized(2, 5), 0), 57, b"\0\0\0\x03"), "3 records but a last offset delta"),
        (damaged(build(sized(2, 5), 0), 21, b"\0\x10"), "transactional"),
        (build(sized(2, 5), 0)[:-1], "says .* bytes, .* are there"),
    ],
    ids=["epoch", "crc", "magic", "count", "transactional", "cut"],
)
def test_a_batch_that_no_suffix_holds_is_refused(tmp_path: Path, batch: bytes, what: str) -> None:
    with pytest.raises(InvalidSegment, match=what):
        write_segment(tmp_path, [batch], base_offset=0, leader_epoch=EPOCH)


def test_of_a_piece_with_a_wrong_batch_nothing_is_appended() -> None:
    first, second, third = build_all([sized(3, 5)] * 3)
    log = BytesIO()
    writer = SegmentWriter(log, base_offset=0, leader_epoch=EPOCH)
    writer.append(first)
    with pytest.raises(InvalidSegment, match="does not match its CRC"):
        writer.append(second + damaged(third, 80, b"\xff"))
    with pytest.raises(InvalidSegment, match="after offset 5"):
        writer.append(second + third[:-1])
    assert (writer.next_offset, writer.size) == (3, len(first))
    written = writer.finish()
    assert (written.last_offset, written.batches, written.records) == (2, 1, 3)
    assert written.log_bytes == len(log.getvalue()) == len(first)


def test_what_the_log_does_not_take_is_not_counted() -> None:
    class Full(BytesIO):
        def write(self, some: object, /) -> int:
            raise OSError("no space left")

    writer = SegmentWriter(Full(), base_offset=0, leader_epoch=EPOCH)
    with pytest.raises(OSError, match="no space left"):
        writer.append(build(sized(3, 5), 0))
    assert (writer.next_offset, writer.size) == (0, 0)


def test_a_segment_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSegment, match="no batch was appended to the segment at 9"):
        write_segment(tmp_path, [], base_offset=9, leader_epoch=EPOCH)


def test_an_offset_too_far_from_the_base_is_refused() -> None:
    far = build(Spec((1,)), 0)
    far = damaged(far, 0, (2**31 + 1).to_bytes(8, "big"))
    writer = SegmentWriter(BytesIO(), base_offset=1, leader_epoch=EPOCH)
    writer._next = 2**31 + 1
    with pytest.raises(InvalidSegment, match="does not fit"):
        writer.append(far)


@settings(deadline=None, max_examples=30)
@given(specs=spec_lists())
def test_files_do_not_depend_on_how_batches_are_grouped(specs: list[Spec]) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        built = segment(Path(one), specs, interval=500)
        together = write_segment(
            Path(other),
            [b"".join(built.batches)],
            base_offset=0,
            leader_epoch=EPOCH,
            index_interval_bytes=500,
        )
        assert {f.value: p.read_bytes() for f, p in together.files.items()} == built.data
        assert built.data[".log"] == b"".join(built.batches)
        assert [h[0] for h in header_list(built.data[".log"])] == [
            h.base_offset for batch in built.batches for h in iter_batches(batch)
        ]


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_every_codec_is_taken_as_it_is(tmp_path: Path, codec: str) -> None:
    built = segment(tmp_path, [Spec((1, 2, 3), 500, codec), Spec((4,), 500, codec)])
    assert built.written.records == 4
    assert {h.compression for h in iter_batches(built.data[".log"])} == {codec}
