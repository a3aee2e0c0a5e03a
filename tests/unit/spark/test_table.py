"""A segment's rows, whole, in parts, and from a time on; options, filters, limits of a stream."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    Not,
)

from spark.table.ahead import GET_BYTES
from spark.table.options import bounds_of, parse
from spark.table.pieces import Piece, Place, SegmentPart
from spark.table.prefix import aborted_transactions
from spark.table.rows import arrow_rows
from spark.table.scan import Scanner
from spark.table.source import register, shared_out
from tests.unit.kafka.segment_batches import Built, Spec, segment, sized, spec_lists
from tideline.domain.coverage import FOREVER, OffsetRange
from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import EpochStart, RemoteSegment, SegmentState
from tideline.domain.table import Bounds, Isolation, PrefixPiece, TableUnreadable
from tideline.errors import UsageError
from tideline.kafka.batches import iter_batches
from tideline.kafka.txn_index import AbortedTxn
from tideline.object_store.client import ObjectMissing, ObjectTooShort, ObjectTruncated
from tideline.settings import JobsSettings

SETTINGS = JobsSettings.of(
    {"TIDELINE_POSTGRES_DSN": "postgresql://x@127.0.0.1:1/x", "TIDELINE_KAFKA_BOOTSTRAP": "h:1"}
)
Row = tuple[int, int, bytes | None]


class Kept:
    """Objects in memory."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.objects = dict(objects)

    def get(
        self, bucket: str, key: str, start: int | None = None, size: int | None = None
    ) -> bytes:
        if key not in self.objects:
            raise ObjectMissing(key)
        first = start or 0
        if first >= len(self.objects[key]) and size:
            raise ObjectTooShort(key)
        found = self.objects[key][first : None if size is None else first + size]
        if size is not None and len(found) < size:
            raise ObjectTruncated(key)
        return found

    def close(self) -> None:
        pass


def built_of(specs: list[Spec], base: int = 0, interval: int = 300) -> Built:
    with tempfile.TemporaryDirectory() as directory:
        return segment(Path(directory), specs, base_offset=base, interval=interval)


def piece_of(built: Built, part: int = 0, parts: int = 1) -> Piece:
    extent = built.extent
    return Piece(
        "t", UUID(int=1), 3, Place.PREFIX, extent.base_offset, extent.last_offset + 1,
        extent.log_bytes,
        SegmentPart("s", extent.base_offset, extent.last_offset, extent.log_bytes, part, parts),
    )  # fmt: skip


def objects_of(built: Built) -> dict[str, bytes]:
    return {f"s{suffix}": data for suffix, data in built.data.items()}


def rows(
    objects: Mapping[str, bytes],
    piece: Piece,
    not_before: int = -1,
    isolation: Isolation = Isolation.READ_COMMITTED,
) -> list[Row]:
    scanner = Scanner(SETTINGS, not_before=not_before, store=Kept(objects))
    return [
        (row["offset"], round(row["timestamp"].timestamp() * 1000), row["value"])
        for batch in arrow_rows(scanner, piece, isolation)
        for row in batch.to_pylist()
    ]


def expected(specs: list[Spec], base: int) -> list[Row]:
    found, offset = [], base
    for spec in specs:
        for n, timestamp in enumerate(spec.timestamps):
            value = (b"%d/%d " % (offset + n, timestamp)).ljust(spec.value_bytes, b".")
            at = timestamp if spec.log_append_time is None else spec.log_append_time
            found.append((offset + n, at, value))
        offset += spec.offsets
    return found


@settings(max_examples=40)
@given(spec_lists(), st.sampled_from([0, 7, 2**40]), st.integers(1, 6), st.integers(0, 520))
def test_parts_of_a_segment_have_each_row_once_and_a_time_takes_away_older_ones_only(
    specs: list[Spec], base: int, parts: int, not_before: int
) -> None:
    built, wanted = built_of(specs, base), expected(specs, base)
    objects = objects_of(built)
    assert rows(objects, piece_of(built)) == wanted
    pieces = [piece_of(built, part, parts) for part in range(parts)]
    assert [row for piece in pieces for row in rows(objects, piece)] == wanted
    young = [row for piece in pieces for row in rows(objects, piece, not_before)]
    assert [row for row in young if row[1] >= not_before] == [
        row for row in wanted if row[1] >= not_before
    ]
    assert set(young) <= set(wanted)


def test_a_time_near_the_end_reads_a_fraction_of_the_segment() -> None:
    specs = [sized(10, 200, 1_000 + 100 * n) for n in range(200)]
    built = built_of(specs, interval=4096)
    store = Kept(objects_of(built))
    piece = piece_of(built)
    asked: list[int] = []
    get = store.get
    store.get = lambda b, k, start=None, size=None: (  # type: ignore[method-assign]
        asked.append(size or 0),
        get(b, k, start, size),
    )[1]
    scanner = Scanner(SETTINGS, not_before=20_800, store=store)
    found = [r for b in arrow_rows(scanner, piece, Isolation.READ_COMMITTED) for r in b.to_pylist()]
    assert found[-1]["offset"] == 1999
    assert sum(asked) < built.extent.log_bytes / 10


def test_a_segment_of_packed_indexes_is_read_whole_by_its_first_part() -> None:
    specs = [sized(3, 50) for _ in range(20)]
    built = built_of(specs)
    objects = {"s.log": built.data[".log"], "s.rsm-manifest": b"{}"}
    found = [rows(objects, piece_of(built, part, 3)) for part in range(3)]
    assert found == [expected(specs, 0), [], []]


@settings(max_examples=60)
@given(st.data())
def test_a_changed_byte_of_a_batch_is_named_by_an_offset(data: st.DataObject) -> None:
    specs = [sized(3, 50) for _ in range(8)]
    built = built_of(specs, base=100)
    log = bytearray(built.data[".log"])
    batch = data.draw(st.sampled_from(list(iter_batches(log))))
    covered = st.integers(batch.position + 21, batch.end - 1) | st.integers(
        batch.position, batch.position + 11
    )
    log[data.draw(covered)] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(TableUnreadable) as told:
        rows({**objects_of(built), "s.log": bytes(log)}, piece_of(built))
    named = re.search(r"t-3: offset (\d+), byte \d+ of s\.log", str(told.value))
    assert named, told.value
    # The offsets are outside of the CRC: one that is too high is seen at the next batch.
    assert 100 <= int(named[1]) <= 124


def test_an_old_format_is_refused_by_its_offset() -> None:
    built = built_of([sized(3, 50), sized(3, 50)])
    log = bytearray(built.data[".log"])
    second = list(iter_batches(log))[1]
    log[second.position + 16] = 1
    with pytest.raises(TableUnreadable, match=r"offset 3 is in the format of before Kafka 0\.11"):
        rows({**objects_of(built), "s.log": bytes(log)}, piece_of(built))


def test_a_segment_that_was_cut_off_says_from_where_on() -> None:
    built = built_of([sized(3, 50) for _ in range(4)])
    for short in (built.data[".log"][:-10], b""):
        with pytest.raises(TableUnreadable, match="t-3: offset"):
            rows({**objects_of(built), "s.log": short}, piece_of(built))


def test_more_than_one_get_follow_each_other_without_a_seam() -> None:
    specs = [sized(1, 700_000) for _ in range(2 * GET_BYTES // 700_000 + 3)]
    built = built_of(specs)
    assert built.extent.log_bytes > 2 * GET_BYTES
    found = rows(objects_of(built), piece_of(built))
    assert [row[0] for row in found] == list(range(len(specs)))


def test_aborted_transactions_are_what_their_index_says_by_producer() -> None:
    aborted = AbortedTxn(7, 3, 9)
    from tideline.kafka.txn_index import Aborted

    class Header:
        is_transactional, producer_id, base_offset = True, 7, 3

    assert Aborted([aborted]).has(Header())  # type: ignore[arg-type]
    Header.base_offset = 10
    assert not Aborted([aborted]).has(Header())  # type: ignore[arg-type]
    Header.base_offset, Header.producer_id = 5, 8
    assert not Aborted([aborted]).has(Header())  # type: ignore[arg-type]


@pytest.mark.parametrize(("told_from", "known"), [(FOREVER, True), (101, True), (100, False)])
def test_a_transaction_index_that_is_not_there_is_empty_where_nobody_said_that_there_is_one(
    monkeypatch: pytest.MonkeyPatch, told_from: int, known: bool
) -> None:
    """Of a segment that begins at 100, tiered by a broker before Kafka 4.0 or by a later one."""

    def missing(_: str, key: str) -> bytes:
        raise ObjectMissing(key)

    store = SimpleNamespace(get=missing)
    monkeypatch.setattr("spark.table.prefix.shared_store", lambda _: store)
    of = RemoteSegment(
        TopicIdPartition(UUID(int=1), 0), "t", UUID(int=2), 100, 199, 1_000, (EpochStart(0, 0),),
        SegmentState.COPY_SEGMENT_FINISHED,
    )  # fmt: skip
    cover = [PrefixPiece(of, OffsetRange(100, 200))]
    jobs: Any = SimpleNamespace(s3_tiered_prefix="", s3_tiered_bucket="tiered")
    if known:
        assert aborted_transactions(jobs, cover, told_from) == ()
    else:
        with pytest.raises(TableUnreadable, match="aborted transactions of offsets"):
            aborted_transactions(jobs, cover, told_from)


def test_wrong_options_are_named() -> None:
    good = {"topic": "t"}
    assert parse(good, stream=False).starting_offsets == "earliest"
    assert parse(good, stream=True).starting_offsets == "latest"
    for options, named in (
        ({}, "topic"),
        ({**good, "startingOfsets": "earliest"}, "startingofsets"),
        ({**good, "isolation": "dirty"}, "isolation"),
        ({**good, "endingTimestamp": "soon"}, "endingTimestamp"),
        ({**good, "pinMs": "10"}, "pinMs"),
        ({**good, "failOnDataLoss": "true"}, "failOnDataLoss"),
        ({**good, "startingOffsets": "latest", "startingTimestamp": "1"}, "startingTimestamp"),
    ):
        with pytest.raises(UsageError, match=named):
            parse(options, stream=False)
    with pytest.raises(UsageError, match="endingOffsets"):
        parse({**good, "endingOffsets": "latest"}, stream=True)


def test_filters_limit_what_is_read_and_others_leave_it() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    filters: list[Filter] = [
        In(("partition",), (0, 1)),
        EqualTo(("partition",), 1),
        GreaterThan(("offset",), 9),
        LessThan(("offset",), 20),
        GreaterThanOrEqual(("timestamp",), at),
        LessThan(("timestamp",), at),
        Not(EqualTo(("partition",), 1)),
        EqualTo(("key",), b"k"),
    ]
    assert bounds_of(filters) == Bounds(frozenset({1}), 10, 20, int(at.timestamp() * 1000))


@given(
    st.dictionaries(
        st.integers(0, 9), st.tuples(st.integers(0, 50), st.integers(0, 99)), min_size=1
    ),
    st.integers(1, 500),
)
def test_a_limit_is_kept_and_something_is_read(logs: dict[int, tuple[int, int]], most: int) -> None:
    begun = {p: start for p, (start, _) in logs.items()}
    ends = {p: start + count for p, (start, count) in logs.items()}
    found = shared_out(begun, ends, most)
    read = {p: found[p] - begun[p] for p in begun}
    assert all(0 <= read[p] <= ends[p] - begun[p] for p in begun)
    assert sum(read.values()) <= most
    assert sum(read.values()) > 0 or ends == begun
    if sum(ends.values()) - sum(begun.values()) <= most:
        assert found == ends


def test_the_format_is_refused_where_the_drivers_machine_lacks_the_executors_python() -> None:
    there: Any = SimpleNamespace(
        sparkContext=SimpleNamespace(pythonExec="./environment/bin/python")
    )
    with pytest.raises(UsageError, match=re.escape("./environment/bin/python, which the driver's")):
        register(there, SETTINGS)
