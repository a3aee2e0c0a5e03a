"""The write pause: quiesce, observe the end, persist B0. Whatever moved starts it anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from temporalio.exceptions import ApplicationError

from activities.drain_transactions import FRESH_MS, drain_transactions, look_ahead
from activities.quiesce import quiesce
from activities.roll_and_flush import roll_and_flush
from activities.seed_and_persist import seed_and_persist
from tests.unit.activities.world import LOG, REF, World, gateway
from tideline.control_plane.errors import (
    BoundaryBelowAcknowledged,
    ControlPlaneUnavailable,
    QuiesceNotClosed,
    StaleGeneration,
    StaleLeaderEpoch,
)
from tideline.control_plane.model import BarrierEntry, TopicStatus
from tideline.domain import failures
from tideline.domain.ids import TopicPartition
from tideline.domain.migration import Phase, PhaseStatus
from tideline.domain.options import Durability
from tideline.domain.producer_tail import ProducerTail, TailBatch
from tideline.domain.transactions import CoordinatorTransaction
from tideline.kafka.observer import OffsetAnswer, PartitionLayout
from tideline.kafka.topic_observer import ActiveProducer, ConfigEntry
from tideline.migration.connections import CachedObservation

LONG = {"quiesce_hold_ms": 8_000}
"""Rounds of what is waited for fit into it on any machine."""


async def failure_of(call: Any) -> ApplicationError:
    with pytest.raises(ApplicationError) as raised:
        await call
    assert raised.value.__cause__ is not raised.value, "it crosses Temporal with its causes"
    return raised.value


async def test_a_quiesce_passes_when_every_gateway_has_acknowledged(world: World) -> None:
    world.plane.at_barrier(
        BarrierEntry(gateway(1), True, highest_acknowledged_offset=41),
        BarrierEntry(gateway(2), True, highest_acknowledged_offset=98),
    )
    result = await quiesce(world.services, world.given())
    assert (result.generation, result.highest_acknowledged_offset) == (1, 98)
    assert world.plane.row.quiesced
    status, evidence, _ = await world.recorded(Phase.QUIESCE)
    assert status is PhaseStatus.DONE
    assert evidence["gateways"] == [1, 2]


async def test_each_attempt_takes_a_newer_generation(world: World) -> None:
    first = await quiesce(world.services, world.given())
    second = await quiesce(world.services, world.given())
    assert second.generation > first.generation


async def test_of_a_topic_that_a_gateway_has_not_acknowledged_no_producer_is_parked(
    world: World,
) -> None:
    """A history was begun that lacks the acknowledgement."""
    world.plane.at_barrier(BarrierEntry(gateway(1), True, highest_acknowledged_offset=41))
    world.plane.status = TopicStatus.TRACKING
    error = await failure_of(quiesce(world.services, world.given()))
    assert (error.type, error.non_retryable) == (failures.UNTRACKED, True)
    assert not world.plane.row.quiesced


async def test_a_gateway_whose_lease_has_ended_is_fenced_and_passed(world: World) -> None:
    world.services.leases.watch._margin_ms = 10
    world.plane.register(gateway(2))
    world.plane.at_barrier(
        BarrierEntry(gateway(1), True, highest_acknowledged_offset=10),
        BarrierEntry(gateway(2), False),
    )
    await world.services.leases.read()
    result = await quiesce(world.services, world.given(options=LONG))
    assert result.fenced_gateways == [2]
    assert world.plane.fenced == [2]
    assert result.highest_acknowledged_offset == 10


async def test_a_gateway_that_renews_but_does_not_acknowledge_voids_the_quiesce(
    world: World,
) -> None:
    world.plane.at_barrier(BarrierEntry(gateway(3), False))
    error = await failure_of(quiesce(world.services, world.given()))
    assert error.type == failures.QUIESCE_VOID
    assert error.non_retryable
    assert "gateway 3" in error.message
    assert world.plane.fenced == []


async def test_a_partition_with_a_boundary_is_never_quiesced_again(world: World) -> None:
    world.plane.row = replace(world.plane.row, boundary=100)
    error = await failure_of(quiesce(world.services, world.given()))
    assert error.type == failures.REFUSED
    assert not world.plane.row.quiesced


async def test_a_quiesce_on_a_worker_that_did_not_drain_looks_before_it_parks_anybody(
    world: World,
) -> None:
    seen: list[bool] = []
    scan = world.kafka.tails.look_back

    async def looking(*args: Any, **spots: int) -> Any:
        seen.append(world.plane.row.quiesced)
        return await scan(*args, **spots)

    world.kafka.tails.look_back = looking  # type: ignore[method-assign]
    await quiesce(world.services, world.given())
    assert seen == [False]
    assert world.services.cached[LOG].scanned_end == 100


async def test_a_look_ahead_that_is_old_is_made_anew_and_a_fresh_one_is_kept(world: World) -> None:
    await look_ahead(world.services, REF)
    first = world.services.cached[LOG]
    await look_ahead(world.services, REF)
    assert world.services.cached[LOG] is first
    first.at_ms -= FRESH_MS + 1
    await look_ahead(world.services, REF)
    assert world.services.cached[LOG] is not first


async def test_a_worker_that_takes_over_inside_the_pause_lets_producers_go_instead_of_reading(
    world: World,
) -> None:
    error = await failure_of(
        seed_and_persist(world.services, world.given(generation=1, boundary=100, leader_epoch=5))
    )
    assert error.type == failures.NOT_SETTLED
    assert "took over" in error.message
    assert world.plane.persisted == []


async def test_a_worker_that_takes_over_with_an_old_look_lets_producers_go_instead_of_reading(
    world: World,
) -> None:
    """It drained the partition an hour ago; another worker quiesced it."""
    given = world.given(generation=1, boundary=100, leader_epoch=5)
    await look_ahead(world.services, REF)
    world.services.cached[LOG].at_ms -= 3_600_000
    error = await failure_of(seed_and_persist(world.services, given))
    assert error.type == failures.NOT_SETTLED
    assert "took over" in error.message
    assert world.plane.persisted == []


async def test_a_tiered_durability_reads_remote_metadata_before_it_parks_anybody(
    world: World,
) -> None:
    """A topic of which nothing was tiered yet is not followed until somebody asks."""
    world.kafka.local_starts = dict.fromkeys((1, 2, 3), 0)
    seen: list[bool] = []
    segments = world.store.segments

    async def reading(*args: Any) -> Any:
        seen.append(world.plane.row.quiesced)
        return await segments(*args)

    world.store.segments = reading  # type: ignore[method-assign]
    await quiesce(world.services, world.given(options={"durability": Durability.TIERED}))
    assert seen == [False]


async def test_a_worker_that_takes_over_does_not_begin_to_follow_remote_metadata_in_the_pause(
    world: World,
) -> None:
    asked: list[Any] = []

    async def reading(*args: Any) -> Any:
        asked.append(args)

    world.store.segments = reading  # type: ignore[method-assign]
    given = world.given(generation=1, options={"durability": Durability.TIERED})
    error = await failure_of(roll_and_flush(world.services, given))
    assert error.type == failures.NOT_SETTLED
    assert "took over" in error.message
    assert asked == []


async def test_local_segments_that_went_since_the_look_ahead_are_not_looked_for_in_the_pause(
    world: World,
) -> None:
    world.services.cache(LOG, CachedObservation(world.kafka.layout, 50, True))
    error = await failure_of(persisting(world))
    assert error.type == failures.NOT_SETTLED
    assert "local segments up to 100 went" in error.message


async def test_the_boundary_is_where_every_in_sync_replica_ends(world: World) -> None:
    found = await roll_and_flush(world.services, world.given(generation=1))
    assert (found.boundary, found.leader_id, found.leader_epoch) == (100, 1, 5)
    assert found.replicas == {"1": 100, "2": 100, "3": 100}


async def test_a_follower_that_is_behind_is_waited_for(world: World) -> None:
    looks = []

    def catch_up(kafka: Any) -> None:
        looks.append(1)
        kafka.ends[3] = 99 if len(looks) < 3 else 100

    world.kafka.before_end = catch_up
    found = await roll_and_flush(world.services, world.given(generation=1, options=LONG))
    assert found.replicas["3"] == 100
    _, evidence, _ = await world.recorded(Phase.ROLL_AND_FLUSH)
    assert evidence["observations"] == 3


@pytest.mark.parametrize(
    "unsettled",
    [
        {"ends": {1: 100, 2: 100, 3: 99}},
        {"watermarks": {1: 99, 2: 100, 3: 100}},
        {"last_stable": 90},
        {"silent": {3}},
        {"silent": {1}},
        {"layout": PartitionLayout(0, -1, 6, (1, 2, 3), (1, 2, 3))},
    ],
)
async def test_a_log_that_does_not_come_to_rest_is_no_boundary(
    world: World, unsettled: dict[str, Any]
) -> None:
    for name, value in unsettled.items():
        setattr(world.kafka, name, value)
    error = await failure_of(roll_and_flush(world.services, world.given(generation=1)))
    assert error.type == failures.NOT_SETTLED
    assert error.non_retryable


async def test_a_leader_that_moved_is_observed_anew(world: World) -> None:
    stale = replace(world.kafka.layout, leader=2, leader_epoch=4)
    world.services.cache(LOG, CachedObservation(stale, 0, True))
    found = await roll_and_flush(world.services, world.given(generation=1))
    assert (found.leader_id, found.leader_epoch) == (1, 5)


@pytest.mark.parametrize(
    "moved",
    [{"leader": 2}, {"leader_epoch": 6}, {"in_sync": (1, 2)}],
    ids=lambda moved: next(iter(moved)),
)
async def test_an_end_under_which_the_partition_moved_is_no_boundary_and_is_observed_anew(
    world: World, moved: dict[str, Any]
) -> None:
    """Whatever it was that moved, and although every mark rests: that each question names its epoch
    and that all marks meet are checks of their own."""
    looks = 0

    async def partition(*_: Any, **__: Any) -> PartitionLayout:
        nonlocal looks
        looks += 1
        if looks == 2:  # the one behind the first observation
            world.kafka.layout = replace(world.kafka.layout, **moved)
        return world.kafka.layout

    world.kafka.partition = partition  # type: ignore[method-assign]
    found = await roll_and_flush(world.services, world.given(generation=1, options=LONG))
    now = world.kafka.layout
    assert (found.leader_id, found.leader_epoch) == (now.leader, now.leader_epoch)
    assert set(found.replicas) == {str(node) for node in now.in_sync}
    _, evidence, _ = await world.recorded(Phase.ROLL_AND_FLUSH)
    assert evidence["observations"] == 2


async def test_a_tiered_durability_holds_the_boundary_until_the_prefix_is_covered(
    world: World,
) -> None:
    given = world.given(generation=1, options={"durability": Durability.TIERED})
    await look_ahead(world.services, REF)
    assert (await roll_and_flush(world.services, given)).boundary == 100
    world.store.found = []
    error = await failure_of(roll_and_flush(world.services, given))
    assert error.type == failures.NOT_SETTLED
    assert "[0, 100)" in error.message


async def persisting(world: World, **given: Any) -> None:
    """As it comes after a quiesce of the same process."""
    await look_ahead(world.services, REF)
    given = {"boundary": 100, **given}
    await seed_and_persist(world.services, world.given(generation=1, leader_epoch=5, **given))


async def test_the_boundary_is_persisted_with_seeds_and_the_prefixs_largest_timestamp(
    world: World,
) -> None:
    world.kafka.active = [ActiveProducer(7, 0, 9, 1_000, 0, -1)]
    tail = ProducerTail(0, 0)
    tail.append([TailBatch(90, 99, 7, 0, 0, 1_000)], 100)
    world.kafka.tails.tail = tail
    world.kafka.max_timestamp = OffsetAnswer(95, 1_700, 5)
    await persisting(world)
    (request,) = world.plane.persisted
    assert (request.boundary, request.leader_epoch, request.generation) == (100, 5, 1)
    assert [s.last_sequence for s in request.seeds] == [9]
    assert (request.prefix_max_timestamp, request.prefix_max_timestamp_offset) == (1_700, 95)


async def test_after_a_change_of_the_leader_producers_are_looked_for_before_the_next_pause(
    world: World,
) -> None:
    await look_ahead(world.services, REF)
    world.kafka.layout = replace(world.kafka.layout, leader_epoch=6)
    given = world.given(generation=1, leader_epoch=6, boundary=100)
    error = await failure_of(seed_and_persist(world.services, given))
    assert error.type == failures.NOT_SETTLED
    assert not world.plane.persisted
    await look_ahead(world.services, REF)
    await seed_and_persist(world.services, given)
    assert world.plane.persisted


async def test_a_larger_timestamp_in_remote_storage_wins(world: World) -> None:
    world.kafka.max_timestamp = OffsetAnswer(-1, -1, 5)
    await persisting(world)
    (request,) = world.plane.persisted
    assert (request.prefix_max_timestamp, request.prefix_max_timestamp_offset) == (1_500, 3)


async def test_an_empty_log_crosses_without_a_prefix(world: World) -> None:
    world.kafka.ends = dict.fromkeys((1, 2, 3), 0)
    world.kafka.local_starts = dict.fromkeys((1, 2, 3), 0)
    world.kafka.watermarks = dict.fromkeys((1, 2, 3), 0)
    await persisting(world, boundary=0)
    (request,) = world.plane.persisted
    assert (request.boundary, request.prefix_max_timestamp) == (0, -1)


def ends_at(world: World, end: int) -> None:
    """Nothing has expired, and every replica ends there."""
    world.kafka.last_stable = end
    world.kafka.ends = dict.fromkeys((1, 2, 3), end)
    world.kafka.watermarks = dict.fromkeys((1, 2, 3), end)
    world.kafka.local_starts = dict.fromkeys((1, 2, 3), 0)


async def test_a_boundary_above_0_needs_tiered_storage(world: World) -> None:
    """An empty topic may migrate without; this one had its first records after the preflight."""
    world.kafka.own_configs = {"remote.storage.enable": "false"}
    ends_at(world, 0)
    await look_ahead(world.services, REF)
    ends_at(world, 100)
    given = world.given(generation=1, boundary=100, leader_epoch=5)
    error = await failure_of(seed_and_persist(world.services, given))
    assert error.type == failures.NOT_SETTLED
    assert "remote.storage.enable=false" in error.message
    assert world.plane.persisted == []
    closed = world.plane.row.generation
    for phase in (drain_transactions, quiesce):
        error = await failure_of(phase(world.services, world.given()))
        assert error.type == failures.WAITING
        assert "set remote.storage.enable=true, or abort" in error.message
    assert world.plane.row.generation == closed, "producers were parked for nothing"
    world.kafka.own_configs["remote.storage.enable"] = "true"
    await persisting(world)
    assert world.plane.persisted


async def test_who_has_nothing_below_the_boundary_needs_no_tiered_storage(world: World) -> None:
    """All of it has expired, or was deleted."""
    world.kafka.own_configs = {"remote.storage.enable": "false"}
    world.kafka.log_start = 100
    await persisting(world)
    assert world.plane.persisted


@pytest.mark.parametrize("lags", [0, 1])
async def test_a_broker_that_lags_does_not_pass_for_tiered_storage(world: World, lags: int) -> None:
    ends_at(world, 100)
    tiered, not_tiered = (
        {"remote.storage.enable": ConfigEntry(value, True)} for value in ("true", "false")
    )
    world.kafka.views = [tiered, not_tiered][:: 1 if lags else -1]
    error = await failure_of(look_ahead(world.services, REF))
    assert error.type == failures.WAITING


async def test_a_repeat_after_success_changes_nothing_whatever_the_log_does_now(
    world: World,
) -> None:
    await persisting(world)
    world.kafka.ends[1] = 105
    await persisting(world)
    assert len(world.plane.persisted) == 1


async def test_another_boundary_than_the_persisted_one_is_refused(world: World) -> None:
    world.plane.row = replace(world.plane.row, boundary=90, boundary_epoch=5)
    error = await failure_of(persisting(world))
    assert error.type == failures.REFUSED
    assert "90" in error.message


async def test_a_late_append_is_noticed_before_its_sequence_becomes_a_seed(world: World) -> None:
    world.kafka.ends[1] = 101
    error = await failure_of(persisting(world))
    assert error.type == failures.NOT_SETTLED
    assert world.plane.persisted == []


async def test_a_transaction_that_a_coordinator_still_holds_forbids_the_boundary(
    world: World,
) -> None:
    world.kafka.transactions = [
        CoordinatorTransaction(
            "pay", 7, 0, "PrepareAbort", 1, 2, frozenset({TopicPartition("orders", 0)})
        )
    ]
    error = await failure_of(persisting(world))
    assert error.type == failures.NOT_SETTLED
    assert '"pay"' in error.message


async def test_a_leader_that_does_not_answer_while_seeds_are_read_is_observed_anew(
    world: World,
) -> None:
    """It may be a leader no more: asking the same broker again would hold producers for nothing."""
    world.services.cache(LOG, CachedObservation(world.kafka.layout, 0, True))
    world.kafka.silent = {1}
    error = await failure_of(persisting(world))
    assert error.type == failures.NOT_SETTLED
    assert world.plane.persisted == []


async def test_a_leader_that_moved_since_the_observation_forbids_the_boundary(
    world: World,
) -> None:
    world.kafka.layout = replace(world.kafka.layout, leader=2, leader_epoch=6)
    error = await failure_of(persisting(world))
    assert error.type == failures.NOT_SETTLED


@pytest.mark.parametrize(
    ("refused", "kind", "final"),
    [
        (StaleGeneration("2 exists"), failures.STALE_GENERATION, True),
        (QuiesceNotClosed("void"), failures.QUIESCE_VOID, True),
        (StaleLeaderEpoch("6"), failures.NOT_SETTLED, True),
        (BoundaryBelowAcknowledged("101"), failures.NOT_SETTLED, True),
        (ControlPlaneUnavailable("away"), failures.UNREACHABLE, False),
    ],
)
async def test_what_the_control_plane_refuses_keeps_its_meaning(
    world: World, refused: Exception, kind: str, final: bool
) -> None:
    world.plane.refuse = refused
    error = await failure_of(persisting(world))
    assert (error.type, error.non_retryable) == (kind, final)


async def test_no_warm_observation_survives_the_crossing(world: World) -> None:
    await persisting(world)
    assert LOG not in world.services.cached
    assert UUID(int=1) == LOG.topic_id
