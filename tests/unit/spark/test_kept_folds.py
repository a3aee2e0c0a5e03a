"""A fold that is kept between runs gives what a fold of everything gives, or is not used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.common import snapshots
from spark.common.fold import Segments, fold
from spark.common.kept_fold import NOT_UNDERSTOOD, KeptFold
from spark.common.metadata_columns import columns_of
from spark.common.metadata_records import MetadataRecord, record_of
from spark.common.metadata_topic import Extent
from spark.common.packing import PackedEvents, pack_events, unpack
from spark.common.remote_log import FoldReader, Plan
from spark.common.rows import arrow_schema, to_batch
from spark.common.snapshots import KEPT, Identity, LastRecord, Snapshot, SnapshotStore, Unusable
from tests.unit.spark.test_covering import LOG, RECORDS, as_domain
from tideline.domain.remote_log import (
    EpochStart,
    RemoteLogEvent,
    RemoteSegment,
    SegmentState,
    SegmentUpdate,
)
from tideline.kafka.remote_log_metadata import encode_segment, encode_update
from tideline.object_store.client import ObjectEntry, ObjectMissing, ObjectStoreUnavailable

OURS = Identity("cluster", UUID(int=77), 50)
LAST = LastRecord.of(9, 3, 1_000, b"value")


def packed(records: list[RemoteLogEvent], first: int) -> pa.RecordBatch:
    rows = [record_of(record, 0, first + n) for n, record in enumerate(records)]
    return pack_events(to_batch(MetadataRecord, rows))


def left(kept: KeptFold) -> Segments:
    table = pa.Table.from_batches([kept.packed()], schema=arrow_schema(PackedEvents))
    return fold(unpack(table)[0])


@given(RECORDS, st.lists(st.integers(0, 40), max_size=4))
@settings(max_examples=400, deadline=None)
def test_a_fold_that_goes_on_from_a_snapshot_is_the_fold_of_everything(
    records: list[RemoteLogEvent], cuts: list[int]
) -> None:
    kept = KeptFold(0)
    places = sorted({min(cut, len(records)) for cut in cuts} | {0, len(records)})
    for start, end in pairwise(places):
        kept.take(packed(records[start:end], start), end - 1)
        body = Snapshot(OURS, 0, end, LAST, 0, kept).to_parquet()
        kept = Snapshot.from_parquet(body).fold
    rows = [record_of(record, 0, n) for n, record in enumerate(records)]
    batches = [pack_events(to_batch(MetadataRecord, rows))] if rows else []
    everything = pa.Table.from_batches(batches, schema=arrow_schema(PackedEvents))
    expected, found = fold(unpack(everything)[0]), left(kept)
    assert as_domain(found) == as_domain(expected)
    assert found.anomalies == expected.anomalies
    assert kept.rows <= len(expected) + 1, "what is deleted is not remembered"


def kept_fold() -> KeptFold:
    kept = KeptFold(4)
    segment = RemoteSegment(
        LOG, "t", UUID(int=5), 0, 9, 10, (EpochStart(0, 0),), SegmentState.COPY_SEGMENT_STARTED
    )
    kept.take(packed([segment], 9), 9)
    return kept


SNAPSHOT = Snapshot(OURS, 2, 10, LAST, 500, kept_fold())


def test_a_snapshot_is_used_over_the_log_that_it_was_made_of() -> None:
    again = Snapshot.from_parquet(SNAPSHOT.to_parquet())
    assert again == SNAPSHOT
    again.check(OURS, 4, 2, 10, 500, 500)
    again.check(OURS, 4, 2, 999, 0, 9_000)


@pytest.mark.parametrize(
    "asked",
    [
        (replace(OURS, cluster_id="another"), 4, 2, 10, 500, 9_000),
        (replace(OURS, topic_id=UUID(int=78)), 4, 2, 10, 500, 9_000),
        (replace(OURS, partitions=51), 4, 2, 10, 500, 9_000),
        (OURS, 5, 2, 10, 500, 9_000),
        (OURS, 4, 3, 10, 500, 9_000),
        (OURS, 4, 0, 10, 500, 9_000),
        (OURS, 4, 2, 9, 500, 9_000),
        (OURS, 4, 2, 10, 501, 9_000),
        (OURS, 4, 2, 10, 0, 499),
    ],
    ids=["cluster", "topic created anew", "more partitions", "partition", "expired", "start back",
         "truncated", "too old", "of a time to come"],
)  # fmt: skip
def test_a_snapshot_of_another_log_is_not_used(
    asked: tuple[Identity, int, int, int, int, int],
) -> None:
    with pytest.raises(Unusable):
        SNAPSHOT.check(*asked)


def test_a_snapshot_that_is_torn_or_of_other_rules_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = SNAPSHOT.to_parquet()
    for body in (b"", whole[:-1], whole[: len(whole) // 2], whole[4:]):
        with pytest.raises(Unusable):
            Snapshot.from_parquet(body)
    digest = snapshots._digest(SNAPSHOT.header(), SNAPSHOT.fold.logs)
    with monkeypatch.context() as forged:
        forged.setattr(snapshots, "_digest", lambda *_: digest)
        other_end = replace(SNAPSHOT, end=11).to_parquet()
        other_rows = replace(SNAPSHOT, fold=KeptFold(4, SNAPSHOT.fold.upto)).to_parquet()
    for body in (other_end, other_rows):
        with pytest.raises(Unusable, match="not those that were written"):
            Snapshot.from_parquet(body)
    monkeypatch.setattr(snapshots, "RULES", "others")
    with pytest.raises(Unusable, match="other rules"):
        Snapshot.from_parquet(whole)


@dataclass(frozen=True)
class Message:
    """As confluent-kafka hands one over."""

    at: int
    body: bytes
    epoch: int | None = 1

    def offset(self) -> int:
        return self.at

    def value(self) -> bytes:
        return self.body

    def leader_epoch(self) -> int | None:
        return self.epoch

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000 + self.at


@dataclass
class Log:
    """One partition of the metadata topic; ``read``: where readings of it began."""

    messages_: list[Message] = field(default_factory=list)
    read: list[int] = field(default_factory=list)

    def add(self, *values: bytes, epoch: int | None = 1) -> None:
        for value in values:
            self.messages_.append(Message(len(self.messages_), value, epoch))

    def messages(self, wanted: Extent) -> Iterator[list[Message]]:
        self.read.append(wanted.start)
        found = self.messages_[wanted.start : wanted.end]
        for start in range(0, len(found), 7):
            yield found[start : start + 7]


@dataclass
class Store:
    objects: dict[str, bytes] = field(default_factory=dict)
    away: bool = False

    def list_objects(self, bucket: str, prefix: str) -> Iterator[ObjectEntry]:
        return (ObjectEntry(k, 1, None) for k in sorted(self.objects) if k.startswith(prefix))  # type: ignore[arg-type]

    def get(self, bucket: str, key: str) -> bytes:
        if key not in self.objects:
            raise ObjectMissing(key)
        return self.objects[key]

    def put(self, bucket: str, key: str, body: bytes) -> None:
        if self.away:
            raise ObjectStoreUnavailable("away")
        self.objects[key] = body

    def delete(self, bucket: str, keys: list[str]) -> None:
        for key in keys:
            del self.objects[key]


@dataclass
class World:
    log: Log = field(default_factory=Log)
    store: Store = field(default_factory=Store)
    now_ms: int = 10_000

    def run(
        self, *, keep: bool = True, audit_ms: int = 5_000, identity: Identity = OURS
    ) -> Segments:
        """What a run finds of :data:`LOG`."""
        kept = SnapshotStore(self.store, "b", "p/", identity)  # type: ignore[arg-type]
        extent = Extent(4, 0, len(self.log.messages_))
        plan = Plan(kept, kept.keys(), (extent,), True)
        self.now_ms += 1
        reader = FoldReader(
            self.log, plan, frozenset([LOG.topic_id.bytes]), self.now_ms,  # type: ignore[arg-type]
            self.now_ms - audit_ms, keep,
        )  # fmt: skip
        self.log.read.clear()
        (batch,) = reader.read(extent)
        table = pa.Table.from_batches([batch])
        strange = [p == NOT_UNDERSTOOD[1] for p in table["partition"].to_pylist()]
        self.strange = len(unpack(table.filter(pa.array(strange)))[0])
        return fold(unpack(table.filter(pa.array([not one for one in strange])))[0])


def registered(number: int) -> bytes:
    return encode_segment(
        RemoteSegment(
            LOG, "t", UUID(int=number), number * 10, number * 10 + 9, 10, (EpochStart(0, 0),),
            SegmentState.COPY_SEGMENT_STARTED,
        )
    )  # fmt: skip


def finished(number: int, state: SegmentState = SegmentState.COPY_SEGMENT_FINISHED) -> bytes:
    return encode_update("t", SegmentUpdate(LOG, UUID(int=number), state))


@pytest.fixture
def world() -> World:
    """After one run over 60 segments, whose copies have begun."""
    made = World()
    made.log.add(*map(registered, range(60)))
    assert len(made.run()) == 60
    assert made.log.read == [0]
    return made


def test_the_next_run_reads_what_came_since_and_the_record_before_it(world: World) -> None:
    world.log.add(*map(finished, range(60)))
    found = world.run()
    assert world.log.read == [59]
    assert found.base.state.tolist() == [1] * 60
    assert world.run(audit_ms=0).base.state.tolist() == [1] * 60
    assert world.log.read == [0]


def test_few_new_records_are_read_again_and_many_are_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.log.add(*map(finished, range(60)))
    assert len(world.store.objects) == 1
    world.run()
    assert len(world.store.objects) == 1
    monkeypatch.setattr("spark.common.remote_log.WRITTEN_FROM", 10)
    for _ in range(KEPT + 2):
        world.log.add(*map(registered, range(60)))
        world.run()
    assert len(world.store.objects) == KEPT
    assert world.log.read != [0]


def test_what_a_clock_that_ran_ahead_has_left_is_not_used_and_goes_first(world: World) -> None:
    now, world.now_ms = world.now_ms, world.now_ms + 365 * 86_400_000
    for _ in range(KEPT):
        world.run(audit_ms=0)
    world.now_ms = now
    (kept,) = SnapshotStore(world.store, "b", "p/", OURS).keys().values()  # type: ignore[arg-type]
    assert len(kept) == KEPT
    assert len(world.run()) == 60
    assert world.log.read == [0]
    (left,) = SnapshotStore(world.store, "b", "p/", OURS).keys().values()  # type: ignore[arg-type]
    assert len(set(left) - set(kept)) == 1, "the new one is there"
    assert len(left) == KEPT
    world.run()
    assert world.log.read == [59], "and is used"
    for _ in range(KEPT):
        world.run(audit_ms=0)
    assert not set(kept) & set(world.store.objects)


def test_what_is_not_named_as_a_snapshot_is_left_alone(world: World) -> None:
    folder = OURS.prefix("p/")
    (ours,) = world.store.objects
    foreign = [
        f"{folder}00004/{name}"
        for name in (
            "foreign.parquet",
            "9-9-9.parquet",
            f"{'9' * 15}-{'9' * 20}-{'g' * 32}.parquet",
        )
    ] + [f"{folder}x/{ours.rpartition('/')[2]}", f"{folder}00004/deeper/{ours.rpartition('/')[2]}"]
    world.store.objects |= dict.fromkeys(foreign, b"x")
    kept = SnapshotStore(world.store, "b", "p/", OURS)  # type: ignore[arg-type]
    assert kept.keys() == {4: [ours]}
    assert Plan(kept, kept.keys(), (Extent(4, 0, 61),), True).new_records == 1
    for _ in range(KEPT + 1):
        world.run(audit_ms=0)
    assert set(foreign) < world.store.objects.keys()


def lost_and_grown_again(world: World) -> None:
    """An unclean election took the last records; others of a later leader are in their places."""
    kept = world.log.messages_[:50]
    world.log.messages_ = kept
    world.log.add(*map(finished, range(20)), epoch=2)


def the_same_record_by_a_later_leader(world: World) -> None:
    world.log.messages_[-1] = replace(world.log.messages_[-1], epoch=2)
    world.log.add(*map(finished, range(5)))


def cut_short(world: World) -> None:
    world.log.messages_ = world.log.messages_[:30]


def torn(world: World) -> None:
    world.store.objects = {key: body[:-20] for key, body in world.store.objects.items()}


@pytest.mark.parametrize(
    "change", [lost_and_grown_again, the_same_record_by_a_later_leader, cut_short, torn]
)
def test_where_the_log_is_not_what_the_snapshot_saw_everything_is_read(
    world: World, change: Callable[[World], None], capsys: pytest.CaptureFixture[str]
) -> None:
    change(world)
    found = world.run()
    assert world.log.read[-1] == 0
    fresh = World(world.log)
    assert as_domain(found) == as_domain(fresh.run())
    assert "a snapshot is not used" in capsys.readouterr().err
    world.run()
    assert world.log.read == [len(world.log.messages_) - 1], "a good one has taken its place"


def test_a_topic_that_was_created_anew_has_snapshots_of_its_own(world: World) -> None:
    world.run(identity=replace(OURS, topic_id=UUID(int=78)))
    assert world.log.read == [0]


def test_what_is_not_understood_is_known_in_every_later_run_and_never_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Tideline that understands it decodes the records themselves, at once."""
    before = dict(world.store.objects)
    world.log.add(b"\1\x09\0new", b"\7", *map(finished, range(60)))
    monkeypatch.setattr("spark.common.remote_log.WRITTEN_FROM", 10)
    for audit_ms in (5_000, 0, 5_000):
        world.run(audit_ms=audit_ms)
        assert world.strange == 2
    assert world.store.objects == before
    monkeypatch.setattr("spark.common.remote_log.columns_of", knows_what_is_new)
    assert world.run().base.state.tolist() == [1] * 60
    assert (world.log.read, world.strange) == ([59], 0)
    assert len(world.store.objects) == 2


def knows_what_is_new(partition: int, offsets: list[int], values: list[bytes]) -> pa.RecordBatch:
    """The decoder of a later version, which finds nothing about a segment there."""
    known = [
        (n, v) for n, v in zip(offsets, values, strict=True) if v not in (b"\1\x09\0new", b"\7")
    ]
    return columns_of(partition, [n for n, _ in known], [v for _, v in known])


def test_a_dry_run_keeps_nothing_and_a_store_that_is_away_fails_nothing() -> None:
    world = World()
    world.log.add(*map(registered, range(9)))
    world.run(keep=False)
    assert world.store.objects == {}
    world.store.away = True
    assert len(world.run()) == 9


def test_without_leader_epochs_nothing_is_kept() -> None:
    world = World()
    world.log.add(registered(1), epoch=None)
    world.run()
    assert world.store.objects == {}


def test_up_to_where_every_topic_was_read_is_told_by_its_snapshots(world: World) -> None:
    former = Identity(OURS.cluster_id, UUID(int=99), OURS.partitions)
    for identity in (OURS, former):
        world.run(identity=identity)
    world.store.objects[f"{OURS.prefix('p/')}00004/readme.txt"] = b""
    kept = SnapshotStore(world.store, "b", "p/", OURS)  # type: ignore[arg-type]
    assert dict(kept.seen().values()) == {
        OURS.prefix("p/"): {4: len(world.log.messages_)},
        former.prefix("p/"): {4: len(world.log.messages_)},
    }
