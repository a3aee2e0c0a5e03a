"""What operators decide: a log gap is given up only when nobody holds it, a completion is forced
only behind B0; and what follows from that for the phases behind B0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from activities.operators import accept_gap, force_completion, record_configuration
from activities.readiness import readiness
from activities.zombie_cleanup import zombie_cleanup
from tests.unit.activities.test_around_the_pause import crossed, failure_of, hybrid
from tests.unit.activities.world import TOPIC_ID, World
from tideline.domain import failures
from tideline.domain.coverage import OWN_KINDS, SegmentObjects
from tideline.domain.ids import TopicIdPartition
from tideline.domain.log_gap import in_words
from tideline.domain.messages import TopicRef
from tideline.domain.operator_choices import (
    CompletionRequest,
    ConfigurationRecord,
    Decider,
    GapRequest,
    GapStep,
)
from tideline.domain.remote_log import SegmentState
from tideline.errors import RefusedError
from tideline.migration.gaps import find_gap, keep_gap

REF = TopicRef("orders", TOPIC_ID.hex, 1)
ADA = Decider("ada", "the disk of broker 2 is lost")


@pytest.fixture
def gap(world: World) -> World:
    """After an unclean election every replica ends at 80, B0 is 100; segments end at 60."""
    hybrid(world, 120)
    world.plane.row = replace(world.plane.row, generation=1, boundary_epoch=4)
    world.kafka.ends = dict.fromkeys((1, 2, 3), 80)
    world.kafka.watermarks = dict.fromkeys((1, 2, 3), 80)
    world.store.found = [replace(world.store.found[0], end_offset=59)]
    return world


def request(first: int = 80, end: int = 100) -> GapStep:
    return GapStep(REF, GapRequest(0, first, end, ADA))


async def refused(world: World, given: GapStep) -> str:
    error = await failure_of(accept_gap(world.services, given))
    assert error.type == failures.REFUSED
    assert world.plane.row.accepted_gap_from == -1
    return error.message


async def test_a_gap_that_nobody_holds_is_given_up_and_the_partition_goes_on(gap: World) -> None:
    outcome = await accept_gap(gap.services, request())
    assert (outcome.first, outcome.end, outcome.leader_epoch) == (80, 100, 5)
    assert outcome.log_ends == {"1": 80, "2": 80, "3": 80}
    (action,) = await gap.plane.list_operator_actions("orders")
    assert action.details["log_ends"] == {"1": 80, "2": 80, "3": 80}
    await zombie_cleanup(gap.services, crossed(gap))
    gap.kafka.local_starts = dict.fromkeys((1, 2, 3), 80)
    gap.store.found = [replace(gap.store.found[0], end_offset=79)]
    await readiness(gap.services, crossed(gap))
    assert gap.plane.row.ready


async def test_what_a_replica_holds_is_not_given_up(gap: World) -> None:
    gap.kafka.ends[3] = 90
    why = await refused(gap, request())
    assert "replicas hold a part of it; log ends are {3: 90}" in why


async def test_a_replica_that_does_not_answer_perhaps_holds_it(gap: World) -> None:
    gap.kafka.silent = {2}
    assert "replica 2 does not answer and perhaps holds the range" in await refused(gap, request())


@pytest.mark.parametrize(
    "state", [SegmentState.COPY_SEGMENT_FINISHED, SegmentState.COPY_SEGMENT_STARTED]
)
async def test_what_a_remote_segment_holds_is_not_given_up_and_the_segment_is_named(
    gap: World, state: SegmentState
) -> None:
    """Also one of a leader that was deposed: the new leader's lineage does not know its epoch."""
    gap.store.found = [replace(gap.store.found[0], end_offset=94, state=state)]
    why = await refused(gap, request())
    assert f"{UUID(int=9)} (0 to 94)" in why
    assert "Name only what lies behind them" in why
    assert "`tideline gap keep orders 0`" in why
    await accept_gap(gap.services, request(95))


async def test_what_a_remote_segment_holds_is_given_up_once_its_objects_are_kept(
    gap: World,
) -> None:
    gap.store.found = [replace(gap.store.found[0], end_offset=94)]
    log = TopicIdPartition(TOPIC_ID, 0)
    found = await find_gap(gap.services, "orders", log)
    assert found is not None
    assert in_words(found.parts) == (
        "remote segments hold 80 to 94, which Kafka does not serve; nobody holds 95 to 99"
    )
    assert (await keep_gap(gap.services, "orders", log)).copied == 6
    assert (await keep_gap(gap.services, "orders", log)).copied == 0
    await accept_gap(gap.services, request())
    (action,) = await gap.plane.list_operator_actions("orders")
    assert action.details["kept"] == [str(UUID(int=9))]
    await zombie_cleanup(gap.services, crossed(gap))
    assert await find_gap(gap.services, "orders", log) is None


async def test_a_copy_that_is_not_whole_keeps_nothing(gap: World) -> None:
    gap.store.found = [replace(gap.store.found[0], end_offset=94)]
    gap.store.copied = {UUID(int=9): SegmentObjects(9, OWN_KINDS)}
    assert "remote segments hold a part of it" in await refused(gap, request())


async def test_without_a_gap_there_is_nothing_to_keep(gap: World) -> None:
    gap.kafka.ends[2] = 100
    log = TopicIdPartition(TOPIC_ID, 0)
    assert await find_gap(gap.services, "orders", log) is None
    with pytest.raises(RefusedError, match="nothing to keep"):
        await keep_gap(gap.services, "orders", log)


async def test_the_phase_that_waits_names_what_segments_hold_and_what_nobody_holds(
    gap: World,
) -> None:
    gap.store.found = [replace(gap.store.found[0], end_offset=94)]
    error = await failure_of(zombie_cleanup(gap.services, crossed(gap)))
    assert "remote segments hold 80 to 94, which Kafka does not serve" in error.message
    assert "nobody holds 95 to 99" in error.message


async def test_a_segment_whose_object_is_lost_holds_nothing(gap: World) -> None:
    gap.store.found = [replace(gap.store.found[0], end_offset=94)]
    gap.store.listing = {}
    assert (await accept_gap(gap.services, request())).remote_end == -1


async def test_a_gap_is_named_whole(gap: World) -> None:
    assert "nobody holds 80 to 84 either: name the whole range" in await refused(gap, request(85))
    assert "ends at B0 100, not at 99" in await refused(gap, request(80, 99))


async def test_a_leader_that_moves_meanwhile_is_asked_again(gap: World) -> None:
    async def moved(*_: Any, **__: Any) -> Any:
        return replace(gap.kafka.layout, leader=2, leader_epoch=6)

    gap.kafka.partition = moved  # type: ignore[method-assign]
    assert "its leader moved from 1 to 2 meanwhile" in await refused(gap, request())


async def test_another_topic_of_that_name_is_not_looked_at(gap: World) -> None:
    gap.kafka.topic_id = UUID(int=77)
    assert "nothing to give up" in await refused(gap, request())


async def test_a_prefix_that_expires_up_to_an_accepted_gap_is_gone(gap: World) -> None:
    await accept_gap(gap.services, request())
    gap.kafka.log_start = 80
    await readiness(gap.services, crossed(gap))
    assert (gap.plane.row.state.value, gap.plane.row.ready) == ("DISKLESS_ONLY", True)


async def test_a_completion_is_forced_only_behind_b0(world: World) -> None:
    asked = CompletionRequest(REF, ADA)
    error = await failure_of(force_completion(world.services, asked))
    assert (error.type, "no B0" in error.message) == (failures.REFUSED, True)
    hybrid(world, 120)
    assert (await force_completion(world.services, asked)).incomplete == [0]


async def test_changed_options_are_kept(world: World) -> None:
    record = ConfigurationRecord(REF, ADA, {"segment_wait_ms": [1, 2]})
    await record_configuration(world.services, record)
    (action,) = await world.plane.list_operator_actions()
    assert (action.decided_by, action.details) == ("ada", {"segment_wait_ms": [1, 2]})


@pytest.mark.parametrize("phase", [zombie_cleanup, readiness])
async def test_a_topic_that_was_forgotten_ends_what_waits_for_it(world: World, phase: Any) -> None:
    """Kafka has no such topic any more, which looks like an outage."""
    given = crossed(world)
    world.kafka.silent = {1, 2, 3}
    await world.plane.delete_topic(TOPIC_ID)
    error = await failure_of(phase(world.services, given))
    assert (error.type, "deleted or forgotten" in error.message) == (failures.UNKNOWN_TOPIC, True)
