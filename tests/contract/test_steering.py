"""Requests, evidence, readiness and held configs."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.contract.scenes import Scene, batch
from tideline.control_plane.errors import BoundaryUnset, RoundOver, StaleGeneration, UnknownTopic
from tideline.control_plane.model import (
    ConfigOverride,
    ReadinessLook,
    RequestState,
    TrackingKind,
    summarize,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.migration import MigrationState, Phase, PhaseStatus


async def test_a_second_request_joins_the_first_until_it_is_taken(scene: Scene) -> None:
    topic_id = uuid4()
    await scene.plane.request_migration("orders", topic_id, "admin", {"parallel_partitions": 2})
    await scene.plane.request_migration("orders", topic_id, "cli", {"parallel_partitions": 3})
    (request,) = await scene.plane.pending_requests()
    assert (request.topic, request.topic_id) == ("orders", topic_id)
    assert (request.requested_by, request.options) == ("cli", {"parallel_partitions": 3})
    await scene.plane.settle_request(topic_id, request.requested_at, RequestState.STARTED)
    assert await scene.plane.pending_requests() == []
    await scene.plane.request_migration("orders", topic_id, "admin", {})
    assert len(await scene.plane.pending_requests()) == 1


async def test_evidence_is_kept_per_phase_and_fenced_by_generation(scene: Scene) -> None:
    gateway = await scene.gateway()
    name, (log,) = await scene.migrating_topic([gateway])
    record = scene.plane.record_phase
    await record(log, 0, Phase.VALIDATE, PhaseStatus.RUNNING, {})
    await record(log, 0, Phase.VALIDATE, PhaseStatus.DONE, {"isr": [1, 2]})
    old = await scene.plane.next_generation(log)
    await record(log, old, Phase.QUIESCE, PhaseStatus.WAITING, {}, "gateway 2 is silent")
    new = await scene.plane.next_generation(log)
    with pytest.raises(StaleGeneration):
        await record(log, old, Phase.QUIESCE, PhaseStatus.DONE, {})
    with pytest.raises(StaleGeneration):
        await record(log, 0, Phase.QUIESCE, PhaseStatus.DONE, {})
    await scene.diskless_topic(2)
    assert await scene.plane.migration_summary() == summarize(await scene.plane.migration_status())
    (status,) = await scene.plane.migration_status(name)
    assert status.generation == new
    validate, quiesce = status.phases
    assert (validate.status, validate.evidence) == (PhaseStatus.DONE, {"isr": [1, 2]})
    assert validate.ended_at is not None
    assert validate.ended_at >= validate.started_at
    assert (quiesce.waiting_reason, quiesce.ended_at) == ("gateway 2 is silent", None)


async def test_a_new_attempt_of_a_phase_begins_its_clock_anew(scene: Scene) -> None:
    gateway = await scene.gateway()
    name, (log,) = await scene.migrating_topic([gateway])

    async def started(status: PhaseStatus) -> object:
        await scene.plane.record_phase(log, 0, Phase.VALIDATE, status, {})
        (row,) = await scene.plane.migration_status(name)
        return row.phases[0].started_at

    first = await started(PhaseStatus.RUNNING)
    assert await started(PhaseStatus.WAITING) == first
    assert await started(PhaseStatus.FAILED) == first
    assert await started(PhaseStatus.RUNNING) != first


async def test_when_a_phase_of_one_partition_began_is_asked_for_alone(scene: Scene) -> None:
    name, (log,) = await scene.migrating_topic([await scene.gateway()])
    assert await scene.plane.phase_began(log, Phase.VALIDATE) is None
    await scene.plane.record_phase(log, 0, Phase.VALIDATE, PhaseStatus.RUNNING, {})
    (row,) = await scene.plane.migration_status(name)
    assert await scene.plane.phase_began(log, Phase.VALIDATE) == row.phases[0].started_at
    assert await scene.plane.phase_began(log, Phase.DRAIN_TRANSACTIONS) is None
    assert await scene.plane.phase_began(TopicIdPartition(uuid4(), 0), Phase.VALIDATE) is None


async def test_the_oldest_open_attempt_tells_how_long_a_phase_lasts(scene: Scene) -> None:
    """It is told while it runs, too: each try of a wait begins with a moment of running."""
    gateway = await scene.gateway()
    name, (log,) = await scene.migrating_topic([gateway])
    for status in (PhaseStatus.RUNNING, PhaseStatus.WAITING, PhaseStatus.RUNNING):
        await scene.plane.record_phase(log, 0, Phase.VALIDATE, status, {})
    (summary,) = [s for s in await scene.plane.migration_summary() if s.topic == name]
    (row,) = await scene.plane.migration_status(name)
    assert summary.since_s == {Phase.VALIDATE: row.phases[0].started_at.timestamp()}
    await scene.plane.record_phase(log, 0, Phase.VALIDATE, PhaseStatus.DONE, {})
    (summary,) = [s for s in await scene.plane.migration_summary() if s.topic == name]
    assert summary.since_s == {}


async def test_what_an_aborted_migration_did_and_waited_for_counts_no_more(scene: Scene) -> None:
    gateway = await scene.gateway()
    name, (log,) = await scene.migrating_topic([gateway])
    await scene.plane.record_phase(log, 0, Phase.VALIDATE, PhaseStatus.DONE, {})
    await scene.plane.record_phase(
        log, 0, Phase.DRAIN_TRANSACTIONS, PhaseStatus.WAITING, {}, "a transaction is open"
    )
    (summary,) = [s for s in await scene.plane.migration_summary() if s.topic == name]
    assert summary.phases_done == 1
    await scene.plane.abort_migration(log.topic_id)
    await scene.plane.stop_tracking(name)
    assert await scene.plane.migration_summary() == summarize(await scene.plane.migration_status())
    (summary,) = [s for s in await scene.plane.migration_summary() if s.topic == name]
    assert (summary.phases_done, summary.waiting, summary.since_s) == (0, {}, {})


async def test_an_aborted_topic_still_shows_its_history(scene: Scene) -> None:
    gateway = await scene.gateway()
    name, (log,) = await scene.migrating_topic([gateway])
    await scene.plane.abort_migration(log.topic_id)
    await scene.plane.stop_tracking(name)
    assert await scene.plane.migration_summary() == summarize(await scene.plane.migration_status())
    (status,) = await scene.plane.migration_status()
    assert (status.topic, status.state) == (name, MigrationState.TIERED_ONLY)


async def test_readiness_is_set_and_cleared_and_fenced(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (pending,) = await scene.migrating_topic([gateway])
    with pytest.raises(BoundaryUnset):
        await scene.plane.set_tiering_complete(pending, 0, True, "")
    log = await scene.hybrid_log(gateway, 10)
    with pytest.raises(StaleGeneration):
        await scene.plane.set_tiering_complete(log, 0, True, "")
    for complete in (True, False, True):
        await scene.plane.set_tiering_complete(log, 1, complete, "coverage of [0, 10)")
        partition = await scene.plane.tracked_partition(log.topic_id, log.partition)
        assert partition is not None
        assert partition.ready is complete


async def test_readiness_of_many_partitions_is_kept_for_those_that_nobody_has_moved(
    scene: Scene,
) -> None:
    gateway = await scene.gateway()
    name, logs = await scene.migrating_topic([gateway], 4)
    topic_id = logs[0].topic_id
    for log in logs[:3]:
        await scene.persist(log, 10, await scene.quiesce(log, [gateway], 9))
    await scene.plane.next_generation(logs[2])
    looks = [
        ReadinessLook(0, 1, True, "2 segments cover the prefix", {"segments": 2}),
        ReadinessLook(1, 1, False, "replica 2 has not rolled"),
        ReadinessLook(2, 1, True, "under a generation that is not the newest any more"),
        ReadinessLook(3, 0, True, "it has no B0"),
        ReadinessLook(9, 0, True, "there is no such partition"),
    ]
    assert sorted(await scene.plane.record_readiness(topic_id, looks)) == [0, 1]
    assert await scene.plane.record_readiness(uuid4(), looks) == []
    late = [ReadinessLook(0, 1, False, "what an attempt that slept had seen before")]
    assert await scene.plane.record_readiness(topic_id, late) == []
    statuses = {s.log.partition: s for s in await scene.plane.migration_status(name)}
    assert [statuses[p].tiering_complete for p in range(4)] == [True, False, False, False]
    (done,) = [p for p in statuses[0].phases if p.phase is Phase.READINESS]
    assert (done.status, done.evidence) == (PhaseStatus.DONE, {"segments": 2})
    (waits,) = [p for p in statuses[1].phases if p.phase is Phase.READINESS]
    assert (waits.status, waits.waiting_reason) == (PhaseStatus.WAITING, "replica 2 has not rolled")
    assert not [p for p in statuses[2].phases if p.phase is Phase.READINESS]


async def test_a_prefix_that_expired_leaves_a_diskless_partition(scene: Scene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, 10)
    await scene.commit(gateway, batch(log))

    async def advance(log_start: int) -> tuple[MigrationState, bool, tuple[int, int]]:
        await scene.plane.advance_prefix_start(log, log_start)
        partition = await scene.plane.tracked_partition(log.topic_id, log.partition)
        assert partition is not None
        assert (partition.boundary, partition.suffix_start) == (10, 10)
        return partition.state, partition.prefix_gone, scene.starts(log)

    assert await advance(4) == (MigrationState.HYBRID, False, (4, 4))
    assert await advance(2) == (MigrationState.HYBRID, False, (4, 4))
    assert await advance(12) == (MigrationState.DISKLESS_ONLY, True, (10, -1))


async def test_gateways_are_told_who_has_a_prefix_in_kafka(scene: Scene) -> None:
    """Without one any gateway serves the whole log."""
    gateway = await scene.gateway()
    _, (pending,) = await scene.migrating_topic([gateway])
    _, (born,) = await scene.diskless_topic()
    hybrid = await scene.hybrid_log(gateway, 10)
    told = {}
    for log in (pending, born, hybrid):
        row = await scene.plane.tracked_partition(log.topic_id, log.partition)
        assert row is not None
        told[log] = row.prefix_gone
    assert told == {pending: False, born: True, hybrid: False}


async def test_a_config_is_let_go_of_only_with_what_its_user_wants_by_then(scene: Scene) -> None:
    """What was put into Kafka may be out of date: an abort lost the change that came with it."""
    _, (log,) = await scene.tracking_topic()
    topic_id, key = log.topic_id, "retention.bytes"
    await scene.plane.override_config(topic_id, key, "-1", None)
    assert await scene.plane.update_user_config(topic_id, key, "2000")
    assert not await scene.plane.release_config(topic_id, key, None)
    assert await scene.plane.config_overrides_of(topic_id) == {
        key: ConfigOverride(key, "-1", "2000")
    }
    assert await scene.plane.release_config(topic_id, key, "2000")
    assert await scene.plane.release_config(topic_id, key, "1"), "repeats are done already"
    assert not await scene.plane.update_user_config(topic_id, key, "3000"), "it belongs into Kafka"


async def test_the_users_value_survives_its_override(scene: Scene) -> None:
    name, (log,) = await scene.tracking_topic()
    topic_id, key = log.topic_id, "retention.bytes"
    await scene.plane.override_config(topic_id, key, "-1", "1000")
    await scene.plane.override_config(topic_id, key, "-2", "-1")
    assert await scene.plane.config_overrides_of(topic_id) == {
        key: ConfigOverride(key, "-2", "1000")
    }
    assert await scene.plane.update_user_config(topic_id, key, "2000")
    assert not await scene.plane.update_user_config(topic_id, "flush.messages", "1")
    topic = await scene.plane.tracked_topic(name)
    assert topic is not None
    assert topic.overrides == {key: ConfigOverride(key, "-2", "2000")}
    assert await scene.plane.release_config(topic_id, key, "2000")
    assert await scene.plane.config_overrides_of(topic_id) == {}
    with pytest.raises(UnknownTopic):
        await scene.plane.override_config(uuid4(), key, "-1", None)


async def test_who_slept_over_an_abort_overrides_nothing(scene: Scene) -> None:
    """It has read what the user had before the abort, and before he changed it."""
    name, (log,) = await scene.tracking_topic()
    topic_id, key = log.topic_id, "flush.messages"
    await scene.plane.override_config(topic_id, key, "1", "9", round=1)
    await scene.plane.abort_migration(topic_id)
    assert await scene.plane.release_config(topic_id, key, "9")
    assert not await scene.plane.update_user_config(topic_id, key, "500")
    with pytest.raises(RoundOver, match="aborted"):
        await scene.plane.override_config(topic_id, key, "1", "9", round=1)
    await scene.plane.stop_tracking(name)
    begun = await scene.plane.begin_tracking(
        name, topic_id, TrackingKind.MIGRATED, 1, "CreateTime", 1_048_588
    )
    assert begun == 2
    with pytest.raises(RoundOver, match=r"round 1 .* is over"):
        await scene.plane.override_config(topic_id, key, "1", "9", round=1)
    assert await scene.plane.config_overrides_of(topic_id) == {}
    await scene.plane.override_config(topic_id, key, "1", "500", round=2)


async def test_who_slept_over_an_abort_lets_go_of_nothing(scene: Scene) -> None:
    """It has seen the user's value in Kafka, where the next migration's stands by now: nobody would
    know any more that it is not the user's."""
    name, (log,) = await scene.tracking_topic()
    topic_id, key = log.topic_id, "flush.messages"
    await scene.plane.override_config(topic_id, key, "1", "9", round=1)
    await scene.plane.abort_migration(topic_id)
    assert await scene.plane.release_config(topic_id, key, "9", round=1)
    await scene.plane.stop_tracking(name)
    await scene.plane.begin_tracking(
        name, topic_id, TrackingKind.MIGRATED, 1, "CreateTime", 1_048_588
    )
    await scene.plane.override_config(topic_id, key, "1", "9", round=2)
    with pytest.raises(RoundOver, match=r"round 1 .* is over"):
        await scene.plane.release_config(topic_id, key, "9", round=1)
    assert (await scene.plane.config_overrides_of(topic_id))[key] == ConfigOverride(key, "1", "9")
