"""What follows from the reports of a topic's partitions. No server is needed for these."""

from __future__ import annotations

from dataclasses import replace

import pytest
from temporalio.converter import DefaultPayloadConverter

from tideline.domain.messages import (
    ABORTED,
    DONE,
    PartitionRef,
    PartitionReport,
    PartitionState,
    TopicRef,
    WaitsFor,
)
from tideline.domain.migration import Phase
from tideline.domain.options import MigrationOptions
from tideline.domain.preflight import MOST_PARTITIONS
from workflows.partition_migration import report_of
from workflows.topic_run import Continued
from workflows.topic_state import MOST_WRITE_PAUSES, Stage, TopicState


def crossing(partitions: int, parallel: int = 4) -> TopicState:
    state = TopicState(
        TopicRef("orders", "00" * 16, partitions),
        MigrationOptions(parallel_partitions=parallel),
        stage=Stage.CROSSING,
    )
    state.begin()
    return state


def drained(partition: int, round: int = 1) -> PartitionReport:
    return PartitionReport(partition, Phase.QUIESCE, "", waits_for=WaitsFor.PERMIT, round=round)


@pytest.mark.parametrize("reason", ["é" * 10_000, "a transaction is open; " * 400, '"' * 1_500])
def test_the_largest_topic_that_may_migrate_fits_into_one_message_of_temporal(reason: str) -> None:
    """What one run hands to the next, and what it answers, with a long reason for each partition:
    Temporal refuses more than 2 MB, and the workflow would try for ever."""
    ref = PartitionRef("o" * 249, "00" * 16, 0)
    partition = PartitionState(phase=Phase.READINESS, since="2026-01-01T00:00:00.000+00:00")
    partition.boundary, partition.leader_epoch = 2**62, 2**30
    report = report_of(ref, partition, reason)
    state = crossing(MOST_PARTITIONS)
    for number in range(MOST_PARTITIONS):
        state.receive(replace(report, partition=number))
    for value in (Continued(state), state.status("")):
        [payload] = DefaultPayloadConverter().to_payloads([value])
        assert len(payload.SerializeToString()) < 2_000_000


def test_a_place_is_free_again_once_a_partition_has_its_b0() -> None:
    state = crossing(3, parallel=1)
    assert state.to_start() == [0]
    state.receive(PartitionReport(0, Phase.VALIDATE, ""))
    assert state.to_start() == []
    state.receive(PartitionReport(0, Phase.ZOMBIE_CLEANUP, "", boundary=7))
    assert state.to_start() == [1]


def test_only_so_many_write_pauses_begin_at_once() -> None:
    state = crossing(4)
    for partition in range(4):
        state.receive(drained(partition))
    first = state.to_permit()
    assert len(first) == MOST_WRITE_PAUSES
    for partition in first:
        state.permits[partition] = 1
    assert state.to_permit() == []


def test_a_write_pause_that_failed_does_not_hold_up_the_others() -> None:
    state = crossing(MOST_WRITE_PAUSES + 1)
    for partition in range(MOST_WRITE_PAUSES + 1):
        state.receive(drained(partition))
    for partition in state.to_permit():
        state.permits[partition] = 1
    state.receive(PartitionReport(0, Phase.DRAIN_TRANSACTIONS, "", waiting_reason="it failed"))
    assert state.to_permit() == [MOST_WRITE_PAUSES]


def test_after_a_boundary_reset_the_partition_needs_a_new_permit() -> None:
    state = crossing(1)
    state.permits[0] = 1
    state.receive(drained(0, round=2))
    assert state.to_permit() == [0]


def test_a_reset_after_all_had_crossed_takes_the_topic_back() -> None:
    state = crossing(2)
    for partition in range(2):
        state.receive(PartitionReport(partition, Phase.ZOMBIE_CLEANUP, "", boundary=7))
    state.stage = Stage.ROLLING
    assert not state.must_cross_again
    state.receive(drained(1, round=2))
    assert state.must_cross_again


def test_nothing_begins_while_paused_or_aborted() -> None:
    state = crossing(2)
    state.receive(drained(0))
    state.paused = True
    assert state.to_start() == state.to_permit() == []
    state.paused, state.aborted = False, True
    assert state.to_start() == state.to_permit() == []


def test_a_partition_that_postgres_calls_aborted_aborts_the_topic() -> None:
    state = crossing(2)
    state.receive(PartitionReport(1, ABORTED, ""))
    assert state.aborted


def test_a_report_of_an_unknown_partition_is_ignored() -> None:
    state = crossing(1)
    before = replace(state)
    state.receive(PartitionReport(5, DONE, ""))
    assert state == before
