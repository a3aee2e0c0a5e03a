"""A verdict that is taken from an earlier run is the one that a judge would come to."""

from __future__ import annotations

import hashlib
import io
import json
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import KafkaException
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from spark.common.kept_fold import KeptFold, Key
from spark.common.metadata_columns import columns_of
from spark.common.metadata_topic import Extent
from spark.common.packing import (
    LOG,
    MERGED,
    PLACE,
    SEEN,
    Objects,
    Packed,
    kind_bits,
    pack,
    pack_events,
    unpack,
)
from spark.common.remote_log import FoldOfPlace, last_record
from spark.common.rows import arrow_schema, to_batch
from spark.common.snapshots import Identity, LastRecord, Unusable
from spark.coverage import kept
from spark.coverage.frames import CoveredLog
from spark.coverage.judge import (
    NOTHING_MERGED,
    BadSegment,
    CoverageVerdict,
    Gap,
    digest_of_merged,
    judge_log,
)
from spark.coverage.kept import (
    MANY,
    KeptVerdicts,
    Memory,
    Place,
    Scene,
    Since,
    VerdictStore,
    inputs_of,
    relied_on_next,
)
from spark.coverage.tasks import Bucket, ListedSegment, objects_of
from tests.unit.spark.test_kept_folds import Message, Store
from tideline.domain.coverage import OWN_KINDS
from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import (
    EpochStart,
    PartitionDeleteState,
    RemoteSegment,
    SegmentState,
    SegmentUpdate,
)
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.remote_log_metadata import encode_segment, encode_update

TOPIC = UUID(int=7)
IDENTITY = Identity("cluster", UUID(int=77), 2)
SCENE = Scene(IDENTITY, "http://store", "tiered", "code")
LAST = LastRecord.of(9, 3, 1_000, b"value")
PLACES = (Place(0, 0, 10, LAST), Place(1, 4, 4, None))
EXTENTS = (Extent(0, 0, 10), Extent(1, 4, 4))
COVERED = CoveredLog(5, TOPIC, 0, 0, 30, 30, 40, (0,), (0,), "p/orders/", 900, b"\1" * 16)
VERDICT = CoverageVerdict(
    5, complete=True, wanted_end=30, covered_to=30, segments=3, overshooting=1,
    unfinished_count=1, unfinished=("one",), objects_seen_at=900, objects_digest="01" * 16,
    merged_digest=NOTHING_MERGED, judged_by="code",
)  # fmt: skip
KEPT = KeptVerdicts(SCENE, PLACES, 500, {5: (inputs_of(COVERED, NOTHING_MERGED), VERDICT)})
NOTHING_NEW = Since(frozenset(), PLACES)


@dataclass(frozen=True)
class At:
    """A record of one partition of the metadata topic."""

    place: int
    message: Message

    def partition(self) -> int:
        return self.place

    def __getattr__(self, name: str) -> Any:
        return getattr(self.message, name)


@dataclass
class Metadata:
    """Its records by place; ``asked``: for what, one by one."""

    records: dict[int, list[Message]] = field(default_factory=dict)
    asked: list[Extent] = field(default_factory=list)

    def few(self, wanted: Sequence[Extent]) -> dict[int, list[At]]:
        self.asked += wanted
        return {
            one.partition: [
                At(one.partition, m)
                for m in self.records.get(one.partition, ())
                if one.start <= m.offset() < one.end
            ]
            for one in wanted
        }

    def extents(self) -> tuple[Extent, ...]:
        return tuple(Extent(p, 0, len(found)) for p, found in sorted(self.records.items()))


def test_what_is_kept_is_what_was_written_or_nothing() -> None:
    body = KEPT.to_object()
    assert KeptVerdicts.from_object(body) == KEPT
    for torn in (b"", body[:-1], body[: len(body) // 2], body[1:], body[:40] + b"x" + body[41:]):
        with pytest.raises(Unusable):
            KeptVerdicts.from_object(torn)


def test_what_is_kept_may_be_nothing_or_have_much_to_say() -> None:
    much = replace(
        VERDICT,
        held_back="why",
        gaps=(Gap(0, 3, "absent"), Gap(5, 9, "copying")),
        broken=(BadSegment("one", "short"),),
        merged_gaps=(Gap(7, 8, "merged_objects"),),
        orphans=("a", "b"),
    )
    for verdicts in ({}, {5: (b"\1" * 32, much), 6: (b"\2" * 32, replace(VERDICT, log_id=6))}):
        some = replace(KEPT, verdicts=verdicts)
        assert KeptVerdicts.from_object(some.to_object()) == some


@pytest.mark.parametrize("header", [[], {}, {"scene": 5}, {"scene": {"identity": {"topic_id": 5}}}])
def test_bytes_that_are_right_and_say_nothing_known_are_not_used(header: object) -> None:
    batch = to_batch(CoverageVerdict, [VERDICT])
    table = pa.Table.from_batches([batch]).append_column("inputs", pa.array([b"1"]))
    file = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({b"tideline": json.dumps(header).encode()}), file)
    body = file.getvalue()
    with pytest.raises(Unusable):
        KeptVerdicts.from_object(hashlib.sha256(body).digest() + body)


def test_a_verdict_is_taken_while_nothing_has_changed() -> None:
    KEPT.check(SCENE, 500, 500)
    assert KEPT.on(COVERED, NOTHING_MERGED, NOTHING_NEW) == VERDICT
    others = frozenset([(TOPIC, 1), (UUID(int=8), 0)])
    assert KEPT.on(COVERED, NOTHING_MERGED, Since(others, PLACES)) == VERDICT


OTHER: Mapping[type, Any] = {int: 31, str: "other", bytes: b"\2", UUID: UUID(int=9), tuple: (1,)}


@pytest.mark.parametrize("name", [one.name for one in fields(CoveredLog)])
def test_whatever_is_judged_of_a_partition_brings_a_new_judgement_when_it_changes(
    name: str,
) -> None:
    before = getattr(COVERED, name)
    changed = replace(COVERED, **{name: OTHER[type(before)]})
    assert getattr(changed, name) != before
    assert KEPT.on(changed, NOTHING_MERGED, NOTHING_NEW) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"complete": False}, {"anomalies": 1}, {"objects_seen_at": 901}, {"objects_seen_at": -1},
        {"objects_digest": "02" * 16}, {"objects_digest": None}, {"wanted_start": 1},
        {"wanted_end": 29}, {"merged_digest": "another"}, {"judged_by": "another"},
    ],
    ids=str,
)  # fmt: skip
def test_a_verdict_that_does_not_say_what_it_is_filed_under_is_not_taken(
    changed: dict[str, Any],
) -> None:
    row = KEPT.verdicts[5][0], replace(VERDICT, **changed)
    assert replace(KEPT, verdicts={5: row}).on(COVERED, NOTHING_MERGED, NOTHING_NEW) is None


def test_merged_segments_are_only_asked_for_of_partitions_that_may_be_as_they_were() -> None:
    others = [
        replace(COVERED, log_id=6),
        replace(COVERED, log_id=7, seen_at=-1, seen_digest=None),
        replace(COVERED, log_id=8, partition=3),
    ]
    kept_too = {log.log_id: KEPT.verdicts[5] for log in others[1:]}
    about = Since(frozenset([(TOPIC, 3)]), PLACES)
    memory = memory_over(Store())
    memory.before = replace(KEPT, verdicts=KEPT.verdicts | kept_too), about
    asked: list[int] = []

    def merged(log_ids: Collection[int]) -> dict[int, str]:
        asked.extend(log_ids)
        return {}

    assert memory.unchanged([COVERED, *others], merged).keys() == {5}
    assert asked == [5]
    assert memory.unchanged(others, merged) == {}
    assert asked == [5], "where there is none nobody reads"


def test_a_verdict_is_not_taken_without_a_look_that_may_be_relied_on() -> None:
    never = replace(COVERED, seen_at=-1, seen_digest=None)
    by_itself = replace(KEPT, verdicts={5: (inputs_of(never, NOTHING_MERGED), VERDICT)})
    assert by_itself.on(never, NOTHING_MERGED, NOTHING_NEW) is None


def test_a_merged_segment_or_a_record_about_it_brings_a_new_judgement() -> None:
    assert KEPT.on(COVERED, "another", NOTHING_NEW) is None
    about = frozenset([(COVERED.topic_id, COVERED.partition)])
    assert KEPT.on(COVERED, NOTHING_MERGED, Since(about, PLACES)) is None


@pytest.mark.parametrize(
    "scene",
    [
        replace(SCENE, identity=replace(IDENTITY, cluster_id="another")),
        replace(SCENE, identity=replace(IDENTITY, topic_id=UUID(int=78))),
        replace(SCENE, identity=replace(IDENTITY, partitions=3)),
        replace(SCENE, server="http://another"),
        replace(SCENE, bucket="another"),
        replace(SCENE, code="another"),
    ],
    ids=["cluster", "topic created anew", "more partitions", "store", "bucket", "code"],
)
def test_another_scene_brings_new_judgements(scene: Scene) -> None:
    with pytest.raises(Unusable):
        KEPT.check(scene, 0, 9_000)


@pytest.mark.parametrize(("whole_since", "now"), [(501, 9_000), (0, 499)])
def test_metadata_that_an_audit_is_due_for_brings_new_judgements(
    whole_since: int, now: int
) -> None:
    with pytest.raises(Unusable, match="too long ago"):
        KEPT.check(SCENE, whole_since, now)


def registered(number: int, log: int = 0, epoch: int = 0) -> bytes:
    return encode_segment(
        RemoteSegment(
            TopicIdPartition(TOPIC, log), "t", segment_id(number), number * 10, number * 10 + 9,
            100, (EpochStart(epoch, 0),), SegmentState.COPY_SEGMENT_STARTED, txn_index_empty=True,
        )
    )  # fmt: skip


def updated(
    number: int, log: int = 0, state: SegmentState = SegmentState.COPY_SEGMENT_FINISHED
) -> bytes:
    return encode_update(
        "t", SegmentUpdate(TopicIdPartition(TOPIC, log), segment_id(number), state)
    )


def segment_id(number: int) -> UUID:
    return UUID(int=(number + 1) << 70 | number + 1)


def ten_records() -> Metadata:
    records = [Message(n, registered(n, log=1)) for n in range(10)]
    return Metadata({0: records, 1: []})


def kept_over(metadata: Metadata) -> KeptVerdicts:
    last = last_record(metadata.records[0][-1])
    return replace(KEPT, places=(Place(0, 0, 10, last), Place(1, 4, 4, None)))


def test_where_nothing_is_new_only_the_last_record_of_each_place_is_read() -> None:
    metadata = ten_records()
    since = kept_over(metadata).since(EXTENTS, metadata)
    assert since == Since(frozenset(), kept_over(metadata).places)
    assert metadata.asked == [Extent(0, 9, 10), Extent(1, 4, 4)]


def test_what_is_new_is_read_to_know_what_it_is_about() -> None:
    metadata = ten_records()
    before = kept_over(metadata)
    metadata.records[0] += [Message(10, updated(3)), Message(11, updated(3, log=2))]
    metadata.records[1] += [Message(4, registered(1, log=8)), Message(5, b"?", None)]
    metadata.records[1].pop()
    since = before.since((Extent(0, 0, 12), Extent(1, 4, 5)), metadata)
    assert since.about == {(TOPIC, 0), (TOPIC, 2), (TOPIC, 8)}
    ends = tuple(last_record(metadata.records[place][-1]) for place in (0, 1))
    assert since.places == (Place(0, 0, 12, ends[0]), Place(1, 4, 5, ends[1]))


def overwritten(metadata: Metadata) -> None:
    metadata.records[0][-1] = Message(9, registered(5))


def of_a_later_leader(metadata: Metadata) -> None:
    metadata.records[0][-1] = replace(metadata.records[0][-1], epoch=2)


def gone(metadata: Metadata) -> None:
    metadata.records[0].pop()


def not_understood(metadata: Metadata) -> None:
    metadata.records[0].append(Message(10, b"\1\x09\0new"))


def about_no_partition(metadata: Metadata) -> None:
    """A fold cannot tell it from what is not understood."""
    one = TopicIdPartition(UUID(int=0), -1)
    segment = RemoteSegment(
        one, "t", segment_id(1), 0, 9, 100, (EpochStart(0, 0),), SegmentState.COPY_SEGMENT_STARTED
    )
    metadata.records[0].append(Message(10, encode_segment(segment)))


def without_an_epoch(metadata: Metadata) -> None:
    metadata.records[0].append(Message(10, registered(5), None))


@pytest.mark.parametrize(
    "change",
    [overwritten, of_a_later_leader, gone, not_understood, about_no_partition, without_an_epoch],
)
def test_metadata_that_is_not_what_it_was_brings_new_judgements(
    change: Callable[[Metadata], None],
) -> None:
    metadata = ten_records()
    before = kept_over(metadata)
    change(metadata)
    with pytest.raises(Unusable):
        before.since((Extent(0, 0, max(10, len(metadata.records[0]))), EXTENTS[1]), metadata)


@pytest.mark.parametrize(
    "extents",
    [
        (Extent(0, 1, 10), EXTENTS[1]),
        (Extent(0, 0, 9), EXTENTS[1]),
        (EXTENTS[0], Extent(1, 3, 4)),
        EXTENTS[:1],
        (*EXTENTS, Extent(2, 0, 0)),
        (Extent(0, 0, 11 + MANY), EXTENTS[1]),
    ],
    ids=["expired", "truncated", "start back", "fewer places", "more places", "too much is new"],
)
def test_metadata_that_reaches_elsewhere_brings_new_judgements(
    extents: tuple[Extent, ...],
) -> None:
    metadata = ten_records()
    with pytest.raises(Unusable):
        kept_over(metadata).since(extents, metadata)
    assert metadata.asked == []


def test_records_that_are_gone_as_they_are_read_bring_new_judgements() -> None:
    class Gone(Metadata):
        code = ErrorCode.offset_out_of_range

        def few(self, wanted: Sequence[Extent]) -> dict[int, list[At]]:
            raise KafkaError(self.code, "refused")

    with pytest.raises(Unusable):
        KEPT.since(EXTENTS, Gone())
    other = Gone()
    other.code = ErrorCode.topic_authorization_failed
    with pytest.raises(KafkaError):
        KEPT.since(EXTENTS, other)


@pytest.mark.parametrize(
    "error",
    [
        KafkaUnavailable("away"),
        KafkaError(ErrorCode.topic_authorization_failed, "refused"),
        KafkaException("of a library"),
        RuntimeError("of nobody knows whom"),
    ],
    ids=repr,
)
def test_what_only_saves_work_fails_no_run(error: Exception) -> None:
    class Broken(Metadata):
        def few(self, wanted: Sequence[Extent]) -> dict[int, list[At]]:
            raise error

    store, said = Store(), list[str]()
    memory = memory_over(store, said)
    memory.store.write(KEPT)
    memory.recall(Broken(), 0, 9_000)
    assert memory.before is None
    assert len(said) == 1
    assert str(error) in said[0]

    def merged(_: Collection[int]) -> dict[int, str]:
        raise error

    memory.before = KEPT, NOTHING_NEW
    assert memory.unchanged([COVERED], merged) == {}
    assert (memory.before, memory.taken, len(said)) == (None, set(), 2)
    store.put = merged  # type: ignore[method-assign, assignment]
    memory.keep([COVERED], [VERDICT], [FOLD])
    assert len(said) == 3


def memory_over(store: Store, said: list[str] | None = None) -> Memory:
    return Memory(
        VerdictStore(store, "b", "p/", IDENTITY.cluster_id),  # type: ignore[arg-type]
        SCENE,
        EXTENTS,
        (said if said is not None else []).append,
    )


FOLD = FoldOfPlace(0, 500, LAST, "code")
LOGS = {5: COVERED}


def keep(
    judged: Sequence[CoverageVerdict] = (VERDICT,),
    told: Sequence[FoldOfPlace] = (FOLD,),
    before: tuple[KeptVerdicts, Since] | None = None,
    taken: frozenset[int] = frozenset(),
) -> KeptVerdicts | None:
    return kept.to_keep(before, SCENE, EXTENTS, told, LOGS, taken, judged)


def test_what_is_kept_is_taken_by_the_next_run_over_the_same() -> None:
    fresh = keep()
    assert fresh == KEPT
    never = replace(COVERED, seen_at=-1, seen_digest=None)
    listed = kept.to_keep(None, SCENE, EXTENTS, [FOLD], {5: never}, frozenset(), [VERDICT])
    assert listed == KEPT, "the next run relies on the look of this one"


@pytest.mark.parametrize(
    "verdict",
    [
        replace(VERDICT, complete=False),
        replace(VERDICT, objects_digest=None),
        replace(VERDICT, anomalies=1),
        replace(VERDICT, judged_by="another"),
        replace(VERDICT, judged_by=""),
    ],
    ids=[
        "not covered",
        "objects were missing, or nobody's",
        "an impossible record",
        "an executor has another version",
        "an executor cannot say its version",
    ],
)
def test_what_the_next_run_must_look_at_is_not_kept(verdict: CoverageVerdict) -> None:
    found = keep([verdict])
    assert found is not None
    assert found.verdicts == {}


@pytest.mark.parametrize(
    "told",
    [
        [],
        [replace(FOLD, last=None)],
        [FOLD, replace(FOLD, last=replace(LAST, leader_epoch=4))],
        [FOLD, replace(FOLD, folded_by="another")],
    ],
    ids=[
        "nothing is known of a fold", "brokers tell no epochs", "a second try read others",
        "an executor has another version",
    ],
)  # fmt: skip
def test_nothing_is_kept_where_it_is_not_known_what_was_read(told: list[FoldOfPlace]) -> None:
    assert keep(told=told) is None


def test_verdicts_are_as_old_as_the_oldest_fold_among_them() -> None:
    other = replace(VERDICT, log_id=6)
    logs = {5: COVERED, 6: replace(COVERED, log_id=6)}
    before = replace(KEPT, whole_at=700), NOTHING_NEW
    for told, whole_at in (
        ([replace(FOLD, whole_at=800)], 700),
        ([replace(FOLD, whole_at=800), replace(FOLD, whole_at=600)], 600),
    ):
        found = kept.to_keep(before, SCENE, EXTENTS, told, logs, frozenset([5]), [other])
        assert found is not None
        assert (found.whole_at, found.verdicts.keys()) == (whole_at, {5, 6})


def test_what_was_judged_by_another_history_is_not_kept_beside_what_was_not() -> None:
    told = [replace(FOLD, last=replace(LAST, leader_epoch=4))]
    other = replace(VERDICT, log_id=6)
    logs = {5: COVERED, 6: replace(COVERED, log_id=6)}
    before = KEPT, NOTHING_NEW
    assert kept.to_keep(before, SCENE, EXTENTS, told, logs, frozenset([5]), [other]) is None


def test_an_idle_run_writes_nothing_and_records_about_others_are_read_once() -> None:
    taken = frozenset([5])
    assert keep([], [], (KEPT, NOTHING_NEW), taken) is None
    moved = (replace(PLACES[0], end=12), PLACES[1])
    found = keep([], [], (KEPT, Since(frozenset(), moved)), taken)
    assert found == replace(KEPT, places=moved)
    without = keep([], [], (KEPT, NOTHING_NEW), frozenset())
    assert without == replace(KEPT, verdicts={})


# Runs, one after the other, over a world that changes.


@dataclass(frozen=True, slots=True)
class Listed(Bucket):
    objects: tuple[ListedSegment, ...]

    def listed(self, log_id: int, prefix: str) -> Objects:
        return objects_of([one for one in self.objects if one.log_id == log_id])


def packed(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """One log's rows that are no metadata records."""
    types = {
        "kind": pa.int8(), "epochs": pa.list_(pa.int32()), "epoch_starts": pa.list_(pa.int64()),
        "segment_id": pa.binary(), "state": pa.int32(),
    }  # fmt: skip
    names = {name for row in rows for name in row}
    columns = {
        name: pa.array([row.get(name) for row in rows], types.get(name, pa.int64()))
        for name in names
    }
    return pack(pa.RecordBatch.from_pydict(columns))


AUDIT_MS = 1_000


@dataclass
class World:
    """Two partitions of ten finished segments, and what one run leaves to the next."""

    metadata: Metadata = field(default_factory=lambda: Metadata({0: [], 1: []}))
    store: Store = field(default_factory=Store)
    logs: dict[int, CoveredLog] = field(default_factory=dict)
    merged: dict[int, dict[int, int]] = field(default_factory=lambda: {0: {}, 1: {}})
    objects: set[tuple[int, int]] = field(
        default_factory=lambda: {(log, n) for log in (0, 1) for n in range(9)}
    )
    scene: Scene = SCENE
    now: int = 10_000_000
    epoch: int = 1
    judged: list[int] = field(default_factory=list)
    reads: int = 0
    """Records that were folded."""
    executors: str | None = None
    """Their code, if it is not the driver's."""
    meanwhile: list[Callable[[World], None]] = field(default_factory=list)
    """What happens once, after it was seen what is new, and before anything is folded."""
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for log in (0, 1):
            self.logs[log] = replace(
                COVERED, log_id=log, partition=log, seen_at=-1, seen_digest=None, boundary=60
            )
            for number in range(6):
                self.add(log, registered(number, log), updated(number, log))

    def add(self, place: int, *values: bytes) -> None:
        found = self.metadata.records[place]
        for value in values:
            found.append(Message(len(found), value, self.epoch))

    def run(self) -> dict[int, CoverageVerdict]:
        """One run. Raises if a judge would have said anything else."""
        self.now += 1
        extents = self.metadata.extents()
        for log in self.logs.values():
            if log.seen_at <= self.now - AUDIT_MS:
                self.logs[log.log_id] = replace(log, seen_at=-1, seen_digest=None)
        memory = Memory(
            VerdictStore(self.store, "b", "p/", IDENTITY.cluster_id),  # type: ignore[arg-type]
            self.scene,
            extents,
            self.said.append,
        )
        memory.recall(self.metadata, self.now - AUDIT_MS, self.now)
        digests = {log: digest_of_merged(unpack(self.merged_of(log))[0]) for log in self.logs}
        found = memory.unchanged(self.logs.values(), lambda _: digests)
        while self.meanwhile:
            self.meanwhile.pop()(self)
        by = self.executors or self.scene.code
        rest = [log for log in self.logs.values() if log.log_id not in found]
        self.judged = [log.log_id for log in rest]
        self.reads = sum(one.end for one in extents) if rest else 0
        told = [
            FoldOfPlace(place, self.now, last_record(records[-1]), by)
            for place, records in self.folded(extents).items()
        ]
        fresh = {n: replace(one, judged_by=by) for n, one in self.judge(extents).items()}
        assert found == {log_id: fresh[log_id] for log_id in found}
        memory.keep(rest, [fresh[log.log_id] for log in rest], told)
        for log_id, verdict in fresh.items():
            whole = verdict.complete and verdict.objects_digest is not None
            log = replace(self.logs[log_id], seen_at=-1, seen_digest=None)
            self.logs[log_id] = relied_on_next(log, verdict) if whole else log
        return fresh

    def folded(self, extents: Sequence[Extent]) -> dict[int, list[Message]]:
        """Records of the places that have any, up to where they were seen to end."""
        found = {one.partition: self.metadata.records[one.partition][: one.end] for one in extents}
        return {place: records for place, records in found.items() if records}

    def judge(self, extents: Sequence[Extent]) -> dict[int, CoverageVerdict]:
        kinds = kind_bits(OWN_KINDS)
        listed = tuple(
            # Those from 9 on are old: orphans, if nobody knows them.
            ListedSegment(log, segment_id(n), n * 10, 100, kinds, 1 if n >= 9 else self.now)
            for log, n in self.objects
        )
        bucket = Listed(None, self.scene.bucket, self.scene.server, listed)  # type: ignore[arg-type]
        folds: dict[Key, list[tuple[bytes, bytes]]] = {}
        for place, records in self.folded(extents).items():
            fold = KeptFold(place)
            offsets, values = [m.offset() for m in records], [m.value() for m in records]
            fold.take(pack_events(columns_of(place, offsets, values)), offsets[-1])
            for key, one in fold.logs.items():
                folds.setdefault(key, []).append((one.records, one.epochs))
        found = {}
        for log in self.logs.values():
            of_log = folds.get((log.topic_id.bytes, log.partition), [])
            verdict = judge_log(self.table(log, of_log), self.now, bucket)
            assert verdict is not None
            found[log.log_id] = verdict
        return found

    def table(self, log: CoveredLog, fold: list[tuple[bytes, bytes]]) -> pa.Table:
        itself = {
            "log_id": log.log_id, "kind": LOG, "first": log.log_start, "last": log.boundary,
            "size": log.suffix_start, "stamp": log.merge_frontier, "epochs": log.epochs,
            "epoch_starts": log.epoch_starts,
        }  # fmt: skip
        look = {"log_id": log.log_id, "kind": SEEN, "segment_id": log.seen_digest,
                "stamp": log.seen_at}  # fmt: skip
        schema = arrow_schema(Packed)
        rest = pa.RecordBatch.from_pydict(
            {
                "log_id": [log.log_id] * (len(fold) + 1),
                "form": [0] * len(fold) + [PLACE],
                "records": [records for records, _ in fold] + [log.prefix.encode()],
                "epochs": [epochs for _, epochs in fold] + [b""],
            },
            schema=schema,
        )
        batches = [packed([itself]), rest, *self.merged_of(log.log_id).to_batches()]
        if log.seen_digest is not None:
            batches.append(packed([look]))
        return pa.Table.from_batches(batches, schema=schema)

    def merged_of(self, log: int) -> pa.Table:
        rows = [
            {"log_id": log, "kind": MERGED, "segment_id": segment_id(n).bytes, "first": n * 10,
             "last": n * 10 + 9, "size": 100, "state": state}
            for n, state in self.merged[log].items()
        ]  # fmt: skip
        batches = [packed(rows)] if rows else []
        return pa.Table.from_batches(batches, schema=arrow_schema(Packed))


def test_a_run_for_which_nothing_has_happened_judges_nothing_and_folds_nothing() -> None:
    world = World()
    assert all(one.complete for one in world.run().values())
    assert world.judged == [0, 1]
    world.metadata.asked.clear()
    for _ in range(3):
        world.run()
        assert (world.judged, world.reads) == ([], 0)
    assert sum(one.end - one.start for one in world.metadata.asked) == 3 * 2


def changed_segment(world: World) -> None:
    world.add(0, registered(6, 0))


def deleted_partition(world: World) -> None:
    rest = TOPIC.bytes + struct.pack(">i", 0) + b"\0" + struct.pack(">iq", 1, 5)
    world.add(0, b"\1\2\0\2t" + rest + bytes([PartitionDeleteState.DELETE_PARTITION_FINISHED, 0]))


def in_another_place(world: World) -> None:
    world.add(1, updated(2, 0, SegmentState.DELETE_SEGMENT_STARTED))


@pytest.mark.parametrize("change", [changed_segment, deleted_partition, in_another_place])
def test_what_happens_to_a_partition_brings_a_new_judgement_on_it_alone(
    change: Callable[[World], None],
) -> None:
    world = World()
    world.run()
    change(world)
    world.run()
    assert world.judged == [0]


def unclean_election(world: World) -> None:
    world.epoch += 1
    world.metadata.records[0] = world.metadata.records[0][:-1]
    world.add(0, updated(5, 0, SegmentState.DELETE_SEGMENT_STARTED))


def torn_object(world: World) -> None:
    world.store.objects = {key: body[:-9] for key, body in world.store.objects.items()}


def lost_object(world: World) -> None:
    world.store.objects.clear()


@pytest.mark.parametrize("change", [unclean_election, torn_object, lost_object])
def test_what_happens_to_all_brings_new_judgements_on_all(
    change: Callable[[World], None],
) -> None:
    world = World()
    world.run()
    change(world)
    world.run()
    assert world.judged == [0, 1]
    world.run()
    assert 1 not in world.judged, "and these are kept"


def test_what_executors_of_another_version_have_judged_is_judged_again() -> None:
    world = World(executors="another")
    for _ in range(2):
        world.run()
        assert world.judged == [0, 1]
        assert "executors" in world.said.pop()
    world.executors = None
    world.run()
    assert world.judged == [0, 1]
    world.run()
    assert (world.judged, world.said) == ([], [])


def test_nothing_is_kept_where_the_metadata_lost_records_before_it_was_folded() -> None:
    world = World()
    world.run()
    before = dict(world.store.objects)
    changed_segment(world)
    world.meanwhile.append(unclean_election)
    world.run()
    assert world.judged == [0]
    assert world.store.objects == before
    world.run()
    assert world.judged == [0], "what was kept before is still so"


NUMBERS, SIDES = st.integers(0, 11), st.integers(0, 1)
STEPS = st.one_of(
    st.tuples(st.just("record"), SIDES, SIDES, NUMBERS, st.integers(0, 4)),
    st.tuples(st.just("late record"), SIDES, SIDES, NUMBERS, st.integers(0, 4)),
    st.tuples(st.just("start"), SIDES, st.integers(0, 70)),
    st.tuples(st.just("b0"), SIDES, st.integers(1, 70)),
    st.tuples(st.just("epochs"), SIDES, st.integers(0, 60)),
    st.tuples(st.just("merged"), SIDES, NUMBERS, st.integers(0, 2)),
    st.tuples(st.just("objects"), SIDES, NUMBERS),
    st.tuples(st.just("later"), st.integers(1, AUDIT_MS)),
    st.tuples(st.just("election"), SIDES, st.integers(1, 4)),
    st.tuples(st.just("store"), st.sampled_from(["http://store", "http://another"])),
)


def take_step(world: World, kind: str, *what: Any) -> None:
    if kind == "record":
        place, log, number, state = what
        value = (
            registered(number, log) if not state else updated(number, log, SegmentState(state - 1))
        )
        world.add(place, value)
    elif kind == "late record":
        world.meanwhile.append(lambda later: take_step(later, "record", *what))
    elif kind == "start":
        world.logs[what[0]] = replace(world.logs[what[0]], log_start=what[1])
    elif kind == "b0":
        world.logs[what[0]] = replace(world.logs[what[0]], boundary=what[1])
    elif kind == "epochs":
        world.logs[what[0]] = replace(world.logs[what[0]], epochs=(0, 2), epoch_starts=(0, what[1]))
    elif kind == "merged":
        log, number, state = what
        world.merged[log][number] = state
        if state == 2:
            del world.merged[log][number]
    elif kind == "objects":
        world.objects ^= {(what[0], what[1])}
    elif kind == "later":
        world.now += what[0]
    elif kind == "election":
        world.epoch += 1
        world.metadata.records[what[0]] = world.metadata.records[what[0]][: -what[1]]
    else:
        world.scene = replace(world.scene, server=what[0])


@given(st.lists(st.lists(STEPS, max_size=2), max_size=8))
@settings(max_examples=150, deadline=None)
def test_over_any_history_a_verdict_that_is_taken_is_that_of_a_judge(
    history: list[list[tuple[Any, ...]]],
) -> None:
    world = World()
    world.run()
    for steps in history:
        for step in steps:
            take_step(world, *step)
        world.run()
