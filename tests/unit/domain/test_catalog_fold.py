"""What the catalog's records say together: only what has counted, whatever the order."""

from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.catalog import (
    AcceptedGap,
    Boundary,
    BoundaryReset,
    Entry,
    HeldConfig,
    Limits,
    MergedSegment,
    MigrationAborted,
    PrefixStart,
    Record,
    SuffixStart,
    Topic,
    TopicDeleted,
)
from tideline.domain.catalog_fold import Catalog, LogFacts, born_boundary, fold
from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_tail import ProducerSeed

HISTORY = UUID(int=7)
T, OTHER = UUID(int=1), UUID(int=2)
LOG = TopicIdPartition(T, 0)
TOPIC = Topic(T, "orders", False, 1, 1)
B0 = Boundary(T, 0, 3, 5, 100, (ProducerSeed(9, 0, 4, 6, 90, 92, 1_000),), 10, 2_000, 95)
SEGMENT = MergedSegment(T, 0, UUID(int=50), 100, 149, 9_000, 5_000, 50, 5, 80, 96)

_SMALL = st.integers(0, 3)
_IDS = st.sampled_from([T, OTHER])
_NAMES = st.sampled_from(["orders", "bills"])
_SEEDS = st.sampled_from([None, (), B0.seeds])
_RECORDS = st.one_of(
    st.builds(Topic, _IDS, _NAMES, st.booleans(), _SMALL, _SMALL),
    st.builds(TopicDeleted, _IDS, st.just("gateway"), st.just("gone")),
    st.builds(Boundary, _IDS, _SMALL, _SMALL, _SMALL, _SMALL, _SEEDS, _SMALL, _SMALL, _SMALL),
    st.builds(BoundaryReset, _IDS, _SMALL, _SMALL, st.integers(-1, 3), _SMALL),
    st.builds(MigrationAborted, _IDS, st.lists(st.tuples(_SMALL, _SMALL), max_size=3).map(tuple)),
    st.builds(AcceptedGap, _IDS, _SMALL, _SMALL, _SMALL, _SMALL, _SMALL),
    st.builds(SuffixStart, _IDS, _SMALL, _SMALL, _SMALL),
    st.builds(PrefixStart, _IDS, _SMALL, _SMALL, _SMALL),
    st.builds(HeldConfig, _IDS, _NAMES, st.booleans(), _NAMES, _NAMES, _SMALL),
    st.builds(Limits, _IDS, _NAMES, _SMALL, st.none(), st.none(), _SMALL),
    st.builds(MergedSegment, _IDS, _SMALL, st.uuids(), _SMALL, _SMALL, *[_SMALL] * 6),
)
_ENTRIES = st.builds(Entry, st.sampled_from([HISTORY, UUID(int=8)]), st.booleans(), _RECORDS)


def _fold(*counted: Record, announced: tuple[Record, ...] = ()) -> Catalog:
    entries = [Entry(HISTORY, True, one) for one in counted]
    return fold(entries + [Entry(HISTORY, False, one) for one in announced], HISTORY)


def _log(*counted: Record, announced: tuple[Record, ...] = ()) -> LogFacts:
    found = _fold(TOPIC, *counted, announced=announced)
    assert found.contradictions == []
    return found.logs[LOG]


@given(st.lists(_ENTRIES, max_size=12), st.data())
def test_neither_order_nor_repetition_matters(entries: list[Entry], data: st.DataObject) -> None:
    again = data.draw(st.permutations(entries + entries[:3]))
    assert fold(again, HISTORY) == fold(entries, HISTORY)


@given(st.lists(_ENTRIES, max_size=8), st.lists(_RECORDS, max_size=4))
def test_what_was_only_announced_changes_no_boundary_and_no_start(
    entries: list[Entry], announced: list[Record]
) -> None:
    """But a deletion, which Kafka has decided."""
    before = fold(entries, HISTORY)
    after = fold([*entries, *(Entry(HISTORY, False, one) for one in announced)], HISTORY)
    for log, facts in after.logs.items():
        assert facts.boundary == before.logs[log].boundary
        assert facts.suffix_start == before.logs[log].suffix_start
        assert facts.accepted_gap_from == before.logs[log].accepted_gap_from
    assert before.topics.keys() - after.topics.keys() <= after.deleted.keys()


def test_a_partition_has_its_boundary_with_seeds_and_starts() -> None:
    found = _log(
        B0,
        SuffixStart(T, 0, 100, 120),
        SuffixStart(T, 0, 100, 110),
        PrefixStart(T, 0, 100, 40),
        AcceptedGap(T, 0, 3, 5, 95, 100),
        AcceptedGap(T, 0, 3, 5, 97, 100),
        SEGMENT,
        announced=(SuffixStart(T, 0, 100, 130),),
    )
    assert found.boundary == B0
    assert (found.suffix_start, found.announced_start, found.prefix_start) == (120, 130, 40)
    assert found.accepted_gap_from == 95
    assert found.segments == (SEGMENT,)
    assert found.undecided == ()


def test_a_topic_that_only_is_tracked_has_partitions_without_b0() -> None:
    assert _log().boundary is None


def test_the_highest_generation_wins() -> None:
    newer = replace(B0, generation=6, boundary=140)
    assert _log(newer, B0).boundary == newer


def test_a_reset_unsets_the_boundary_it_names_and_those_of_older_generations() -> None:
    assert _log(B0, BoundaryReset(T, 0, 3, 100, 5)).boundary is None
    assert _log(B0, BoundaryReset(T, 0, 4, -1, -1)).boundary is None
    assert _log(B0, BoundaryReset(T, 0, 3, -1, -1)).boundary == B0
    newer = replace(B0, generation=4, boundary=90)
    assert _log(B0, BoundaryReset(T, 0, 3, 100, 5), newer).boundary == newer


def test_what_was_removed_under_a_boundary_that_was_reset_says_nothing_of_the_next_one() -> None:
    newer = replace(B0, generation=4, boundary=90)
    reset = BoundaryReset(T, 0, 3, 100, 5)
    found = _log(B0, SuffixStart(T, 0, 100, 120), reset, newer)
    assert found.suffix_start == 90


def test_a_gap_that_was_accepted_before_a_reset_is_none_of_the_same_b0_set_again() -> None:
    gap, reset = AcceptedGap(T, 0, 3, 5, 95, 100), BoundaryReset(T, 0, 3, 100, 5)
    assert _log(B0, gap).accepted_gap_from == 95
    assert _log(B0, gap, reset, replace(B0, generation=4)).accepted_gap_from == -1


def test_an_announced_boundary_is_undecided_until_it_counts_or_an_abort_does() -> None:
    assert _log(announced=(B0,)).undecided == (B0,)
    assert _log(announced=(B0,)).boundary is None
    aborted = MigrationAborted(T, ((0, 3),))
    assert _log(aborted, announced=(B0,)).undecided == ()
    assert _log(B0, announced=(replace(B0, leader_epoch=6),)).undecided == ()
    assert _log(B0, announced=(replace(B0, generation=2, boundary=80),)).undecided == ()


def test_an_announced_reset_leaves_the_boundary_and_is_named() -> None:
    reset = BoundaryReset(T, 0, 3, 100, 5)
    found = _log(B0, announced=(reset,))
    assert (found.boundary, found.undecided) == (B0, (reset,))


def test_two_boundaries_of_one_generation_are_a_contradiction() -> None:
    found = _fold(TOPIC, B0, replace(B0, boundary=101))
    assert found.logs[LOG].boundary is None
    assert "more than one B0" in found.contradictions[0]


def test_a_note_that_was_taken_later_does_not_lose_the_seeds() -> None:
    later = replace(B0, generation=9, seeds=None)
    assert _log(B0, later).boundary == replace(B0, generation=9)


def test_a_topic_born_diskless_and_added_partitions_begin_at_offset_0() -> None:
    found = _fold(Topic(T, "orders", True, 2, 0))
    assert found.logs[LOG].boundary == born_boundary(LOG)
    found = _fold(TOPIC, B0, Topic(T, "orders", False, 3, 1))
    assert found.logs[LOG].boundary == B0
    assert [found.logs[TopicIdPartition(T, p)].suffix_start for p in (1, 2)] == [0, 0]
    more = Topic(T, "orders", False, 5, 3)
    assert _fold(TOPIC, announced=(more,)).topics[T].undecided == (more,)


def test_a_deletion_is_final_and_needs_no_word_of_postgres() -> None:
    deleted = TopicDeleted(T, "gateway", "Kafka deleted it")
    found = _fold(TOPIC, B0, announced=(deleted,))
    assert (found.deleted, found.topics, found.logs) == ({T: "orders"}, {}, {})


def test_two_living_ids_of_one_name_are_a_contradiction() -> None:
    found = _fold(TOPIC, replace(TOPIC, topic_id=OTHER))
    assert "none of them deleted" in found.contradictions[0]


def test_a_fact_of_a_topic_that_nothing_names_is_a_contradiction() -> None:
    assert "no counted record names it" in _fold(B0).contradictions[0]
    assert "has 1 partitions" in _fold(TOPIC, replace(B0, partition=4)).contradictions[0]


def test_the_latest_word_on_configs_and_limits_counts() -> None:
    held = HeldConfig(T, "max.message.bytes", True, "0", "900", 10)
    released = replace(held, held=False, noted_at_ms=20)
    again = replace(held, user_value="950", noted_at_ms=30)
    assert _fold(TOPIC, held).topics[T].held == {"max.message.bytes": held}
    assert _fold(TOPIC, released, held).topics[T].held == {}
    assert _fold(TOPIC, again, released, held).topics[T].held == {"max.message.bytes": again}
    disputed = _fold(TOPIC, held, replace(held, user_value="1"))
    assert disputed.topics[T].held == {}
    assert "two values of one time" in disputed.contradictions[0]
    limits = Limits(T, "CreateTime", 900, None, None, 10)
    found = _fold(TOPIC, limits, Limits(T, None, 950, None, None, 20)).topics[T].limits
    assert found == {"timestamp_type": "CreateTime", "max_message_bytes": 950}


def test_segments_that_overlap_are_a_contradiction() -> None:
    other = replace(SEGMENT, segment_id=UUID(int=51), base_offset=140, last_offset=160)
    found = _fold(TOPIC, B0, SEGMENT, other)
    assert found.logs[LOG].segments == ()
    assert "both hold offset 140" in found.contradictions[0]


def test_records_of_another_history_say_nothing_here() -> None:
    found = fold([Entry(UUID(int=8), True, TOPIC)], HISTORY)
    assert (found.foreign, found.topics) == (1, {})
