"""What has changed of what is tracked: the same as reading everything, for a fraction of it."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import psycopg

from tests.contract.conftest import Database
from tests.contract.scenes import PostgresScene, Scene, batch
from tideline.control_plane.model import TrackedChanges


class Reader:
    """Asks for changes as a gateway does."""

    def __init__(self, scene: Scene) -> None:
        self._plane = scene.plane
        self.since = ""

    async def begin(self) -> None:
        self.since = await self._plane.tracked_changes_begin()
        await self._plane.tracked_topics()
        await self.read()

    async def read(self) -> TrackedChanges:
        found = await self._plane.tracked_changes(self.since)
        assert found.upto is not None
        self.since = found.upto
        return found

    async def names(self) -> set[str]:
        """Of what is not told twice: asked until nothing comes."""
        first = await self.read()
        return set(first.names)


async def test_a_topic_that_begins_moves_and_ends_is_told_each_time(scene: Scene) -> None:
    gateway = await scene.gateway()
    reader = Reader(scene)
    await reader.begin()
    name, (log,) = await scene.migrating_topic([gateway])
    begun = await reader.read()
    assert name in begun.names
    assert [topic.name for topic in begun.topics] == [name]
    await scene.plane.next_generation(log)
    moved = await reader.read()
    assert moved.topics == ()
    assert moved.rows == {log: await scene.plane.tracked_partition(log.topic_id, log.partition)}
    await scene.plane.override_config(log.topic_id, "flush.messages", "1", None)
    assert name in await reader.names()
    await scene.plane.delete_topic(log.topic_id, "a test", "it is over")
    ended = await reader.read()
    assert name in ended.names
    assert ended.topics == ()


async def test_a_deletion_is_told_also_of_a_topic_that_was_let_go_of(scene: Scene) -> None:
    """Gateways ask for tombstones only where a name has changed."""
    gateway = await scene.gateway()
    name, (log,) = await scene.migrating_topic([gateway])
    await scene.plane.abort_migration(log.topic_id)
    await scene.plane.stop_tracking(name)
    reader = Reader(scene)
    await reader.begin()
    await scene.plane.delete_topic(log.topic_id, "a test", "it is over")
    assert name in (await reader.read()).names


async def test_changes_are_told_with_the_identity_of_the_server_that_tells_them(
    scene: Scene,
) -> None:
    since = await scene.plane.tracked_changes_begin()
    seen = await scene.plane.identity()
    for before in (None, seen, replace(seen, token=UUID(int=1))):
        told = (await scene.plane.tracked_changes(since, before)).identity
        asked = await scene.plane.identity(before)
        assert replace(told, lsn=asked.lsn) == asked
        assert seen.lsn <= told.lsn <= asked.lsn
    assert (await scene.plane.tracked_changes("no place", seen)).identity.knows


async def test_of_a_topic_of_which_one_partition_has_changed_that_one_is_told(scene: Scene) -> None:
    gateway = await scene.gateway()
    name, logs = await scene.migrating_topic([gateway], partitions=3)
    _, (born,) = await scene.diskless_topic()
    reader = Reader(scene)
    await reader.begin()
    await scene.plane.next_generation(logs[1])
    found = await reader.read()
    assert found.names == set()
    assert set(found.rows) == {logs[1]}
    await scene.plane.update_topic_limits(logs[0].topic_id, max_message_bytes=77)
    await scene.plane.next_generation(logs[2])
    both = await reader.read()
    assert both.topics == (await scene.plane.tracked_topic(name),)
    assert both.rows == {}
    topic = next(t for t in await scene.plane.tracked_topics() if t.topic_id == born.topic_id)
    await scene.plane.add_partitions(topic.name, born.topic_id, 1, 2)
    (new,) = (await reader.read()).rows
    assert new.partition == 1


async def test_commits_are_no_change_of_what_is_tracked(scene: Scene) -> None:
    _, (log,) = await scene.diskless_topic()
    gateway = await scene.gateway()
    reader = Reader(scene)
    await reader.begin()
    await scene.commit(gateway, batch(log))
    await reader.read()
    assert await reader.names() == set()


async def test_changes_that_were_forgotten_are_answered_by_reading_everything(
    scene: Scene,
) -> None:
    reader = Reader(scene)
    await reader.begin()
    before = reader.since
    await scene.diskless_topic()
    await reader.read()
    scene.jobs.forget_tracking_changes(0)
    assert (await scene.plane.tracked_changes(before)).upto is None
    reader.since = await scene.plane.tracked_changes_begin()
    await reader.read()


async def test_a_reading_of_another_history_is_no_beginning(scene: Scene) -> None:
    """Of a transaction, too, that both have under one number."""
    here = await scene.plane.tracked_changes_begin()
    history, _, number = here.partition(":")
    system, timeline, history_id = history.split("/")
    others = (
        f"{history}:{2**40}",
        f"{system}/{int(timeline) + 1}/{history_id}:{number}",
        f"{system}/{timeline}/{UUID(int=77)}:{number}",
        "no place at all",
    )
    for since in others:
        assert (await scene.plane.tracked_changes(since)).upto is None
    assert (await scene.plane.tracked_changes(here)).upto is not None
    await scene.plane.begin_history("a test", "commits are missing")
    assert (await scene.plane.tracked_changes(here)).upto is None


async def test_what_commits_late_is_told_by_the_next_reading(
    postgres_scene: PostgresScene, database: Database
) -> None:
    _, (log,) = await postgres_scene.diskless_topic()
    _, (other,) = await postgres_scene.diskless_topic()
    reader = Reader(postgres_scene)
    await reader.begin()
    with psycopg.connect(database.dsn) as slow:
        slow.execute(
            "UPDATE tideline.logs SET generation = generation + 1 WHERE topic_id = %s",
            [log.topic_id],
        )
        # A later transaction that is done before: its number is past the slow one's.
        await postgres_scene.plane.update_topic_limits(other.topic_id, max_message_bytes=77)
        assert log not in (await reader.read()).rows
        slow.commit()
    assert log in (await reader.read()).rows


async def test_a_topic_that_changed_late_is_told_whole_although_a_partition_was_told_before(
    postgres_scene: PostgresScene, database: Database
) -> None:
    name, logs = await postgres_scene.migrating_topic([await postgres_scene.gateway()], 2)
    reader = Reader(postgres_scene)
    await reader.begin()
    with psycopg.connect(database.dsn) as slow:
        limits = "UPDATE tideline.topics SET max_message_bytes = 77 WHERE topic_id = %s"
        slow.execute(limits, [logs[0].topic_id])
        await postgres_scene.plane.next_generation(logs[1])
        early = await reader.read()
        assert (early.names, set(early.rows)) == (set(), {logs[1]})
        slow.commit()
    late = await reader.read()
    assert [topic.name for topic in late.topics] == [name]
    assert late.topics[0].max_message_bytes == 77


async def test_what_is_told_beside_a_migration_makes_no_topic_of_a_partition(scene: Scene) -> None:
    name, logs = await scene.migrating_topic([await scene.gateway()], 2)
    reader = Reader(scene)
    await reader.begin()
    since = (await scene.plane.migration_changes(None)).upto
    await scene.plane.request_migration(name, logs[0].topic_id, "ann", {})
    await scene.plane.next_generation(logs[1])
    found = await reader.read()
    assert (found.names, set(found.rows)) == (set(), {logs[1]})
    assert (await scene.plane.migration_changes(since)).names == {name}
