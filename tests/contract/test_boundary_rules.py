"""B0 is set once, at the newest epoch, under a quiesce that holds (seed 000)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.contract.scenes import Scene, batch, seed
from tideline.control_plane.errors import (
    AbortRefused,
    BoundaryAlreadySet,
    BoundaryBelowAcknowledged,
    InvalidInput,
    NotMigrating,
    QuiesceNotClosed,
    ResetRefused,
    SeedMismatch,
    SeedNotBelowBoundary,
    StaleGeneration,
    StaleLeaderEpoch,
    TrackingIncomplete,
    UnknownLog,
)
from tideline.control_plane.model import (
    BoundaryToPersist,
    CommitError,
    FindBatchesRequest,
    TrackingKind,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.migration import MigrationState
from tideline.domain.producer_tail import ProducerSeed


async def test_b0_makes_the_partition_hybrid_and_opens_its_suffix(scene: Scene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, 10)
    partition = await scene.plane.tracked_partition(log.topic_id, log.partition)
    assert partition is not None
    assert partition.state is MigrationState.HYBRID
    assert (partition.boundary, partition.boundary_epoch) == (10, 3)
    assert (partition.high_watermark, partition.suffix_start) == (10, 10)
    assert not partition.quiesced
    (committed,) = await scene.commit(gateway, batch(log))
    assert committed.base_offset == 10


async def test_an_empty_partition_becomes_diskless_only_at_0(scene: Scene) -> None:
    log = await scene.hybrid_log(await scene.gateway(), 0)
    partition = await scene.plane.tracked_partition(log.topic_id, log.partition)
    assert partition is not None
    assert partition.state is MigrationState.DISKLESS_ONLY
    assert partition.ready


async def test_the_same_boundary_and_seeds_succeed_again(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    generation = await scene.quiesce(log, [gateway])
    await scene.persist(log, 10, generation, seeds=[seed(1), seed(2)])
    await scene.commit(gateway, batch(log))
    await scene.persist(log, 10, generation, seeds=[seed(2), seed(1)])
    await scene.persist(log, 10, generation, seeds=[seed(1), seed(2)], epoch=4)
    partition = await scene.plane.tracked_partition(log.topic_id, log.partition)
    assert partition is not None
    assert (partition.boundary_epoch, partition.high_watermark) == (3, 11)


async def test_a_second_b0_is_rejected_at_any_epoch(scene: Scene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, 10)
    for epoch in (3, 4):
        with pytest.raises(BoundaryAlreadySet, match=r"is 10 .epoch 3., it cannot become 12"):
            await scene.persist(log, 12, 1, epoch=epoch)
    assert await scene.plane.get_diskless_log_start_offset(log) == 10


async def test_other_seeds_for_the_same_b0_are_rejected(scene: Scene) -> None:
    log = await scene.hybrid_log(await scene.gateway(), 10, [seed(1)])
    with pytest.raises(SeedMismatch):
        await scene.persist(log, 10, 1, seeds=[seed(2)])
    with pytest.raises(SeedMismatch):
        await scene.plane.seed_producer_state(log, [seed(2)])
    await scene.plane.seed_producer_state(log, [seed(1)])


async def test_a_stale_leader_epoch_is_rejected_even_after_a_reset(scene: Scene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, 10)
    with pytest.raises(StaleLeaderEpoch, match=r"epoch 2 .* was set, or reset, at epoch 3"):
        await scene.persist(log, 10, 1, epoch=2)
    await scene.plane.reset_boundary(log, 1, 3)
    generation = await scene.quiesce(log, [gateway])
    with pytest.raises(StaleLeaderEpoch):
        await scene.persist(log, 12, generation, epoch=2)
    await scene.persist(log, 12, generation, epoch=4)
    assert await scene.plane.get_diskless_log_start_offset(log) == 12


async def test_after_a_reset_an_epoch_older_than_the_one_that_saw_it_is_stale(scene: Scene) -> None:
    """Its leader was deposed before the log was seen to begin past B0 (seed 000, I2)."""
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, 10)
    with pytest.raises(StaleLeaderEpoch):
        await scene.plane.reset_boundary(log, 1, 2)
    await scene.plane.reset_boundary(log, 1, 7)
    generation = await scene.quiesce(log, [gateway])
    with pytest.raises(StaleLeaderEpoch, match=r"epoch 6 .* was set, or reset, at epoch 7"):
        await scene.persist(log, 12, generation, epoch=6)
    with pytest.raises(StaleLeaderEpoch):
        await scene.plane.set_diskless_log_start_offset(log, 12, 6)
    await scene.persist(log, 12, generation, epoch=7)


async def test_a_reset_takes_readiness_back_until_it_is_observed_anew(scene: Scene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, 10)
    await scene.plane.set_tiering_complete(log, 1, True, "3 segments cover the prefix")
    assert await is_ready(scene, log)
    await scene.plane.reset_boundary(log, 1, 3)
    assert not await is_ready(scene, log)
    await scene.persist(log, 12, await scene.quiesce(log, [gateway]))
    assert not await is_ready(scene, log), "what was true of another prefix says nothing"


async def is_ready(scene: Scene, log: TopicIdPartition) -> bool:
    partition = await scene.plane.tracked_partition(log.topic_id, log.partition)
    assert partition is not None
    return partition.ready


async def test_after_a_reset_the_same_epoch_sets_another_value_under_a_new_quiesce(
    scene: Scene,
) -> None:
    """Seed 000, I2, asks for a higher epoch; here the suffix is empty and the quiesce a fence."""
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, 10)
    await scene.plane.reset_boundary(log, 1, 3)
    with pytest.raises(QuiesceNotClosed):
        await scene.persist(log, 12, 1, epoch=3)
    await scene.persist(log, 12, await scene.quiesce(log, [gateway]), epoch=3)
    assert await scene.plane.get_diskless_log_start_offset(log) == 12


async def test_a_reset_voids_the_generation_whose_acknowledgements_came_before_it(
    scene: Scene,
) -> None:
    """Gateways take appends again from the reset on: what they acknowledged says nothing."""
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, 10)
    await scene.plane.reset_boundary(log, 1, 3)
    with pytest.raises(QuiesceNotClosed, match=r"generation 1 .* was closed before and is void"):
        await scene.plane.close_generation(log, 1, 60_000)
    assert await scene.plane.void_expired_quiesce(log), "it takes classic appends"
    generation = await scene.plane.next_generation(log)
    await scene.plane.close_generation(log, generation, 60_000)
    (waited_for,) = await scene.plane.quiesce_barrier(log, generation)
    assert not waited_for.acknowledged


async def test_a_stale_generation_is_rejected(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    stale = await scene.quiesce(log, [gateway])
    current = await scene.quiesce(log, [gateway])
    with pytest.raises(StaleGeneration, match=f"generation {stale} .* {current} is current"):
        await scene.persist(log, 10, stale)
    with pytest.raises(StaleGeneration):
        await scene.plane.close_generation(log, stale, 1_000)
    await scene.persist(log, 10, current)


async def test_b0_must_lie_above_what_any_gateway_acknowledged(scene: Scene) -> None:
    """Schedule 14: a zombie leader and stale metadata show a log end that is too low."""
    first, second = await scene.gateway(), await scene.gateway()
    _, (log,) = await scene.migrating_topic([first, second])
    generation = await scene.quiesce(log, [first], 3)
    await scene.plane.acknowledge_quiesce(
        second.gateway_id, second.incarnation, log, generation, 9, 10
    )
    with pytest.raises(BoundaryBelowAcknowledged, match=r"B0 9 .* offset 9"):
        await scene.persist(log, 9, generation)
    await scene.persist(log, 10, generation)


async def test_b0_waits_for_every_gateway_but_a_fenced_one(scene: Scene) -> None:
    first, lapsed = await scene.gateway(), await scene.gateway()
    _, (log,) = await scene.migrating_topic([first, lapsed])
    generation = await scene.quiesce(log, [first])
    with pytest.raises(QuiesceNotClosed, match=f"gateway {lapsed.gateway_id} has not"):
        await scene.persist(log, 10, generation)
    assert await scene.fence(lapsed)
    await scene.persist(log, 10, generation)


async def test_a_gateway_that_registers_anew_must_acknowledge_again(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    generation = await scene.quiesce(log, [gateway])
    await scene.gateway(gateway.gateway_id)
    with pytest.raises(QuiesceNotClosed):
        await scene.persist(log, 10, generation)


async def test_a_quiesce_past_its_deadline_takes_no_b0(scene: Scene) -> None:
    """Schedule 13, on the database's clock."""
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    generation = await scene.quiesce(log, [gateway])
    assert not await scene.plane.void_expired_quiesce(log)
    scene.expire_quiesce(log)
    with pytest.raises(QuiesceNotClosed, match="past its deadline"):
        await scene.persist(log, 10, generation)
    assert await scene.plane.void_expired_quiesce(log)
    with pytest.raises(QuiesceNotClosed, match="is reopened"):
        await scene.persist(log, 10, generation)


async def test_acknowledgements_of_a_void_closure_do_not_count_for_another(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    generation = await scene.quiesce(log, [gateway])
    assert await scene.plane.reopen_generation(log, generation)
    with pytest.raises(QuiesceNotClosed, match="closed before and is void"):
        await scene.plane.close_generation(log, generation, 1_000)
    with pytest.raises(QuiesceNotClosed):
        await scene.plane.acknowledge_quiesce(
            gateway.gateway_id, gateway.incarnation, log, generation, 5, 6
        )


async def test_no_quiesce_before_every_gateway_tracks_the_topic(scene: Scene) -> None:
    await scene.gateway()
    _, (log,) = await scene.tracking_topic()
    generation = await scene.plane.next_generation(log)
    with pytest.raises(TrackingIncomplete):
        await scene.plane.close_generation(log, generation, 1_000)


async def test_seeds_at_or_past_b0_are_rejected(scene: Scene) -> None:
    """Schedule 5: the sequence of a late append must not become state."""
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    generation = await scene.quiesce(log, [gateway])
    with pytest.raises(SeedNotBelowBoundary, match=r"producer 7 .* B0 10"):
        await scene.persist(log, 10, generation, seeds=[seed(last_offset=10)])
    await scene.persist(log, 10, generation, seeds=[seed(last_offset=9)])


@pytest.mark.parametrize(
    "wrong",
    [
        {"producer_id": -1},
        {"producer_epoch": -1},
        {"base_offset": -1},
        {"base_offset": 6, "last_offset": 5},
    ],
    ids=["id", "epoch", "offset", "order"],
)
async def test_a_seed_that_is_of_no_batch_is_rejected(scene: Scene, wrong: dict[str, int]) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    generation = await scene.quiesce(log, [gateway])
    with pytest.raises(SeedNotBelowBoundary):
        await scene.persist(log, 10, generation, seeds=[replace(seed(), **wrong)])


@pytest.mark.parametrize("log_start", [-1, 11])
async def test_a_log_start_outside_of_the_prefix_takes_no_b0(scene: Scene, log_start: int) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    generation = await scene.quiesce(log, [gateway])
    observed = BoundaryToPersist(log, 10, 3, generation, (), prefix_log_start=log_start)
    with pytest.raises(InvalidInput, match=f"log start {log_start}"):
        await scene.plane.initialize_diskless_migration(observed)
    await scene.plane.initialize_diskless_migration(replace(observed, prefix_log_start=10))


async def test_seeds_and_b0_appear_together_or_not_at_all(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    generation = await scene.quiesce(log, [gateway])
    scene.expire_quiesce(log)
    with pytest.raises(QuiesceNotClosed):
        await scene.persist(log, 10, generation, seeds=[seed()])
    assert scene.producers() == []
    assert await scene.plane.get_diskless_log_start_offset(log) == -1
    (committed,) = await scene.commit(gateway, batch(log))
    assert committed.error is CommitError.BOUNDARY_UNSET
    (found,) = await scene.plane.find_batches([FindBatchesRequest(log, 0, 1_000)])
    assert found.error == "BOUNDARY_UNSET"


async def test_a_seeded_producer_goes_on_across_b0(scene: Scene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, 10, [seed(7)])
    retried = batch(log, records=10, producer=(7, 0, 0))
    duplicate, gap, following = await scene.commit(
        gateway, retried, batch(log, producer=(7, 0, 11)), batch(log, producer=(7, 0, 10))
    )
    assert (duplicate.error, duplicate.base_offset) == (CommitError.DUPLICATE, 0)
    assert gap.error is CommitError.OUT_OF_ORDER_SEQUENCE
    assert (following.error, following.base_offset) == (CommitError.NONE, 10)


async def test_of_a_producers_seeds_those_of_its_newest_epoch_are_its_state(scene: Scene) -> None:
    """The worker reads one epoch of each; whoever gives two has neither B0 refused nor the older
    one's sequences taken."""
    gateway = await scene.gateway()
    seeds = [seed(7, epoch=0, last_offset=9), seed(7, epoch=1, last_offset=19)]
    log = await scene.hybrid_log(gateway, 20, seeds)
    zombie, duplicate, following = await scene.commit(
        gateway,
        batch(log, producer=(7, 0, 10)),
        batch(log, records=10, producer=(7, 1, 0)),
        batch(log, producer=(7, 1, 10)),
    )
    assert zombie.error is CommitError.INVALID_PRODUCER_EPOCH
    assert (duplicate.error, duplicate.base_offset) == (CommitError.DUPLICATE, 10)
    assert (following.error, following.base_offset) == (CommitError.NONE, 20)


async def test_of_more_than_five_seeds_of_a_producer_the_last_five_are_its_state(
    scene: Scene,
) -> None:
    gateway = await scene.gateway()
    seeds = [ProducerSeed(7, 0, n, n, n, n, 1_000) for n in range(6)]
    log = await scene.hybrid_log(gateway, 6, seeds)
    too_old, oldest = await scene.commit(
        gateway, batch(log, producer=(7, 0, 0)), batch(log, producer=(7, 0, 1))
    )
    assert too_old.error is CommitError.OUT_OF_ORDER_SEQUENCE
    assert (oldest.error, oldest.base_offset) == (CommitError.DUPLICATE, 1)


async def test_seeds_may_be_overwritten_until_b0_is_set(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    await scene.plane.seed_producer_state(log, [seed(1)])
    await scene.plane.seed_producer_state(log, [seed(2)])
    generation = await scene.quiesce(log, [gateway])
    with pytest.raises(SeedNotBelowBoundary):
        await scene.plane.set_diskless_log_start_offset(log, 9, 3)
    await scene.plane.set_diskless_log_start_offset(log, 10, 3)
    await scene.plane.set_diskless_log_start_offset(log, 10, 3)
    await scene.persist(log, 10, generation, seeds=[seed(2)])
    assert scene.producers() == [2]


async def test_setting_b0_directly_does_not_bypass_the_fences(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    with pytest.raises(QuiesceNotClosed):
        await scene.plane.set_diskless_log_start_offset(log, 10, 3)
    await scene.quiesce(log, [gateway])
    await scene.plane.set_diskless_log_start_offset(log, 10, 3)
    with pytest.raises(StaleLeaderEpoch):
        await scene.plane.set_diskless_log_start_offset(log, -1, 2)
    with pytest.raises(BoundaryAlreadySet):
        await scene.plane.set_diskless_log_start_offset(log, 11, 4)
    await scene.plane.set_diskless_log_start_offset(log, -1, 3)
    assert await scene.plane.get_diskless_log_start_offset(log) == -1


async def test_a_boundary_with_data_behind_it_is_never_reset(scene: Scene) -> None:
    """Schedule 7."""
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, 10)
    await scene.commit(gateway, batch(log))
    with pytest.raises(ResetRefused, match="offsets 10 to 10"):
        await scene.plane.reset_boundary(log, 1, 3)


async def test_of_a_reset_and_a_commit_at_once_exactly_one_wins(scene: Scene) -> None:
    """Schedule 7: a boundary is never reset under data that was acknowledged."""
    gateway = await scene.gateway()
    for _ in range(10):
        log = await scene.hybrid_log(gateway, 10)
        reset, (committed,) = await asyncio.gather(
            scene.plane.reset_boundary(log, 1, 3),
            scene.commit(gateway, batch(log)),
            return_exceptions=True,
        )
        found = await scene.plane.get_diskless_log_start_offset(log)
        if reset is None:
            assert (committed.error, found) == (CommitError.BOUNDARY_UNSET, -1)
        else:
            assert isinstance(reset, ResetRefused)
            assert (committed.error, committed.base_offset, found) == (CommitError.NONE, 10, 10)


async def test_abort_wins_before_b0_and_fences_the_attempt(scene: Scene) -> None:
    gateway = await scene.gateway()
    name, logs = await scene.migrating_topic([gateway], partitions=2)
    generation = await scene.quiesce(logs[0], [gateway])
    await scene.plane.abort_migration(logs[0].topic_id)
    await scene.plane.abort_migration(logs[0].topic_id)
    with pytest.raises(StaleGeneration):
        await scene.persist(logs[0], 10, generation)
    with pytest.raises(NotMigrating):
        await scene.plane.next_generation(logs[0])
    topic = await scene.plane.tracked_topic(name)
    assert topic is not None
    assert {p.state for p in topic.partitions.values()} == {MigrationState.TIERED_ONLY}
    assert not topic.partitions[0].quiesced
    await scene.plane.stop_tracking(name)
    assert await scene.plane.tracked_topic(name) is None


async def test_abort_after_one_b0_is_refused_and_changes_nothing(scene: Scene) -> None:
    """Schedule 20."""
    gateway = await scene.gateway()
    name, logs = await scene.migrating_topic([gateway], partitions=2)
    await scene.persist(logs[1], 10, await scene.quiesce(logs[1], [gateway]))
    before = await scene.plane.tracked_topic(name)
    with pytest.raises(AbortRefused, match=r"partition 1 \(B0 10\)"):
        await scene.plane.abort_migration(logs[0].topic_id)
    with pytest.raises(AbortRefused):
        await scene.plane.stop_tracking(name)
    assert await scene.plane.tracked_topic(name) == before


async def test_of_an_abort_and_a_b0_at_once_exactly_one_wins(scene: Scene) -> None:
    """Schedule 20."""
    gateway = await scene.gateway()
    for _ in range(10):
        _, (log,) = await scene.migrating_topic([gateway])
        generation = await scene.quiesce(log, [gateway])
        outcomes = await asyncio.gather(
            scene.persist(log, 10, generation),
            scene.plane.abort_migration(log.topic_id),
            return_exceptions=True,
        )
        assert sum(outcome is None for outcome in outcomes) == 1
        assert isinstance(
            next(o for o in outcomes if o is not None), (StaleGeneration, AbortRefused)
        )


async def test_a_migration_after_an_abort_begins_with_newer_generations(scene: Scene) -> None:
    gateway = await scene.gateway()
    name, (log,) = await scene.migrating_topic([gateway])
    old = await scene.quiesce(log, [gateway])
    await scene.plane.abort_migration(log.topic_id)
    await scene.plane.stop_tracking(name)
    assert await scene.plane.tracked_topics() == []
    await scene.plane.begin_tracking(
        name, log.topic_id, TrackingKind.MIGRATED, 1, "CreateTime", 1_000_000
    )
    with pytest.raises(TrackingIncomplete):
        await scene.plane.activate_topic(name)
    await scene.plane.acknowledge_tracking(gateway.gateway_id, gateway.incarnation, name)
    await scene.plane.activate_topic(name)
    with pytest.raises(StaleGeneration):
        await scene.persist(log, 10, old)
    new = await scene.quiesce(log, [gateway])
    assert new > old
    await scene.persist(log, 10, new)


async def test_an_unknown_partition_is_named(scene: Scene) -> None:
    _, (log,) = await scene.tracking_topic()
    with pytest.raises(UnknownLog, match="partition 9 of topic id"):
        await scene.plane.next_generation(TopicIdPartition(log.topic_id, 9))
