"""The tiered prefix counts as covered only by finished segments of the log's own lineage."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.coverage import AIVEN_KINDS, OWN_KINDS, OffsetRange, SegmentObjects, assess
from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import EpochStart, RemoteSegment, SegmentState

LOG = TopicIdPartition(UUID(int=1), 0)
ONE_EPOCH = (EpochStart(0, 0),)
FINISHED = SegmentState.COPY_SEGMENT_FINISHED


def segment(
    start: int,
    end: int,
    *,
    epochs: tuple[tuple[int, int], ...] | None = None,
    state: SegmentState = FINISHED,
    number: int | None = None,
    size: int = 100,
) -> RemoteSegment:
    return RemoteSegment(
        log=LOG,
        topic="orders",
        segment_id=UUID(int=(start * 1000 + end) if number is None else number),
        start_offset=start,
        end_offset=end,
        size_bytes=size,
        leader_epochs=tuple(EpochStart(e, s) for e, s in (epochs or ((0, start),))),
        state=state,
        txn_index_empty=True,
    )


def test_adjacent_segments_cover_the_prefix() -> None:
    found = assess(0, 20, [segment(0, 9), segment(10, 19)], None, ONE_EPOCH)
    assert found.complete
    assert found.covered_to == 20
    assert found.earliest_remote == 0


def test_a_missing_middle_is_a_gap() -> None:
    found = assess(0, 30, [segment(0, 9), segment(20, 29)], None, ONE_EPOCH)
    assert found.gaps == (OffsetRange(10, 20),)
    assert found.covered_to == 10
    assert "[10, 20)" in found.reason()


def test_a_copy_that_has_not_finished_is_not_readable_data() -> None:
    started = segment(10, 19, state=SegmentState.COPY_SEGMENT_STARTED)
    found = assess(0, 20, [segment(0, 9), started], None, ONE_EPOCH)
    assert found.gaps == (OffsetRange(10, 20),)
    assert len(found.unfinished) == 1


def test_a_segment_being_deleted_no_longer_counts() -> None:
    deleting = segment(0, 9, state=SegmentState.DELETE_SEGMENT_STARTED)
    assert not assess(0, 10, [deleting], None, ONE_EPOCH).complete


def test_overlaps_are_allowed() -> None:
    found = assess(0, 20, [segment(0, 12), segment(5, 19)], None, ONE_EPOCH)
    assert found.complete
    assert found.overlapping == 1


def test_overshoot_is_clipped() -> None:
    found = assess(0, 15, [segment(0, 19)], None, ONE_EPOCH)
    assert found.complete
    assert found.overshooting == 1
    assert found.covered_to == 15


def test_an_empty_prefix_is_complete_without_any_segment() -> None:
    assert assess(0, 0, [], None, ()).complete
    assert assess(7, 7, [], None, ONE_EPOCH).complete


def test_a_log_start_inside_a_segment_needs_only_the_rest_of_it() -> None:
    assert assess(5, 10, [segment(0, 9)], None, ONE_EPOCH).complete


def test_a_deposed_leaders_segment_does_not_count() -> None:
    lineage = (EpochStart(0, 0), EpochStart(2, 10))
    divergent = segment(10, 19, epochs=((1, 10),))
    found = assess(0, 20, [segment(0, 9), divergent], None, lineage)
    assert found.gaps == (OffsetRange(10, 20),)
    assert len(found.foreign) == 1


def test_only_the_common_part_of_a_segment_across_a_divergence_counts() -> None:
    lineage = (EpochStart(0, 0), EpochStart(2, 6))
    crossing = segment(0, 9, epochs=((0, 0), (1, 8)))
    found = assess(0, 10, [crossing], None, lineage)
    assert found.gaps == (OffsetRange(6, 10),)


def test_a_missing_object_uncovers_its_segment() -> None:
    first, second = segment(0, 9), segment(10, 19)
    objects = {first.segment_id: SegmentObjects(100, OWN_KINDS)}
    found = assess(0, 20, [first, second], objects, ONE_EPOCH)
    assert found.gaps == (OffsetRange(10, 20),)
    assert "not in the bucket" in found.reason()


def test_a_short_object_uncovers_its_segment() -> None:
    only = segment(0, 9)
    found = assess(0, 10, [only], {only.segment_id: SegmentObjects(99, OWN_KINDS)}, ONE_EPOCH)
    assert not found.complete
    assert "99 bytes instead of 100" in next(iter(found.broken.values()))


def test_a_missing_index_uncovers_its_segment() -> None:
    only = segment(0, 9)
    objects = {only.segment_id: SegmentObjects(100, OWN_KINDS - {"timeindex"})}
    assert not assess(0, 10, [only], objects, ONE_EPOCH).complete


def test_a_segment_with_aborted_transactions_needs_their_index() -> None:
    plain, aborts = segment(0, 4), replace(segment(5, 9), txn_index_empty=False)
    both = [plain, aborts]
    of_plain = {plain.segment_id: SegmentObjects(100, OWN_KINDS)}
    without = of_plain | {aborts.segment_id: SegmentObjects(100, OWN_KINDS)}
    assert not assess(0, 10, both, without, ONE_EPOCH).complete
    whole = of_plain | {aborts.segment_id: SegmentObjects(100, OWN_KINDS | {"txnindex"})}
    assert assess(0, 10, both, whole, ONE_EPOCH).complete


def test_what_brokers_before_4_0_have_tiered_may_have_no_transaction_index() -> None:
    """Their metadata do not say whether there is one (KIP-1058); from the first segment on whose
    metadata do, each that does not say so has one."""
    old, after = (replace(segment(*at), txn_index_empty=False) for at in ((0, 4), (15, 19)))
    tagged = segment(10, 14)
    every = [old, segment(5, 9), tagged, after]
    every[1] = replace(every[1], txn_index_empty=False)
    objects = {one.segment_id: SegmentObjects(100, OWN_KINDS) for one in every}
    assert assess(0, 10, every[:2], objects, ONE_EPOCH).complete
    assert assess(0, 15, every[:3], objects, ONE_EPOCH).complete
    late = assess(0, 20, every, objects, ONE_EPOCH)
    assert [str(gap) for gap in late.gaps] == ["[15, 20)"]
    assert list(late.broken.values()) == ["its txnindex object is not in the bucket"]


def test_aivens_packed_indexes_are_understood() -> None:
    only = segment(0, 9)
    whole = {only.segment_id: SegmentObjects(100, AIVEN_KINDS)}
    assert assess(0, 10, [only], whole, ONE_EPOCH).complete
    without = {only.segment_id: SegmentObjects(100, AIVEN_KINDS - {"rsm-manifest"})}
    assert not assess(0, 10, [only], without, ONE_EPOCH).complete


def test_a_good_copy_beside_a_broken_one_is_enough() -> None:
    good, bad = segment(0, 9, number=1), segment(0, 9, number=2)
    objects = {good.segment_id: SegmentObjects(100, OWN_KINDS)}
    found = assess(0, 10, [good, bad], objects, ONE_EPOCH)
    assert found.complete
    assert len(found.broken) == 1


@st.composite
def _histories(
    draw: st.DrawFn,
) -> tuple[int, int, list[RemoteSegment], tuple[EpochStart, ...]]:
    boundaries = sorted(draw(st.sets(st.integers(1, 40), max_size=4)))
    lineage = tuple(EpochStart(i * 2, s) for i, s in enumerate([0, *boundaries]))
    segments = []
    for number in range(draw(st.integers(0, 8))):
        start = draw(st.integers(0, 45))
        end = draw(st.integers(start, 50))
        inner = sorted(
            draw(st.sets(st.integers(start + 1, end), max_size=2)) if end > start else []
        )
        known = sorted(draw(st.sets(st.integers(0, 9), min_size=1 + len(inner), max_size=3)))
        epochs = tuple(zip(known, [start, *inner], strict=False))
        state = draw(st.sampled_from(SegmentState))
        segments.append(segment(start, end, epochs=epochs, state=state, number=number))
    log_start = draw(st.integers(0, 50))
    return log_start, draw(st.integers(log_start, 52)), segments, lineage


@given(_histories())
def test_gaps_are_exactly_the_offsets_that_no_valid_segment_holds(
    history: tuple[int, int, list[RemoteSegment], tuple[EpochStart, ...]],
) -> None:
    log_start, boundary, segments, lineage = history

    def epoch_of(offset: int, entries: tuple[EpochStart, ...]) -> int:
        return max((e for e in entries if e.start_offset <= offset), key=lambda e: e.epoch).epoch

    covered = {
        offset
        for s in segments
        if s.state is FINISHED
        for offset in range(s.start_offset, s.end_offset + 1)
        if epoch_of(offset, s.leader_epochs) == epoch_of(offset, lineage)
    }
    expected = {o for o in range(log_start, boundary) if o not in covered}
    found = assess(log_start, boundary, segments, None, lineage)
    assert {o for gap in found.gaps for o in range(gap.start, gap.end)} == expected
    assert found.complete == (not expected)
    assert found.covered_to == min(expected, default=boundary)
    assert list(found.gaps) == sorted(found.gaps)


@given(_histories(), st.data())
def test_more_segments_never_uncover_an_offset(
    history: tuple[int, int, list[RemoteSegment], tuple[EpochStart, ...]], data: st.DataObject
) -> None:
    log_start, boundary, segments, lineage = history
    fewer = [s for s in segments if data.draw(st.booleans())]
    with_fewer = assess(log_start, boundary, fewer, None, lineage)
    with_all = assess(log_start, boundary, segments, None, lineage)
    assert with_fewer.covered_to <= with_all.covered_to
