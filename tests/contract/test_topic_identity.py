"""A deleted topic leaves a tombstone that says when, by whom and why, and frees its name."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.contract.scenes import Scene
from tideline.control_plane.errors import (
    RoundOver,
    TopicDeleted,
    TopicIdentityConflict,
    TrackingIncomplete,
    UnknownTopic,
)
from tideline.control_plane.model import TopicStatus, TrackingKind

HOUR_MS = 3_600_000


async def begin(scene: Scene, name: str, topic_id: object, kind: TrackingKind) -> None:
    await scene.plane.begin_tracking(
        name,
        topic_id,  # type: ignore[arg-type]
        kind,
        1,
        "CreateTime",
        1_000,
    )


async def test_a_tombstone_keeps_the_first_word_on_who_and_why(scene: Scene) -> None:
    name, (log,) = await scene.tracking_topic()
    await scene.plane.delete_topic(log.topic_id, "the reconciler", "no broker knows it")
    await scene.plane.delete_topic(log.topic_id, "a gateway that comes late", "Kafka deleted it")
    (tombstone,) = await scene.plane.deleted_topics(HOUR_MS, 10)
    assert (tombstone.name, tombstone.topic_id) == (name, log.topic_id)
    assert (tombstone.deleted_by, tombstone.deleted_why) == ("the reconciler", "no broker knows it")
    assert await scene.plane.live_topics() == []


async def test_the_newest_tombstones_are_told_and_no_more_than_asked_for(scene: Scene) -> None:
    logs = [(await scene.tracking_topic())[1][0] for _ in range(3)]
    for log in logs:
        await scene.plane.delete_topic(log.topic_id)
        if hasattr(scene, "clock"):
            scene.clock.now += 5
    told = await scene.plane.deleted_topics(HOUR_MS, 2)
    assert [t.topic_id for t in told] == [logs[2].topic_id, logs[1].topic_id]
    assert await scene.plane.deleted_topics(0, 2) == []


async def test_the_name_of_a_deleted_topic_is_free_for_another_migration(scene: Scene) -> None:
    gateway = await scene.gateway()
    name, (old,) = await scene.migrating_topic([gateway])
    await scene.persist(old, 10, await scene.quiesce(old, [gateway]))
    another = uuid4()
    with pytest.raises(TopicIdentityConflict):
        await begin(scene, name, another, TrackingKind.MIGRATED)
    await scene.plane.delete_topic(old.topic_id)
    await begin(scene, name, another, TrackingKind.MIGRATED)
    (live,) = await scene.plane.live_topics()
    assert (live.name, live.topic_id, live.status) == (name, another, TopicStatus.TRACKING)
    with pytest.raises(TopicDeleted):
        await scene.plane.next_generation(old)


async def test_an_aborted_topic_is_live_until_it_is_deleted_and_then_frees_its_name(
    scene: Scene,
) -> None:
    name, (old,) = await scene.tracking_topic()
    await scene.plane.abort_migration(old.topic_id)
    await scene.plane.stop_tracking(name)
    (live,) = await scene.plane.live_topics()
    assert (live.topic_id, live.status, live.tracked) == (old.topic_id, TopicStatus.ABORTED, False)
    await scene.plane.delete_topic(old.topic_id, "the reconciler", "no broker knows it")
    await begin(scene, name, uuid4(), TrackingKind.MIGRATED)


async def test_a_creation_that_failed_leaves_a_tombstone_without_an_id(scene: Scene) -> None:
    await begin(scene, "new", None, TrackingKind.BORN_DISKLESS)
    await scene.plane.stop_tracking("new")
    (tombstone,) = await scene.plane.deleted_topics(HOUR_MS, 10)
    assert (tombstone.name, tombstone.topic_id) == ("new", None)
    await begin(scene, "new", None, TrackingKind.BORN_DISKLESS)


async def test_a_birth_is_released_by_its_row_and_never_once_it_has_an_id(scene: Scene) -> None:
    """A telling that comes late must not let go of a later creation of the name."""
    await begin(scene, "new", None, TrackingKind.BORN_DISKLESS)
    (first,) = await scene.plane.live_topics()
    assert await scene.plane.release_birth(first.topic_key, "the reconciler", "it did not end")
    assert not await scene.plane.release_birth(first.topic_key, "the reconciler", "again")
    await begin(scene, "new", None, TrackingKind.BORN_DISKLESS)
    assert not await scene.plane.release_birth(first.topic_key, "the reconciler", "late")
    (second,) = await scene.plane.live_topics()
    assert second.topic_key != first.topic_key
    await scene.plane.complete_creation("new", uuid4(), 1)
    assert not await scene.plane.release_birth(second.topic_key, "the reconciler", "it has an id")
    with pytest.raises(UnknownTopic):
        await scene.plane.activate_topic("other")


async def test_a_birth_is_active_when_every_gateway_has_acknowledged_its_id(scene: Scene) -> None:
    """What a gateway acknowledged for the name alone says nothing of the id."""
    gateway = await scene.gateway()
    await begin(scene, "new", None, TrackingKind.BORN_DISKLESS)
    by_name = await scene.plane.tracked_topic("new")
    assert by_name is not None
    await scene.plane.acknowledge_tracking(
        gateway.gateway_id, gateway.incarnation, "new", by_name.round
    )
    await scene.plane.complete_creation("new", uuid4(), 1)
    with pytest.raises(TrackingIncomplete):
        await scene.plane.activate_topic("new")
    with pytest.raises(RoundOver):
        await scene.plane.acknowledge_tracking(
            gateway.gateway_id, gateway.incarnation, "new", by_name.round
        )
    by_id = await scene.plane.tracked_topic("new")
    assert by_id is not None
    await scene.plane.acknowledge_tracking(
        gateway.gateway_id, gateway.incarnation, "new", by_id.round
    )
    await scene.plane.activate_topic("new")
