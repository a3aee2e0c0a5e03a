"""What follows from the reports of a topic's partitions. No server is needed for these."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from temporalio.converter import DefaultPayloadConverter

from tideline.domain.messages import (
    ABORTED,
    DONE,
    FORCED,
    GONE,
    MOST_REPORTS,
    PartitionRef,
    PartitionReport,
    PartitionState,
    TopicRef,
    WaitsFor,
)
from tideline.domain.migration import LET_THROUGH, MOST_WRITE_PAUSES, Phase
from tideline.domain.options import Durability, MigrationOptions
from tideline.domain.preflight import MOST_PARTITIONS
from tideline.domain.report_columns import reports_of
from workflows.partition_migration import may_rest, report_of
from workflows.tally import Tally
from workflows.topic_run import Continued
from workflows.topic_state import Stage, TopicState


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


def test_a_topic_that_a_partition_finds_untracked_gives_no_permit_before_it_is_tracked() -> None:
    state = crossing(3)
    state.receive(drained(0))
    state.receive(PartitionReport(1, Phase.DRAIN_TRANSACTIONS, "", waits_for=WaitsFor.TRACKING))
    assert (state.must_track_again, state.to_permit()) == (True, [])
    assert state.to_start() == []
    state.stage, state.untracked = Stage.TRACKING, False
    state.receive(PartitionReport(1, Phase.DRAIN_TRANSACTIONS, "", waits_for=WaitsFor.TRACKING))
    assert not state.untracked, "that is being mended: its next try says whether it was"
    assert state.to_start() == []
    state.receive(drained(1, round=2))
    assert (state.must_track_again, state.to_permit()) == (False, [])
    state.stage = Stage.CROSSING
    assert (state.to_permit(), state.to_start()) == ([0, 1], [2])
    state.untracked = state.sealed = True
    assert not state.must_track_again, "what the user had before the seal is not known any more"


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
    for value in (Continued(state.to_carry()), state.status("")):
        [payload] = DefaultPayloadConverter().to_payloads([value])
        assert len(payload.SerializeToString()) < 1_300_000


def test_what_a_large_topic_hands_over_is_what_it_knew() -> None:
    state = crossing(MOST_REPORTS + 1, parallel=50)
    state.receive(PartitionReport(0, Phase.DRAIN_TRANSACTIONS, "s", waiting_reason="a transaction"))
    state.receive(drained(1))
    state.receive(PartitionReport(2, Phase.READINESS, "t", 2**62, 7, WaitsFor.READY, round=3))
    state.receive(PartitionReport(3, Phase.READINESS, "t", 9, 7, WaitsFor.READY, rests=True))
    converter = DefaultPayloadConverter()
    [payload] = converter.to_payloads([Continued(state.to_carry())])
    carried: TopicState = converter.from_payload(payload, Continued).continued
    assert (carried.partitions, carried.columns is None) == ([], False)
    carried.begin()
    assert carried.partitions == state.partitions
    assert carried.columns is None
    assert carried.tally == state.tally
    assert reports_of(state.status("")) == state.partitions
    small = crossing(MOST_REPORTS)
    assert small.to_carry() is small


def test_what_is_counted_with_each_report_is_what_counting_anew_gives() -> None:
    """Of 5,000 partitions, each of which reports some times: what it costs does not grow with
    the number of partitions."""
    state = crossing(5_000, parallel=500)
    draw = random.Random(15)
    made = (
        PartitionReport(0, Phase.VALIDATE, ""),
        PartitionReport(0, Phase.DRAIN_TRANSACTIONS, "", waiting_reason="a transaction is open"),
        drained(0),
        PartitionReport(0, Phase.ZOMBIE_CLEANUP, "", 100, 1),
        PartitionReport(0, Phase.READINESS, "", 100, 1, WaitsFor.READY),
        PartitionReport(0, Phase.READINESS, "", 100, 1, WaitsFor.READY, rests=True),
        PartitionReport(0, DONE, "", 100, 1),
    )
    assert state.tally.running == 0
    for report in draw.choices(made, k=30_000):
        state.receive(replace(report, partition=draw.randrange(5_000)))
        state.to_start()
        state.details(state.reason(""))
    assert state.tally == Tally.of(state.partitions)
    assert state.tally.running == len(state.running())


def test_whoever_does_not_know_yet_where_its_partition_stands_takes_no_boundary_back() -> None:
    """It was started again while Postgres is away. One that has read that B0 is unset does."""
    state = crossing(2)
    state.stage = Stage.TIERING
    for partition in (0, 1):
        state.receive(
            PartitionReport(partition, Phase.READINESS, "s", 9, 1, WaitsFor.READY, rests=True)
        )
    state.must_look_itself(0)
    away = PartitionReport(0, Phase.VALIDATE, "t", waiting_reason="away", round=2, unsure=True)
    state.receive(away)
    assert state.partitions[0] == PartitionReport(
        0, Phase.READINESS, "s", 9, 1, waiting_reason="away"
    )
    assert state.reason("") == "partition 0: away"
    assert state.steering(0).own_look
    assert state.running() == [0]
    assert not state.must_cross_again
    state.receive(replace(away, unsure=False))
    assert state.must_cross_again


def test_a_partition_that_has_ended_is_not_begun_again_by_a_workflow_that_knows_nothing() -> None:
    state = crossing(1)
    done = PartitionReport(0, DONE, "s", 9, 1)
    state.receive(done)
    state.receive(PartitionReport(0, Phase.VALIDATE, "t", waiting_reason="away", unsure=True))
    assert state.partitions == [done]


def test_one_that_was_let_through_and_runs_already_asks_like_others() -> None:
    state = crossing(3)
    state.armed = True
    state.receive(PartitionReport(0, Phase.VALIDATE, "s"))
    state.let_through(0)
    state.take_back(0)
    assert (state.through, state.steering(0).permit) == ([], 0)
    state.receive(drained(0))
    assert state.to_permit() == [0]


def test_nobody_is_permitted_before_the_topic_is_unsealed() -> None:
    """Unsealing and arming would change the same configs of Kafka at the same time."""
    state = crossing(1)
    state.sealed = True
    state.receive(drained(0, round=2))
    assert state.to_permit() == []
    state.sealed = False
    assert state.to_permit() == [0]


def test_a_partition_without_a_boundary_does_not_come_to_rest() -> None:
    """Nobody would go on with it."""
    state = PartitionState(phase=Phase.READINESS)
    assert not may_rest(state)
    state.boundary = 9
    assert may_rest(state)


def test_of_a_partition_that_was_never_heard_of_the_first_word_counts() -> None:
    state = crossing(1)
    away = PartitionReport(0, Phase.VALIDATE, "t", waiting_reason="away", unsure=True)
    state.receive(away)
    assert state.partitions == [replace(away, unsure=False)]


def test_a_partition_that_was_told_is_done_and_its_late_report_makes_it_told_again() -> None:
    state = crossing(2)
    state.rolled = True
    waits = PartitionReport(1, Phase.READINESS, "", 9, 1, WaitsFor.READY)
    state.receive(waits)
    assert state.may_look_for_ready
    assert state.wants_ready() == [1]
    state.found_ready(1)
    assert not state.may_look_for_ready
    assert state.steering(1).ready == 1
    state.told_of_ready(1, "now")
    assert state.partitions[1].phase == DONE
    state.receive(waits)
    assert state.wants_ready() == [1]


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


def let_through(state: TopicState) -> list[int]:
    """Whoever is started now, as the fan-out does it."""
    started = state.to_start()
    for partition in started:
        state.receive(PartitionReport(partition, Phase.VALIDATE, ""))
        state.let_through(partition)
    return started


def test_once_the_topic_is_armed_partitions_are_started_with_their_permit() -> None:
    state = crossing(100, parallel=50)
    assert len(state.to_start()) == 50, "until then each is asked for"
    state.armed = True
    most = LET_THROUGH * MOST_WRITE_PAUSES
    assert let_through(state) == list(range(most))
    assert [state.steering(p).permit for p in range(most)] == [1] * most
    assert state.to_start() == []
    state.receive(PartitionReport(2, Phase.READINESS, "", 9, 1, WaitsFor.READY, rests=True))
    assert let_through(state) == [most]


def test_one_that_was_let_through_and_has_to_wait_makes_room_and_asks_like_others() -> None:
    state = crossing(100, parallel=50)
    state.armed = True
    for partition in let_through(state):
        state.receive(
            PartitionReport(partition, Phase.DRAIN_TRANSACTIONS, "", waiting_reason="a transaction",
            round=2)
        )  # fmt: skip
    assert len(let_through(state)) == LET_THROUGH * MOST_WRITE_PAUSES
    state.receive(drained(0, round=2))
    assert state.to_permit() == [], "as many as may be are under way"
    assert state.to_start() == [], "nobody overtakes the one that asks"
    for partition in state.through[:LET_THROUGH]:
        state.receive(PartitionReport(partition, Phase.READINESS, "", 9, 1, WaitsFor.READY))
    assert state.to_permit() == [0]


def test_with_the_longest_write_pauses_each_is_asked_for() -> None:
    """Six at once would be in theirs, where two may be."""
    state = crossing(100, parallel=50)
    state.armed = True
    state.options = replace(state.options, durability=Durability.TIERED)
    assert not state.starts_with_permit
    assert len(state.to_start()) == 50


def test_whoever_was_let_through_counts_until_it_has_crossed_or_given_its_permit_back() -> None:
    """Not until it is heard of: it is asked where it stands, or was paused and goes on."""
    state = crossing(100, parallel=50)
    state.armed = True
    begun = let_through(state)
    for partition in begun:
        state.receive(PartitionReport(partition, Phase.QUIESCE, "", waiting_reason="paused"))
    assert (state.through, state.to_start()) == (begun, [])
    state.receive(PartitionReport(0, Phase.READINESS, "", 9, 1, WaitsFor.READY))
    state.receive(PartitionReport(1, Phase.VALIDATE, "", waiting_reason="a reassignment", round=2))
    state.receive(PartitionReport(2, GONE, ""))
    assert state.through == begun[3:]
    assert len(state.to_start()) == 3


def test_a_partition_that_an_operator_has_paused_keeps_no_other_one_waiting() -> None:
    ref = PartitionRef("orders", "00" * 16, 0)
    for phase, waits_for in ((Phase.QUIESCE, WaitsFor.PERMIT), (Phase.READINESS, WaitsFor.READY)):
        partition = PartitionState(phase=phase, since="")
        assert report_of(ref, partition, "").waits_for is waits_for
        partition.paused = True
        assert report_of(ref, partition, "").waits_for is WaitsFor.NOTHING


def test_a_partition_without_a_workflow_is_neither_steered_nor_waited_for() -> None:
    state = crossing(2)
    rests = PartitionReport(0, Phase.READINESS, "", 9, 1, WaitsFor.READY, rests=True)
    state.receive(rests)
    assert (state.running(), state.tally.running) == ([], 0)
    assert state.wants_ready() == [0]
    state.force_resting("now")
    assert state.partitions[0].phase == FORCED
    assert (state.tally.ended, state.wants_ready()) == (1, [])


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


def test_no_more_partitions_begin_than_operators_allow_the_topic() -> None:
    state = crossing(5, parallel=4)
    for share, expected in ((None, 4), (9, 4), (2, 2), (0, 0)):
        state.share = share
        assert len(state.to_start()) == expected
    assert "`tideline limits`" in state.reason("")
    state.share = 1
    state.receive(PartitionReport(0, Phase.VALIDATE, ""))
    assert state.to_start() == []
    assert state.reason("") == ""


def test_the_first_partitions_cross_and_the_others_wait_until_they_are_resumed() -> None:
    state = crossing(5, parallel=4)
    state.options = replace(state.options, first_partitions=2)
    assert state.to_start() == [0, 1]
    for partition in (0, 1):
        state.receive(PartitionReport(partition, Phase.VALIDATE, ""))
    assert state.to_start() == []
    state.receive(PartitionReport(1, Phase.ZOMBIE_CLEANUP, "", boundary=7))
    assert not state.paused
    state.receive(PartitionReport(0, Phase.ZOMBIE_CLEANUP, "", boundary=7))
    assert state.paused
    assert state.reason("").startswith("2 partitions have crossed before the others")
    state.paused = False
    state.receive(PartitionReport(0, Phase.READINESS, "", boundary=7))
    assert not state.paused  # once
    assert state.to_start() == [2, 3, 4]
    small = crossing(2)
    small.options = replace(small.options, first_partitions=2)
    for partition in (0, 1):
        small.receive(PartitionReport(partition, Phase.ZOMBIE_CLEANUP, "", boundary=7))
    assert not small.paused  # nobody is left to wait


def test_other_options_let_the_first_partitions_be_looked_at_at_once() -> None:
    """Nobody need report any more: those that were begun wait for remote storage, or hang."""
    state = crossing(20)
    for partition in range(6):
        state.receive(PartitionReport(partition, Phase.READINESS, "", 7, 1, WaitsFor.READY))
    state.receive(PartitionReport(6, Phase.DRAIN_TRANSACTIONS, "", waiting_reason="a transaction"))
    for first in (9, 5):
        state.options = replace(state.options, first_partitions=first)
        state.hold_after_first()
        assert state.paused == (first == 5)
    assert state.reason("").startswith("6 partitions have crossed before the others")
    state.paused = False
    assert state.to_start() == [7, 8, 9]


def test_every_silent_partition_is_looked_after_in_turn_however_short_the_runs() -> None:
    state = crossing(12, parallel=12)
    for partition in range(11):
        state.receive(PartitionReport(partition, Phase.READINESS, "", 7, 1, WaitsFor.READY))
    seen: list[int] = []
    converter = DefaultPayloadConverter()
    for _ in range(4):
        seen += state.to_look_after({3}, 4)
        [payload] = converter.to_payloads([Continued(state.to_carry())])
        state = converter.from_payload(payload, Continued).continued
    assert seen == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2, 4]


def test_each_write_pause_is_permitted_anew_so_that_no_more_run_than_may() -> None:
    """As a partition's workflow reports a pause that failed: the next one is of another round."""
    state = crossing(10, parallel=10)
    for partition in range(10):
        state.receive(drained(partition))
    running: dict[int, int] = {}
    for _ in range(30):
        for partition in state.to_permit():
            state.permits[partition] = running[partition] = state.partitions[partition].round
        assert len(running) == MOST_WRITE_PAUSES
        failed, round = running.popitem()
        back = PartitionReport(failed, Phase.DRAIN_TRANSACTIONS, "", round=round + 1)
        state.receive(back)
        state.receive(drained(failed, round + 1))
        assert state.permits[failed] <= round


def test_what_was_looked_for_under_one_b0_says_nothing_of_the_next() -> None:
    state = crossing(1)
    state.rolled = True
    waits = PartitionReport(0, Phase.READINESS, "", 9, 1, WaitsFor.READY)
    state.receive(waits)
    assert state.still_wants_ready(0, 1)
    state.receive(PartitionReport(0, Phase.DRAIN_TRANSACTIONS, "", round=2))
    assert not state.still_wants_ready(0, 1)
    state.receive(replace(waits, boundary=50, round=2))
    assert not state.still_wants_ready(0, 1)
    assert state.still_wants_ready(0, 2)


def test_a_partition_that_was_started_anew_is_not_done_by_what_its_former_run_was_told() -> None:
    state = crossing(1)
    state.receive(PartitionReport(0, Phase.READINESS, "", 9, 1, WaitsFor.READY))
    state.found_ready(0)
    state.receive(PartitionReport(0, Phase.ZOMBIE_CLEANUP, "", 9, 1))
    state.told_of_ready(0, "now")
    assert state.partitions[0].phase == Phase.ZOMBIE_CLEANUP
    assert state.steering(0).ready == 1, "it hears of it when it waits"


def test_what_was_found_under_a_b0_that_was_unset_is_forgotten() -> None:
    state = crossing(1)
    state.rolled = True
    waits = PartitionReport(0, Phase.READINESS, "", 9, 1, WaitsFor.READY)
    state.receive(waits)
    state.must_look_itself(0)
    assert state.steering(0).own_look
    state.receive(PartitionReport(0, Phase.DRAIN_TRANSACTIONS, "", round=2))
    assert not state.steering(0).own_look
    state.receive(replace(waits, round=2))
    assert state.wants_ready() == [0]
