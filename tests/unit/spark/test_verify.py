"""Which ranges a run of verify looks at, and what of the verdict before it stays."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from confluent_kafka import KafkaError as LibrdkafkaError
from confluent_kafka import Producer
from kio.schema.errors import ErrorCode

from spark.table import plan as planning
from spark.table.pieces import Piece, Place, SegmentPart
from spark.table.prefix import Prefix
from spark.table.rows import MOST_MS, arrow_rows
from spark.table.scan import Scanner
from spark.verify import served
from spark.verify.compare import Difference, RangeVerdict, WatchedScanner, _rows, compare
from spark.verify.planning import _by_partition
from spark.verify.served import NOT_UTF_8, Record
from spark.verify.verdict import NAMED, Ranges, TopicVerdict, outstanding, sampled
from tests.raw import Connection, message
from tests.support.waiting import HANGS_S
from tests.unit.kafka.segment_batches import build, sized
from tests.unit.spark.test_table import SETTINGS, Kept
from tideline.domain.coverage import OffsetRange
from tideline.domain.remote_log import RemoteLogIndex
from tideline.domain.table import Isolation, TableRefused, TableUnreadable
from tideline.kafka.batches import computed_crc, parse_at
from tideline.kafka.errors import KafkaError
from tideline.kafka.log_reader import FetchedPiece
from tideline.settings import JobsSettings

TOPIC = UUID(int=1)
ROWS: Any = {p: SimpleNamespace(boundary=0, prefix_end=0, topic_id=TOPIC) for p in (0, 1)}


def piece(start: int, end: int, partition: int = 0) -> Piece:
    return Piece("t", TOPIC, partition, Place.WAL, start, end, 1)


PIECES = [piece(n * 100, n * 100 + 100) for n in range(50)]


def ranges(pieces: Sequence[Piece], **values: Any) -> Ranges:
    whole = {0: OffsetRange(1_000, 5_000), 1: OffsetRange(0, 100)}
    plan: Any = SimpleNamespace(topic="t", rows=ROWS, whole=whole)
    return Ranges(plan, pieces, **values)


def found(piece: Piece, *offsets: int, gone: bool = False, unnamed: int = 0) -> RangeVerdict:
    first = tuple(Difference(piece.partition, offset, "wrong") for offset in offsets)
    return RangeVerdict(
        piece.topic, piece.partition, piece.place, piece.start, piece.end, 1, 1, 1, gone,
        len(first) + unnamed, first,
    )  # fmt: skip


def test_a_range_with_a_named_difference_is_looked_at_whatever_the_dice_say() -> None:
    named = [Difference(0, 2_099, "wrong"), Difference(1, 3_000, "wrong"), Difference(0, -1, "x")]
    for seed in range(20):
        looked_at = sampled(PIECES, ROWS, 0.1, random.Random(seed), named)
        assert PIECES[20] in looked_at
        without = sampled(PIECES, ROWS, 0.1, random.Random(seed))
        assert [one for one in looked_at if one != PIECES[20]] == [
            one for one in without if one != PIECES[20]
        ]
        assert piece(0, 100) in without, "that beside B0"
    assert any(PIECES[20] not in sampled(PIECES, ROWS, 0.1, random.Random(n)) for n in range(20))


def test_a_difference_goes_when_its_range_was_right_or_is_no_part_of_the_log_any_more() -> None:
    right, elsewhere, below = (Difference(0, at, "wrong") for at in (2_000, 2_100, 500))
    other = Difference(1, 2_000, "of another partition")
    verdict = TopicVerdict(ranges(PIECES[10:]), [right, elsewhere, below, other])
    verdict.add(found(PIECES[20]))
    verdict.add(found(PIECES[21], gone=True))
    verdict.settle()
    assert (verdict.differences, verdict.first) == (1, [elsewhere])


def test_a_partition_without_a_plan_keeps_its_differences_beside_what_it_lacks() -> None:
    hole, refused = Difference(0, 3_000, "a hole"), Difference(1, 7, "wrong")
    before = [Difference(0, 3_000, "a hole"), Difference(0, 2_000, "wrong"), refused]
    verdict = TopicVerdict(ranges([], missing=[hole], left_alone={1: "not yet"}), before)
    verdict.settle()
    assert verdict.first == [before[1], hole, refused]
    assert verdict.differences == 3
    assert outstanding(before, [], []) == []


def test_of_every_range_a_difference_is_named_before_any_has_two() -> None:
    verdict = TopicVerdict(ranges(PIECES))
    for one in PIECES:
        verdict.add(found(one, *range(one.start, one.start + 20), unnamed=3))
    verdict.settle()
    assert verdict.differences == 23 * len(PIECES)
    assert len(verdict.first) == NAMED
    assert {one.start for one in PIECES} <= {one.offset for one in verdict.first}


def test_what_is_wrong_with_a_range_is_named_inside_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark.verify.compare._compare", _unreadable)
    settings = JobsSettings.of(
        {"TIDELINE_POSTGRES_DSN": "postgresql://x@h:1/x", "TIDELINE_KAFKA_BOOTSTRAP": "h:1"}
    )
    scanner = WatchedScanner(settings)
    gateways: Any = SimpleNamespace(log_start=lambda *_: 0)
    for reached, named in ((0, 100), (200, 199)):
        scanner.begin(reached)
        (one,) = compare(scanner, gateways, piece(100, 200)).first
        assert one.offset == named


def _unreadable(*_: object) -> int:
    raise TableRefused("no such object")


def test_a_topic_without_a_leader_keeps_the_others_prefixes_from_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def prefixes(_: object, rows: Any) -> dict[str, Prefix]:
        rows = list(rows)
        if "b" in rows:
            raise KafkaError(ErrorCode.leader_not_available, "b-0 has no leader")
        return {row: Prefix(7) for row in rows}

    monkeypatch.setattr(planning, "prefixes", prefixes)
    monkeypatch.setattr(planning, "remote_segments", lambda *_: RemoteLogIndex())
    made: Any = planning.Plan
    plans = [made(None, name, {0: name}, None) for name in "abc"]
    untold = planning.together(plans)
    assert list(untold) == ["b"]
    assert "b-0 has no leader" in str(untold["b"])
    assert dict(plans[0].prefixes) == {"a": Prefix(7), "c": Prefix(7)}
    assert "prefixes" not in plans[1].__dict__


def test_partitions_that_cannot_be_read_are_left_alone_beside_one_that_lacks_something() -> None:
    whole = {0: OffsetRange(0, 100), 1: OffsetRange(0, 100), 2: OffsetRange(50, 100)}
    errors = {1: TableRefused("not yet"), 2: TableUnreadable("no .txnindex")}

    def pieces(wanted: Any, *_: object, split: bool) -> list[Piece]:
        for partition in wanted:
            if partition in errors:
                raise errors[partition]
        return [piece(0, 100, partition) for partition in wanted]

    plan: Any = SimpleNamespace(
        topic="t", rows=ROWS, whole=whole, pieces=pieces, is_removed=lambda *_: False
    )
    found = _by_partition(plan)
    assert [one.partition for one in found.pieces] == [0]
    assert list(found.missing) == [Difference(2, 50, "no .txnindex")]
    assert dict(found.left_alone) == {1: "not yet"}
    del errors[2]
    with pytest.raises(TableRefused, match="not yet"):
        _by_partition(plan)


class Served:
    """What gateways hand out, as a stock consumer reads it."""

    def __init__(self, records: Sequence[Record], in_batches: Sequence[Record] = ()) -> None:
        self.of_consumer = list(records)
        self.in_batches = {one.offset: one for one in in_batches}

    def log_start(self, *_: object) -> int:
        return 0

    def records(self, *_: object) -> Iterator[Record]:
        yield from self.of_consumer

    def again(self, topic: str, partition: int, offset: int, _: object) -> Record | None:
        return self.in_batches.get(offset)


def kept(place: Place, batches: Sequence[bytes], end: int) -> tuple[Kept, Piece]:
    """A segment with offsets ``[0, end)`` of these batches."""
    log = b"".join(batches)
    part = SegmentPart("s", 0, end - 1, len(log))
    return Kept({"s.log": log}), Piece("t", TOPIC, 3, place, 0, end, len(log), part)


def verdict_of(store: Kept, piece: Piece, gateways: Any) -> RangeVerdict:
    return compare(WatchedScanner(SETTINGS, store=store), gateways, piece)


def stored(store: Kept, piece: Piece) -> list[Record]:
    scanner = Scanner(SETTINGS, store=store)
    return list(_rows(arrow_rows(scanner, piece, Isolation.READ_UNCOMMITTED)))


@pytest.mark.parametrize("lost", [[], [5]])
def test_offsets_that_compaction_took_from_the_prefix_are_no_difference(lost: list[int]) -> None:
    """Before, between and behind what it left. A record that is served there is one."""
    store, piece = kept(Place.PREFIX, [build(sized(2, 9), 3), build(sized(1, 9), 9)], 20)
    records = stored(store, piece)
    assert [one.offset for one in records] == [3, 4, 9]
    handed_out = sorted([*records, *(records[0]._replace(offset=offset) for offset in lost)])
    verdict = verdict_of(store, piece, Served(handed_out))
    assert [one.offset for one in verdict.first] == lost
    assert (verdict.records, verdict.batches) == (3, 2)


def test_the_suffix_has_every_offset() -> None:
    store, piece = kept(Place.MERGED, [build(sized(2, 9), 0)], 4)
    whole = Served(stored(store, piece))
    verdict = verdict_of(store, piece, whole)
    assert [one.what for one in verdict.first] == ["no stored batch has offsets 2 to 3"]


def test_what_the_consumer_cannot_read_is_judged_by_the_batch_that_is_served() -> None:
    """A header key that is no UTF-8, the second member of gzip: the library's fault."""
    store, piece = kept(Place.MERGED, [build(sized(4, 9), 0)], 4)
    records = stored(store, piece)
    consumed = [records[0]._replace(headers=NOT_UTF_8), records[1]]
    for again, wrong in ((records, []), ([records[0], records[2]], [3])):
        verdict = verdict_of(store, piece, Served(consumed, again))
        assert [one.offset for one in verdict.first] == wrong


class Message:
    """As librdkafka hands it out, or an error of its own."""

    def __init__(self, offset: int, code: int | None = None, *, odd: bool = False) -> None:
        self._offset, self._odd = offset, odd
        self._error = None if code is None else LibrdkafkaError(code)

    def error(self) -> LibrdkafkaError | None:
        return self._error

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000

    def headers(self) -> None:
        if self._odd:
            b"\xff".decode()

    def key(self) -> bytes:
        return b"k"

    value = key

    def leader_epoch(self) -> int:
        return 5


def test_records_that_the_consumer_cannot_read_end_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers are told as unread, and behind a batch that is no batch for it reading goes on."""
    assigned: list[int] = []
    came = {
        0: [Message(0, odd=True), Message(-1, LibrdkafkaError._BAD_COMPRESSION), Message(9)],
        3: [Message(3), Message(4)],
    }
    consumer: Any = SimpleNamespace(
        assign=lambda places: assigned.append(places[0].offset), unassign=lambda: None
    )
    monkeypatch.setattr(served, "what_came", lambda *_: came[assigned[-1]])
    gateways = served.Gateways(SETTINGS, ["127.0.0.1:1"])
    monkeypatch.setattr(gateways, "_consumer", lambda _: consumer)
    fetched: list[int] = []

    async def fetch(topic: str, partition: int, offset: int, _: object) -> FetchedPiece:
        fetched.append(offset)
        return FetchedPiece(build(sized(2, 9), offset), 5, 0)

    monkeypatch.setattr(gateways, "_fetched", fetch)
    found = list(gateways.records("t", 0, 0, 4, Isolation.READ_UNCOMMITTED))
    assert [(one.offset, one.headers) for one in found] == [(0, NOT_UTF_8), (3, None)]
    assert (assigned, fetched) == ([0, 3], [1])


def with_header_key(key: bytes) -> bytes:
    """A batch of one record whose header has a key of two bytes."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    builder.append(0, 1_000, None, b"v", [("XX", b"h")])
    batch = bytearray(bytes(builder.build()).replace(b"XX", key))
    struct.pack_into(">I", batch, 17, computed_crc(batch, parse_at(batch, 0)))
    return bytes(batch)


def test_librdkafka_itself_hands_a_header_key_that_is_no_utf_8_out_as_unread() -> None:
    """The first record, and one behind so many that Python takes its short cuts to the library."""
    broker = Producer({"test.mock.num.brokers": 1})
    (node,) = broker.list_topics("t", timeout=HANGS_S).brokers.values()
    address = f"{node.host}:{node.port}"
    keys = [b"\xff\xfe", *[b"ok"] * 20, b"\xff\xfe", b"ok"]
    with closing(Connection(address)) as connection:
        for key in keys:
            row = {"index": 0, "records": with_header_key(key)}
            topic = {"name": "t", "partition_data": [row]}
            wait = timedelta(seconds=HANGS_S)
            produce = message(
                "Produce", 7, transactional_id=None, acks=-1, timeout=wait, topic_data=[topic]
            )
            connection.ask(produce)
    with closing(served.Gateways(SETTINGS, [address])) as gateways:
        found = list(gateways.records("t", 0, 0, len(keys), Isolation.READ_UNCOMMITTED))
    read = [("ok", b"h")]
    assert [one.headers for one in found] == [read if key == b"ok" else NOT_UTF_8 for key in keys]


def test_a_record_is_read_again_in_the_batch_unless_a_consumer_passes_over_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, piece = kept(Place.PREFIX, [build(sized(3, 9), 0)], 3)
    data = store.objects["s.log"]
    transactional = bytearray(data)
    struct.pack_into(">hiqqq", transactional, 21, 0x10, 2, 1_000, 1_002, 7)
    struct.pack_into(">I", transactional, 17, computed_crc(transactional, parse_at(data, 0)))
    damaged = data[:-2] + b"!" + data[-1:]
    in_transaction = bytes(transactional)
    for batch, aborted, there in (
        (data, (), True),
        (damaged, (), False),
        (in_transaction, ((7, 0),), False),
        (in_transaction, ((7, 1), (8, 0)), True),
    ):
        gateways = served.Gateways(SETTINGS, ["127.0.0.1:1"])

        async def fetch(*_: object, batch: bytes = batch, aborted: Any = aborted) -> FetchedPiece:
            return FetchedPiece(batch, 3, 0, aborted)

        monkeypatch.setattr(gateways, "_fetched", fetch)
        again = [gateways.again("t", 0, n, Isolation.READ_COMMITTED) for n in range(3)]
        assert again == (stored(store, piece) if there else [None] * 3)


def test_a_timestamp_beyond_64_bits_is_the_one_that_java_makes_of_it() -> None:
    """Base and delta are the producer's, and their sum goes round (``DefaultRecord.readFrom``)."""
    batch = bytearray(build(sized(2, 9), 0))
    struct.pack_into(">q", batch, 27, 2**63 - 1)
    struct.pack_into(">I", batch, 17, computed_crc(batch, parse_at(batch, 0)))
    store, piece = kept(Place.PREFIX, [bytes(batch)], 2)
    assert [one.timestamp for one in stored(store, piece)] == [MOST_MS, -MOST_MS]
