"""Remote log metadata folds into what is readable; nothing impossible adds readable data."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import (
    EpochStart,
    PartitionDelete,
    PartitionDeleteState,
    RemoteLogIndex,
    RemoteSegment,
    SegmentState,
    SegmentUpdate,
    stuck_copies,
)

LOG = TopicIdPartition(UUID(int=7), 3)
STARTED = RemoteSegment(
    log=LOG,
    topic="orders",
    segment_id=UUID(int=9),
    start_offset=0,
    end_offset=9,
    size_bytes=1,
    leader_epochs=(EpochStart(0, 0),),
    state=SegmentState.COPY_SEGMENT_STARTED,
    event_timestamp=1_000,
)


def folded(*states: SegmentState) -> RemoteLogIndex:
    index = RemoteLogIndex()
    index.apply(STARTED)
    for state in states:
        index.apply(SegmentUpdate(LOG, STARTED.segment_id, state, event_timestamp=2_000))
    return index


def test_a_finished_copy_is_readable() -> None:
    (found,) = folded(SegmentState.COPY_SEGMENT_FINISHED).of(LOG)
    assert found.state is SegmentState.COPY_SEGMENT_FINISHED


def test_a_deleted_segment_is_forgotten() -> None:
    index = folded(
        SegmentState.COPY_SEGMENT_FINISHED,
        SegmentState.DELETE_SEGMENT_STARTED,
        SegmentState.DELETE_SEGMENT_FINISHED,
    )
    assert index.of(LOG) == ()
    assert index.anomalies == 0


def test_a_deletion_that_began_is_never_readable_again() -> None:
    index = folded(
        SegmentState.COPY_SEGMENT_FINISHED,
        SegmentState.DELETE_SEGMENT_STARTED,
        SegmentState.COPY_SEGMENT_FINISHED,
    )
    (found,) = index.of(LOG)
    assert found.state is SegmentState.DELETE_SEGMENT_STARTED
    assert index.anomalies == 1


def test_an_update_of_an_unknown_segment_adds_nothing() -> None:
    index = RemoteLogIndex()
    index.apply(SegmentUpdate(LOG, UUID(int=1), SegmentState.COPY_SEGMENT_FINISHED))
    assert index.of(LOG) == ()
    assert index.anomalies == 1


def test_a_deleted_partition_takes_its_segments_along() -> None:
    index = folded(SegmentState.COPY_SEGMENT_FINISHED)
    index.apply(PartitionDelete(LOG, PartitionDeleteState.DELETE_PARTITION_FINISHED))
    assert index.of(LOG) == ()


def test_an_old_unfinished_copy_is_stuck() -> None:
    young = replace(STARTED, segment_id=UUID(int=10), event_timestamp=9_500)
    done = replace(STARTED, segment_id=UUID(int=11), state=SegmentState.COPY_SEGMENT_FINISHED)
    assert stuck_copies((STARTED, young, done), 10_000, 5_000) == (STARTED,)


@given(st.lists(st.sampled_from(SegmentState), max_size=8))
def test_a_state_never_becomes_more_readable(states: list[SegmentState]) -> None:
    index = RemoteLogIndex()
    index.apply(STARTED)
    reached = 0
    for state in states:
        index.apply(SegmentUpdate(LOG, STARTED.segment_id, state))
        now = index.of(LOG)[0].state if index.of(LOG) else SegmentState.DELETE_SEGMENT_FINISHED
        assert now >= reached
        reached = now


def test_what_was_finished_once_stays_known_by_leader_epoch_after_its_deletion() -> None:
    """Kafka never forgets it, and takes everything below it for uploaded."""
    epochs = (EpochStart(0, 0), EpochStart(2, 4))
    index = RemoteLogIndex()
    index.apply(replace(STARTED, leader_epochs=epochs))
    assert index.finished_once == {}
    for state in list(SegmentState)[1:]:
        index.apply(SegmentUpdate(LOG, STARTED.segment_id, state))
    assert index.of(LOG) == ()
    assert index.finished_once == {LOG: {0: 3, 2: 9}}
    index.apply(PartitionDelete(LOG, PartitionDeleteState.DELETE_PARTITION_FINISHED))
    assert index.finished_once == {}


def test_a_copy_that_never_finished_was_never_there() -> None:
    assert folded(SegmentState.DELETE_SEGMENT_STARTED).finished_once == {}
