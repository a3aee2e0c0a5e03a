"""What has changed of what is tracked: the same as reading everything, for a fraction of it."""

from __future__ import annotations

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
    (moved,) = (await reader.read()).topics
    assert moved == await scene.plane.tracked_topic(name)
    await scene.plane.override_config(log.topic_id, "flush.messages", "1", None)
    assert name in await reader.names()
    await scene.plane.delete_topic(log.topic_id, "a test", "it is over")
    ended = await reader.read()
    assert name in ended.names
    assert ended.topics == ()


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
    assert (await scene.plane.tracked_changes(str(2**40))).upto is None


async def test_what_commits_late_is_told_by_the_next_reading(
    postgres_scene: PostgresScene, database: Database
) -> None:
    name, (log,) = await postgres_scene.diskless_topic()
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
        assert name not in await reader.names()
        slow.commit()
    assert name in await reader.names()
