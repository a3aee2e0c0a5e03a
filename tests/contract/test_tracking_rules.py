"""No topic starts to migrate before every gateway tracks it; nobody acts with an old identity."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from tests.contract.scenes import Scene
from tideline.control_plane.errors import (
    GatewayFenced,
    GatewayRetired,
    InvalidInput,
    PartitionsMigrating,
    TopicDeleted,
    TopicIdentityConflict,
    TrackingIncomplete,
    UnknownGateway,
    UnknownLog,
    UnknownTopic,
)
from tideline.control_plane.model import TopicStatus, TrackingKind
from tideline.domain.migration import MigrationState


async def test_the_topic_becomes_active_when_every_gateway_has_acknowledged(scene: Scene) -> None:
    first, second = await scene.gateway(), await scene.gateway()
    name, _ = await scene.tracking_topic()
    await scene.plane.acknowledge_tracking(first.gateway_id, first.incarnation, name)
    assert [e.acknowledged for e in await scene.plane.tracking_barrier(name)] == [True, False]
    with pytest.raises(TrackingIncomplete, match=f"gateway {second.gateway_id} .active at 127"):
        await scene.plane.activate_topic(name)
    await scene.plane.acknowledge_tracking(second.gateway_id, second.incarnation, name)
    await scene.plane.activate_topic(name)
    await scene.plane.activate_topic(name)
    topic = await scene.plane.tracked_topic(name)
    assert topic is not None
    assert topic.status is TopicStatus.ACTIVE


async def test_a_fenced_gateway_that_never_heard_of_the_topic_holds_it_back(scene: Scene) -> None:
    """It wakes, and until it learns of its fence it passes produces through untracked."""
    asleep = await scene.gateway()
    await scene.fence(asleep)
    name, _ = await scene.tracking_topic()
    with pytest.raises(TrackingIncomplete, match="fenced"):
        await scene.plane.activate_topic(name)
    await scene.plane.retire_gateway(asleep.gateway_id, "the operator on duty")
    await scene.plane.activate_topic(name)


async def test_the_acknowledgement_of_an_older_incarnation_does_not_count(scene: Scene) -> None:
    old = await scene.gateway()
    name, _ = await scene.tracking_topic()
    await scene.plane.acknowledge_tracking(old.gateway_id, old.incarnation, name)
    new = await scene.gateway(old.gateway_id)
    with pytest.raises(TrackingIncomplete):
        await scene.plane.activate_topic(name)
    with pytest.raises(GatewayFenced, match="a newer one has registered"):
        await scene.plane.acknowledge_tracking(old.gateway_id, old.incarnation, name)
    await scene.plane.acknowledge_tracking(new.gateway_id, new.incarnation, name)
    await scene.plane.activate_topic(name)


async def test_a_new_incarnation_fences_the_old_one_for_ever(scene: Scene) -> None:
    """Schedule 1."""
    old = await scene.gateway()
    first = await scene.plane.renew_lease(old.gateway_id, old.incarnation)
    assert await scene.plane.renew_lease(old.gateway_id, old.incarnation) == first + 1
    listed = await scene.plane.renew_and_list(old.gateway_id, old.incarnation)
    assert listed == await scene.plane.list_gateways()
    assert [(g.gateway_id, g.renewals) for g in listed] == [(old.gateway_id, first + 2)]
    new = await scene.gateway(old.gateway_id)
    with pytest.raises(GatewayFenced):
        await scene.plane.renew_lease(old.gateway_id, old.incarnation)
    with pytest.raises(GatewayFenced):
        await scene.plane.renew_and_list(old.gateway_id, old.incarnation)
    with pytest.raises(GatewayFenced, match="for ever"):
        await scene.plane.register_gateway(
            old.gateway_id, 1, old.incarnation, "127.0.0.1:9", "1", 3_000
        )
    assert not await scene.fence(old, "late")
    (registered,) = await scene.plane.list_gateways()
    assert (registered.incarnation, registered.status) == (new.incarnation, "active")


async def test_a_fenced_incarnation_may_not_register_again(scene: Scene) -> None:
    gateway = await scene.gateway()
    for _ in range(2):
        assert await scene.fence(gateway)
    with pytest.raises(GatewayFenced, match=r"fenced \(lapsed\)"):
        await scene.plane.renew_lease(gateway.gateway_id, gateway.incarnation)
    with pytest.raises(GatewayFenced):
        await scene.plane.register_gateway(
            gateway.gateway_id, 1, gateway.incarnation, "127.0.0.1:9", "1", 3_000
        )
    again = await scene.gateway(gateway.gateway_id)
    await scene.plane.renew_lease(again.gateway_id, again.incarnation)


async def test_a_retired_id_never_comes_back(scene: Scene) -> None:
    gateway = await scene.gateway()
    with pytest.raises(InvalidInput):
        await scene.plane.retire_gateway(gateway.gateway_id, "")
    with pytest.raises(UnknownGateway):
        await scene.plane.retire_gateway(99, "the operator on duty")
    await scene.plane.retire_gateway(gateway.gateway_id, "the operator on duty")
    with pytest.raises(GatewayRetired, match="attested by the operator on duty"):
        await scene.gateway(gateway.gateway_id)
    with pytest.raises(GatewayFenced):
        await scene.plane.renew_lease(gateway.gateway_id, gateway.incarnation)


async def test_another_topic_under_a_live_name_is_refused(scene: Scene) -> None:
    name, (log,) = await scene.tracking_topic()
    with pytest.raises(TopicIdentityConflict):
        await scene.plane.begin_tracking(
            name, uuid4(), TrackingKind.MIGRATED, 1, "CreateTime", 1_000
        )
    await scene.plane.begin_tracking(
        name, log.topic_id, TrackingKind.MIGRATED, 1, "LogAppendTime", 2_000
    )
    topic = await scene.plane.tracked_topic(name)
    assert topic is not None
    assert (topic.timestamp_type, topic.max_message_bytes) == ("LogAppendTime", 2_000)


async def test_a_deleted_id_is_refused_under_any_name(scene: Scene) -> None:
    name, (log,) = await scene.tracking_topic()
    await scene.plane.delete_topic(log.topic_id)
    for other in (name, "elsewhere"):
        with pytest.raises(TopicDeleted):
            await scene.plane.begin_tracking(
                other, log.topic_id, TrackingKind.MIGRATED, 1, "CreateTime", 1_000
            )


async def test_a_topic_born_diskless_gets_its_partitions_with_its_id(scene: Scene) -> None:
    gateway = await scene.gateway()
    await scene.plane.begin_tracking(
        "new", None, TrackingKind.BORN_DISKLESS, 2, "CreateTime", 1_000
    )
    topic = await scene.plane.tracked_topic("new")
    assert topic is not None
    assert (topic.topic_id, topic.partitions) == (None, {})
    await scene.plane.acknowledge_tracking(gateway.gateway_id, gateway.incarnation, "new")
    await scene.plane.activate_topic("new")
    topic_id = uuid4()
    for _ in range(2):
        await scene.plane.complete_creation("new", topic_id, 2)
    with pytest.raises(TopicIdentityConflict):
        await scene.plane.complete_creation("new", uuid4(), 2)
    await scene.plane.add_partitions("new", topic_id, 2, 3)
    topic = await scene.plane.tracked_topic("new")
    assert topic is not None
    assert topic.topic_id == topic_id
    assert [
        (p.partition, p.state, p.boundary, p.high_watermark) for p in topic.partitions.values()
    ] == [(n, MigrationState.DISKLESS_ONLY, 0, 0) for n in range(3)]


async def test_a_creation_that_failed_leaves_nothing(scene: Scene) -> None:
    await scene.plane.begin_tracking(
        "new", None, TrackingKind.BORN_DISKLESS, 2, "CreateTime", 1_000
    )
    for _ in range(2):
        await scene.plane.stop_tracking("new")
    assert await scene.plane.tracked_topics() == []
    with pytest.raises(UnknownTopic):
        await scene.plane.activate_topic("new")


async def test_partitions_wait_until_the_migration_is_done(scene: Scene) -> None:
    """Schedule 22."""
    gateway = await scene.gateway()
    name, (log,) = await scene.migrating_topic([gateway])
    with pytest.raises(PartitionsMigrating, match="no B0 yet: partition 0"):
        await scene.plane.add_partitions(name, log.topic_id, 1, 2)
    await scene.persist(log, 10, await scene.quiesce(log, [gateway]))
    await asyncio.gather(
        *(scene.plane.add_partitions(name, log.topic_id, 1, total) for total in (2, 3, 3))
    )
    topic = await scene.plane.tracked_topic(name)
    assert topic is not None
    assert [p.boundary for p in topic.partitions.values()] == [10, 0, 0]


async def test_only_partitions_that_somebody_has_looked_at_are_declared_diskless(
    scene: Scene,
) -> None:
    """Schedule 22: neither one below them, nor those of another topic of the name."""
    gateway = await scene.gateway()
    name, (log,) = await scene.migrating_topic([gateway])
    await scene.persist(log, 10, await scene.quiesce(log, [gateway]))
    with pytest.raises(UnknownLog, match="partition 1 of topic id"):
        await scene.plane.add_partitions(name, log.topic_id, 2, 4)
    with pytest.raises(TopicIdentityConflict, match="not with id"):
        await scene.plane.add_partitions(name, uuid4(), 1, 2)
    topic = await scene.plane.tracked_topic(name)
    assert topic is not None
    assert list(topic.partitions) == [0]


async def test_a_migration_that_is_started_again_takes_across_what_came_past_the_gateways(
    scene: Scene,
) -> None:
    """Schedule 22: the partition has records, so that it migrates; the others stay as they are."""
    gateway = await scene.gateway()
    name, (log,) = await scene.migrating_topic([gateway])
    await scene.persist(log, 10, await scene.quiesce(log, [gateway]))
    about = (name, log.topic_id, TrackingKind.MIGRATED, 2, "CreateTime", 1_000)
    for _ in range(2):
        await scene.plane.begin_tracking(*about)
    topic = await scene.plane.tracked_topic(name)
    assert topic is not None
    assert topic.status is TopicStatus.ACTIVE
    assert [p.boundary for p in topic.partitions.values()] == [10, -1]
    assert topic.partitions[1].state is MigrationState.MIGRATING
    with pytest.raises(PartitionsMigrating, match="no B0 yet: partition 1"):
        await scene.plane.add_partitions(name, log.topic_id, 2, 3)


async def test_the_registry_tells_the_zone_that_a_gateway_has_now(scene: Scene) -> None:
    gateway = await scene.gateway()
    register = scene.plane.register_gateway
    (known,) = await scene.plane.list_gateways()
    assert known.rack is None
    for rack in ("eu-1a", "eu-1b", None):
        reading = await scene.reading(gateway.gateway_id)
        await register(
            gateway.gateway_id, 1, uuid4(), "127.0.0.1:9", "1", 3_000, reading, rack=rack
        )
        (known,) = await scene.plane.list_gateways()
        assert known.rack == rack
