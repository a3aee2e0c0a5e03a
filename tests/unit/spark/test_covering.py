"""The vectorised fold and judgement are those of the domain, record by record."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from uuid import UUID

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.common.fold import Events, Segments, by_id, fold, within_lineage
from spark.common.metadata_records import MetadataRecord, record_of
from spark.common.packing import (
    Objects,
    PackedEvents,
    id_halves,
    kind_bits,
    pack_events,
    unpack,
)
from spark.common.rows import arrow_schema, to_batch
from spark.coverage.cover import Cover, cover, may_lack_txn_index
from tests import retention_rule
from tideline.domain.coverage import AIVEN_KINDS, OWN_KINDS, SegmentObjects, assess
from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import (
    EpochStart,
    PartitionDelete,
    PartitionDeleteState,
    RemoteLogEvent,
    RemoteLogIndex,
    RemoteSegment,
    SegmentState,
    SegmentUpdate,
)

LOG = TopicIdPartition(UUID(int=1), 0)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
IDS = [UUID(int=n << 62 | n) for n in range(1, 9)]


@st.composite
def segments(draw: st.DrawFn, ids: st.SearchStrategy[UUID]) -> RemoteSegment:
    start = draw(st.integers(0, 40))
    end = start + draw(st.integers(0, 15))
    epochs = sorted(draw(st.sets(st.integers(0, 5), min_size=1, max_size=3)))
    starts = sorted(draw(st.lists(st.integers(0, 45), min_size=len(epochs), max_size=len(epochs))))
    return RemoteSegment(
        log=LOG,
        topic="orders",
        segment_id=draw(ids),
        start_offset=start,
        end_offset=end,
        size_bytes=draw(st.sampled_from([100, 101])),
        leader_epochs=tuple(map(EpochStart, epochs, starts)),
        state=draw(st.sampled_from(list(SegmentState))),
        max_timestamp=draw(st.integers(-1, 9)),
        event_timestamp=draw(st.integers(0, 9)),
        txn_index_empty=draw(st.booleans()),
    )


UPDATES = st.builds(
    SegmentUpdate,
    st.just(LOG),
    st.sampled_from(IDS),
    st.sampled_from(list(SegmentState)),
    st.just(1),
    st.integers(10, 99),
)
DELETES = st.builds(PartitionDelete, st.just(LOG), st.sampled_from(list(PartitionDeleteState)))
RECORDS = st.lists(
    st.one_of(segments(st.sampled_from(IDS)), UPDATES, UPDATES, DELETES), max_size=40
)


def events_of(records: list[RemoteLogEvent]) -> Events:
    """The records as observations, out of order: the fold must sort them."""
    rows = [record_of(record, n // 20, n % 20) for n, record in enumerate(records)]
    batches = [
        pack_events(to_batch(MetadataRecord, some))
        for some in (rows[20:][::-1], rows[:20][::-1])
        if some
    ]
    return unpack(pa.Table.from_batches(batches, schema=arrow_schema(PackedEvents)))[0]


def folded(records: list[RemoteLogEvent]) -> tuple[Segments, RemoteLogIndex]:
    index = RemoteLogIndex()
    for record in records:
        if (
            isinstance(record, PartitionDelete)
            and record.state is PartitionDeleteState.DELETE_PARTITION_FINISHED
        ):
            index.anomalies = 0  # the fold looks at nothing before it
        index.apply(record)
    return fold(events_of(records)), index


def as_domain(found: Segments) -> list[RemoteSegment]:
    base = found.base
    return [
        RemoteSegment(
            log=LOG,
            topic="orders",
            segment_id=UUID(int=(int(base.id_high[n]) << 64) | int(base.id_low[n])),
            start_offset=int(base.start[n]),
            end_offset=int(base.end[n]),
            size_bytes=int(base.size[n]),
            leader_epochs=tuple(
                EpochStart(int(e), int(s))
                for e, s in zip(
                    base.epochs.values[base.epochs.offsets[n] : base.epochs.offsets[n + 1]],
                    base.epoch_starts.values[base.epochs.offsets[n] : base.epochs.offsets[n + 1]],
                    strict=True,
                )
            ),
            state=SegmentState(int(base.state[n])),
            max_timestamp=int(base.newest[n]),
            event_timestamp=int(base.stamp[n]),
            txn_index_empty=bool(base.txn_index_empty[n]),
        )
        for n in range(len(base))
    ]


@given(RECORDS)
@settings(max_examples=400, deadline=None)
def test_the_fold_leaves_what_the_domains_index_leaves(records: list[RemoteLogEvent]) -> None:
    found, index = folded(records)
    assert as_domain(found) == list(index.segments.get(LOG, {}).values())
    assert found.anomalies == index.anomalies


OBJECTS = st.builds(
    SegmentObjects,
    st.sampled_from([None, 99, 100, 100, 100, 101]),
    st.one_of(
        st.just(OWN_KINDS),
        st.just(OWN_KINDS | {"txnindex"}),
        st.just(AIVEN_KINDS),
        st.frozensets(st.sampled_from(sorted(OWN_KINDS | AIVEN_KINDS | {"txnindex"}))),
    ),
)


@st.composite
def lineages(draw: st.DrawFn) -> tuple[EpochStart, ...]:
    epochs = sorted(draw(st.sets(st.integers(0, 5), max_size=4)))
    starts = sorted(draw(st.sets(st.integers(0, 40), min_size=len(epochs), max_size=len(epochs))))
    return tuple(map(EpochStart, epochs, [0, *starts[1:]] if starts else []))


def objects_of(objects: dict[UUID, SegmentObjects]) -> Objects:
    high, low = id_halves(pa.array([i.bytes for i in objects], pa.binary()))
    values = list(objects.values())
    return Objects(
        high,
        low,
        np.zeros(len(values), dtype=np.int64),
        np.array([-1 if o.log_bytes is None else o.log_bytes for o in values], dtype=np.int64),
        np.array([kind_bits(o.kinds) for o in values], dtype=np.int64),
        np.zeros(len(values), dtype=np.int64),
    )


def name(found: Segments, row: int) -> str:
    """As the domain spells it."""
    segment_id = UUID(int=(int(found.base.id_high[row]) << 64) | int(found.base.id_low[row]))
    return f"{found.base.start[row]:020d}-{segment_id}"


def names(found: Segments, rows: np.ndarray) -> list[str]:
    return [name(found, int(row)) for row in rows]


@given(
    st.lists(segments(st.uuids()), max_size=25),
    st.integers(0, 30),
    st.integers(0, 60),
    lineages(),
    st.data(),
)
@settings(max_examples=400, deadline=None)
def test_the_verdict_is_the_domains(
    found: list[RemoteSegment],
    log_start: int,
    boundary: int,
    lineage: tuple[EpochStart, ...],
    data: st.DataObject,
) -> None:
    objects = {s.segment_id: data.draw(OBJECTS) for s in found if data.draw(st.integers(0, 9)) != 0}
    expected = assess(log_start, boundary, found, objects, lineage)
    folded_segments = fold(events_of(list(found)))
    told: Cover = cover(
        log_start,
        boundary,
        folded_segments,
        objects_of(objects),
        np.array([e.epoch for e in lineage], dtype=np.int64),
        np.array([e.start_offset for e in lineage], dtype=np.int64),
    )
    gaps = list(zip(told.gap_starts.tolist(), told.gap_ends.tolist(), strict=True))
    assert gaps == [(g.start, g.end) for g in expected.gaps]
    assert told.earliest_remote == expected.earliest_remote
    assert told.segments == expected.segments
    assert told.overlapping == expected.overlapping
    assert told.overshooting == expected.overshooting
    assert names(folded_segments, told.unfinished) == list(expected.unfinished)
    assert names(folded_segments, told.foreign) == list(expected.foreign)
    base = folded_segments.base
    problems = {
        name(folded_segments, int(row)): told.found.problem(
            int(row), int(base.size[row]), bool(may_lack_txn_index(base)[row])
        )
        for row in told.broken
    }
    assert problems == expected.broken


@given(st.lists(segments(st.uuids()), max_size=25), lineages())
@settings(max_examples=400, deadline=None)
def test_a_segment_is_within_the_lineage_as_kafka_means_it(
    found: list[RemoteSegment], lineage: tuple[EpochStart, ...]
) -> None:
    inside = within_lineage(
        events_of(list(found)),
        np.array([e.epoch for e in lineage], dtype=np.int64),
        np.array([e.start_offset for e in lineage], dtype=np.int64),
    )
    in_order = [*found[20:][::-1], *found[:20][::-1]]
    expected = [retention_rule.within_lineage(segment, lineage) for segment in in_order]
    assert inside.tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 70_000), st.booleans()), max_size=60))
@settings(max_examples=100, deadline=None)
def test_packing_groups_records_by_partition_and_keeps_their_order(
    records: list[tuple[int, int, bool]],
) -> None:
    rows = [
        MetadataRecord(0, place, int(change), UUID(int=topic), partition)
        for place, (topic, partition, change) in enumerate(records)
    ]
    packed = pa.Table.from_batches([pack_events(to_batch(MetadataRecord, rows))])
    found = {}
    for row in range(packed.num_rows):
        one = packed.slice(row, 1)
        key = UUID(bytes=one["topic_id"][0].as_py()).int, one["partition"][0].as_py()
        found[(*key, one["form"][0].as_py() == 1)] = unpack(one)[0].position.tolist()
    expected: dict[tuple[int, int, bool], list[int]] = {}
    for place, (topic, partition, change) in enumerate(records):
        expected.setdefault((topic, partition, change), []).append(place)
    assert found == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**64 - 1)), max_size=40))
def test_ids_are_brought_side_by_side_in_their_order_even_when_nearly_alike(
    ids: list[tuple[int, int]],
) -> None:
    alike = ids + [(high, low ^ 1) for high, low in ids] + [(high + 1, low) for high, low in ids]
    high = np.array([h for h, _ in alike], dtype=np.uint64)
    low = np.array([n for _, n in alike], dtype=np.uint64)
    told = [alike[row] for row in by_id(high, low)]
    runs = [key for key, _ in itertools.groupby(told)]
    assert len(runs) == len(set(alike))
    order = by_id(high, low).tolist()
    for key in set(alike):
        rows = [row for row in order if alike[row] == key]
        assert rows == sorted(rows)
