"""Batches of a segment are read where they lie, in few requests, and believed only as committed."""

from __future__ import annotations

import pytest

from spark.common.read_ahead import read_ahead
from spark.tiering.wal_reads import BatchMismatch, check, in_segment, reads
from tests.unit.kafka.segment_batches import build, sized
from tideline.control_plane.tiering_model import PlannedBatch
from tideline.kafka.batches import iter_batches
from tideline.object_store.byte_ranges import COALESCE_GAP, MAX_GET, ByteRange

EPOCH = 3


def planned(
    key: str = "wal/a", at: int = 0, size: int = 100, base: int = 0, records: int = 1, **more: int
) -> PlannedBatch:
    fields = {"append_time": None, "max_timestamp": 1} | more
    return PlannedBatch(key, at, size, base, base + records - 1, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"byte_size": 200}, "bytes"),
        ({"last_offset": 14}, "records"),
        ({"max_timestamp": 77}, "max timestamp"),
    ],
)
def test_a_batch_that_is_not_what_was_committed_is_refused(
    wrong: dict[str, int], says: str
) -> None:
    raw = build(sized(3, 20), 0, -1)
    fits = planned(size=len(raw), base=10, records=3, max_timestamp=1_002)
    check(memoryview(raw), fits, "t-0")
    with pytest.raises(BatchMismatch, match=f"wal/a .*{says}.* of t-0 were committed with"):
        check(memoryview(raw), fits._replace(**wrong), "t-0")


def test_a_damaged_batch_is_refused() -> None:
    raw = bytearray(build(sized(3, 20), 0, -1))
    batch = planned(size=len(raw), base=10, records=3, max_timestamp=1_002)
    raw[-1] ^= 1
    with pytest.raises(BatchMismatch, match="CRC"):
        check(memoryview(raw), batch, "t-0")
    with pytest.raises(BatchMismatch, match="magic"):
        check(memoryview(bytes(len(raw))), batch, "t-0")


def parts(*batches: PlannedBatch) -> list[tuple[str, int, int, int]]:
    return [(r.part.key, r.part.start, r.part.end, len(r.batches)) for r in reads(batches)]


def test_batches_that_lie_close_are_read_by_one_request_and_others_by_their_own() -> None:
    near, far = 300 + COALESCE_GAP, 401 + 2 * COALESCE_GAP
    assert parts(
        planned(at=100), planned(at=200), planned(at=near), planned(at=far), planned("wal/b", far),
        planned("wal/b", 0),
    ) == [
        ("wal/a", 100, near + 100, 3), ("wal/a", far, far + 100, 1), ("wal/b", far, far + 100, 1),
        ("wal/b", 0, 100, 1),
    ]  # fmt: skip
    half = MAX_GET // 2 + 1
    assert parts(planned(at=0, size=half), planned(at=half, size=half), planned(size=3 * half)) == [
        ("wal/a", 0, half, 1), ("wal/a", half, 2 * half, 1), ("wal/a", 0, 3 * half, 1),
    ]  # fmt: skip
    assert parts() == []


def test_batches_come_out_of_a_read_as_they_stand_in_a_segment_up_to_one_that_is_wrong() -> None:
    raws = [build(sized(n + 1, 20), 0, -1) for n in range(4)]
    body = raws[0] + raws[1] + b"others" + raws[2] + raws[3][:-1] + b"?"
    at, offset, batches = 0, 10, []
    for n, raw in enumerate(raws):
        at += 6 if n == 2 else 0
        batches.append(
            planned(at=at + 50, size=len(raw), base=offset, records=n + 1, max_timestamp=1_000 + n)
        )
        at, offset = at + len(raw), offset + n + 1
    (read,) = reads(batches)
    assert read.part == ByteRange("wal/a", 50, 50 + len(body))
    pieces: list[bytes] = []
    with pytest.raises(BatchMismatch, match="CRC"):
        pieces += [bytes(p) for p in in_segment(read, body, EPOCH, "t-0")]  # keeps none
    iterator = in_segment(read, body, EPOCH, "t-0")
    pieces = [bytes(next(iterator)), bytes(next(iterator))]
    assert [len(piece) for piece in pieces] == [len(raws[0] + raws[1]), len(raws[2])]
    headers = [header for piece in pieces for header in iter_batches(piece)]
    assert [(h.base_offset, h.partition_leader_epoch) for h in headers] == [
        (10, EPOCH), (11, EPOCH), (13, EPOCH),
    ]  # fmt: skip
    with pytest.raises(BatchMismatch):
        next(iterator)


def some(*sizes: int) -> list[ByteRange]:
    return [ByteRange(str(n), 0, size) for n, size in enumerate(sizes)]


def test_reading_ahead_keeps_the_order_and_the_bound() -> None:
    outstanding: list[str] = []

    def get(part: ByteRange) -> bytes:
        outstanding.append(part.key)
        return part.key.encode()

    found = read_ahead(some(5, 1, 9, 2, 2, 30, 1), get, window_bytes=10)
    assert next(found) == b"0"
    assert set(outstanding) <= {"0", "1", "2"}
    assert list(found) == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_reading_ahead_fails_where_the_range_is() -> None:
    def get(part: ByteRange) -> bytes:
        if part.key == "1":
            raise KeyError(part.key)
        return b"x"

    found = read_ahead(some(1, 1, 1), get)
    assert next(found) == b"x"
    with pytest.raises(KeyError):
        next(found)
