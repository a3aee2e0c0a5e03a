"""A deleted topic leaves a tombstone that says when, by whom and why, and frees its name."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from tests.contract.scenes import Scene
from tests.support.waiting import eventually, within
from tideline.control_plane import REPORTS_CHANNEL
from tideline.control_plane.errors import (
    InvalidInput,
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


# -- what gateways say of Kafka, until the worker has asked the brokers


async def ask(scene: Scene, name: str = "new", given: str | None = None) -> str | None:
    return await scene.plane.ask_birth(name, 3, "CreateTime", 2_000, 5_000, None, given)


async def test_a_birth_is_asked_for_once_however_often_and_begins_as_it_was_asked_for(
    scene: Scene,
) -> None:
    for _ in range(2):
        assert await ask(scene, given="2000") is None
    (birth,) = await scene.plane.open_births()
    assert (birth.name, birth.wanted, birth.partitions) == ("new", True, 3)
    assert (birth.timestamp_before_max_ms, birth.timestamp_after_max_ms) == (5_000, None)
    assert (birth.given_max_message_bytes, birth.topic_key, birth.status) == ("2000", None, None)
    assert await scene.plane.tracked_topic("new") is None, "a gateway's word tracks nothing"
    await scene.plane.begin_birth("new")
    (birth,) = await scene.plane.open_births()
    assert birth.topic_key is not None
    assert (birth.topic_id, birth.kind) == (None, TrackingKind.BORN_DISKLESS)
    await scene.plane.withdraw_birth("new")
    (birth,) = await scene.plane.open_births()
    assert (birth.wanted, birth.partitions, birth.max_message_bytes) == (False, None, 2_000)


async def test_what_is_refused_is_told_once_and_may_be_asked_for_again(scene: Scene) -> None:
    await ask(scene)
    await scene.plane.refuse_birth("new", "Kafka has it")
    assert await scene.plane.open_births() == []
    with pytest.raises(UnknownTopic):
        await scene.plane.begin_birth("new")
    assert await ask(scene) == "Kafka has it"
    assert await ask(scene) is None
    (birth,) = await scene.plane.open_births()
    assert birth.wanted


@pytest.mark.parametrize("name", ["", "a/b", "a\nb", "x" * 250])
async def test_a_name_that_kafka_does_not_allow_is_not_asked_for(scene: Scene, name: str) -> None:
    with pytest.raises(InvalidInput, match="Kafka has no topic"):
        await ask(scene, name)


async def test_a_report_buries_nothing_until_the_worker_has_looked(scene: Scene) -> None:
    _, (log,) = await scene.diskless_topic(name="orders")
    for _ in range(2):
        assert not await scene.plane.report_deletion(log.topic_id)
    (reported,) = await scene.plane.open_deletions()
    assert (reported.topic_id, reported.name) == (log.topic_id, "orders")
    assert [t.status for t in await scene.plane.live_topics()] == [TopicStatus.TRACKING]
    await scene.plane.delete_topic(log.topic_id, reported.reported_by, "no broker knows it")
    assert await scene.plane.report_deletion(log.topic_id)
    assert await scene.plane.open_deletions() == []
    assert await scene.plane.report_deletion(uuid4()), "nothing is to be buried"


async def test_what_is_said_again_wakes_no_worker_again(scene: Scene) -> None:
    _, (log,) = await scene.diskless_topic()
    listening, heard = asyncio.Event(), list[str]()

    async def listen() -> None:
        async for channel, _ in scene.plane.listen([REPORTS_CHANNEL], listening.set):
            heard.append(channel)

    async with asyncio.TaskGroup() as group:
        listener = group.create_task(listen())
        await within("the connection to listen", listening.wait())
        for count, name in enumerate(("new", "newer"), start=1):
            for _ in range(3):
                await ask(scene, name)
            await eventually("the first word", lambda count=count: len(heard) >= count)
        for _ in range(3):
            await scene.plane.report_deletion(log.topic_id)
        await ask(scene, "last")
        await eventually("the last word", lambda: len(heard) >= 4)
        assert len(heard) == 4
        listener.cancel()


async def test_a_report_that_is_settled_may_come_again(scene: Scene) -> None:
    _, (log,) = await scene.diskless_topic()
    await scene.plane.report_deletion(log.topic_id)
    await scene.plane.settle_deletion(log.topic_id)
    assert await scene.plane.open_deletions() == []
    assert not await scene.plane.report_deletion(log.topic_id)
    assert len(await scene.plane.open_deletions()) == 1


async def test_no_more_than_a_thousand_births_are_asked_for_at_once(scene: Scene) -> None:
    for number in range(1_000):
        await ask(scene, f"new-{number}")
    with pytest.raises(InvalidInput, match="1000 topics already"):
        await ask(scene, "one-more")
    assert await ask(scene, "new-7") is None, "it is asked for already"
    assert len(await scene.plane.open_births()) == 1_000
